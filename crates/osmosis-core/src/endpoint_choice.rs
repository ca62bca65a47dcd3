//! Which endpoint a call goes to. A rule without I/O.

/// An endpoint as the rule sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    /// Its breaker is open.
    pub(super) open: bool,
    /// It may take one more call.
    pub(super) room: bool,
    pub(super) in_flight: u32,
    /// It asked to be left alone for a while; it is, when there is another.
    pub(super) resting: bool,
    /// This call has failed there already.
    pub(super) tried: bool,
}

/// Where to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Go(usize),
    /// All that could answer are full.
    Wait,
    /// All breakers are open.
    NoneLeft,
}

/// The endpoint that holds the caller's prefix if it can take the call, else the least loaded one that
/// can; among equals `turn` decides, so that idle endpoints are used in turn.
pub(super) fn choose(lanes: &[Lane], preferred: Option<usize>, turn: usize) -> Choice {
    let able = |lane: &Lane| !lane.open && lane.room;
    if let Some(at) = preferred
        && lanes
            .get(at)
            .is_some_and(|lane| able(lane) && !lane.resting && !lane.tried)
    {
        return Choice::Go(at);
    }
    let count = lanes.len().max(1);
    let best = lanes
        .iter()
        .enumerate()
        .filter(|(_, lane)| able(lane))
        .min_by_key(|(at, lane)| {
            let after_turn = (at + count - turn % count) % count;
            (lane.tried, lane.resting, lane.in_flight, after_turn)
        });
    match best {
        Some((at, _)) => Choice::Go(at),
        None if lanes.iter().all(|lane| lane.open) => Choice::NoneLeft,
        None => Choice::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDLE: Lane = Lane {
        open: false,
        room: true,
        in_flight: 0,
        resting: false,
        tried: false,
    };

    #[test]
    fn the_preferred_endpoint_is_left_only_when_it_cannot_take_the_call() {
        let busy = Lane {
            in_flight: 9,
            ..IDLE
        };
        assert_eq!(choose(&[IDLE, busy], Some(1), 0), Choice::Go(1));
        for lane in [
            Lane { open: true, ..busy },
            Lane {
                room: false,
                ..busy
            },
            Lane {
                resting: true,
                ..busy
            },
            Lane {
                tried: true,
                ..busy
            },
        ] {
            assert_eq!(choose(&[IDLE, lane], Some(1), 0), Choice::Go(0), "{lane:?}");
        }
        assert_eq!(choose(&[IDLE], Some(7), 0), Choice::Go(0));
    }

    #[test]
    fn idle_endpoints_take_turns() {
        let turns = |turn| choose(&[IDLE; 3], None, turn);
        assert_eq!(
            [turns(0), turns(1), turns(2), turns(3)],
            [0, 1, 2, 0].map(Choice::Go)
        );
        assert_eq!(choose(&[], None, 3), Choice::NoneLeft);
    }

    fn lane() -> impl Strategy<Value = Lane> {
        (
            any::<bool>(),
            any::<bool>(),
            0..5_u32,
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(open, room, in_flight, resting, tried)| Lane {
                open,
                room,
                in_flight,
                resting,
                tried,
            })
    }

    proptest! {
        #[test]
        fn a_call_goes_where_it_can_be_taken_and_nowhere_fuller_than_needed(
            lanes in prop::collection::vec(lane(), 0..6),
            preferred in prop::option::of(0..7_usize),
            turn in any::<usize>(),
        ) {
            match choose(&lanes, preferred, turn) {
                Choice::Go(at) => {
                    let chosen = lanes[at];
                    prop_assert!(!chosen.open && chosen.room);
                    if preferred != Some(at) {
                        for other in lanes.iter().filter(|lane| !lane.open && lane.room) {
                            let key = |lane: &Lane| (lane.tried, lane.resting, lane.in_flight);
                            prop_assert!(key(&chosen) <= key(other));
                        }
                    }
                }
                Choice::Wait => {
                    prop_assert!(lanes.iter().any(|lane| !lane.open));
                    prop_assert!(lanes.iter().all(|lane| lane.open || !lane.room));
                }
                Choice::NoneLeft => prop_assert!(lanes.iter().all(|lane| lane.open)),
            }
        }
    }
}
