//! Which of several model servers a call goes to. The gateway decides by it, and the simulation of a cluster.

/// An endpoint as the rule sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointState {
    /// Its breaker is open.
    pub open: bool,
    /// It may take one more call.
    pub room: bool,
    pub in_flight: u32,
    /// It asked to be left alone for a while; it is, when there is another.
    pub resting: bool,
    /// This call has failed there already.
    pub tried: bool,
}

/// Where to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointChoice {
    Go(usize),
    /// All that could answer are full.
    Wait,
    /// All breakers are open.
    NoneLeft,
}

/// The endpoint that holds the caller's prefix if it can take the call, else the least loaded one that
/// can; among equals `turn` decides, so that idle endpoints are used in turn.
pub fn choose_endpoint(
    endpoints: &[EndpointState],
    preferred: Option<usize>,
    turn: usize,
) -> EndpointChoice {
    let able = |endpoint: &EndpointState| !endpoint.open && endpoint.room;
    if let Some(at) = preferred
        && endpoints
            .get(at)
            .is_some_and(|endpoint| able(endpoint) && !endpoint.resting && !endpoint.tried)
    {
        return EndpointChoice::Go(at);
    }
    let count = endpoints.len().max(1);
    let best = endpoints
        .iter()
        .enumerate()
        .filter(|(_, endpoint)| able(endpoint))
        .min_by_key(|(at, endpoint)| {
            let after_turn = (at + count - turn % count) % count;
            (
                endpoint.tried,
                endpoint.resting,
                endpoint.in_flight,
                after_turn,
            )
        });
    match best {
        Some((at, _)) => EndpointChoice::Go(at),
        None if endpoints.iter().all(|endpoint| endpoint.open) => EndpointChoice::NoneLeft,
        None => EndpointChoice::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDLE: EndpointState = EndpointState {
        open: false,
        room: true,
        in_flight: 0,
        resting: false,
        tried: false,
    };

    #[test]
    fn the_preferred_endpoint_is_left_only_when_it_cannot_take_the_call() {
        let busy = EndpointState {
            in_flight: 9,
            ..IDLE
        };
        assert_eq!(
            choose_endpoint(&[IDLE, busy], Some(1), 0),
            EndpointChoice::Go(1)
        );
        for endpoint in [
            EndpointState { open: true, ..busy },
            EndpointState {
                room: false,
                ..busy
            },
            EndpointState {
                resting: true,
                ..busy
            },
            EndpointState {
                tried: true,
                ..busy
            },
        ] {
            assert_eq!(
                choose_endpoint(&[IDLE, endpoint], Some(1), 0),
                EndpointChoice::Go(0),
                "{endpoint:?}"
            );
        }
        assert_eq!(choose_endpoint(&[IDLE], Some(7), 0), EndpointChoice::Go(0));
    }

    #[test]
    fn idle_endpoints_take_turns() {
        let turns = |turn| choose_endpoint(&[IDLE; 3], None, turn);
        assert_eq!(
            [turns(0), turns(1), turns(2), turns(3)],
            [0, 1, 2, 0].map(EndpointChoice::Go)
        );
        assert_eq!(choose_endpoint(&[], None, 3), EndpointChoice::NoneLeft);
    }

    fn endpoint() -> impl Strategy<Value = EndpointState> {
        (
            any::<bool>(),
            any::<bool>(),
            0..5_u32,
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(open, room, in_flight, resting, tried)| EndpointState {
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
            endpoints in prop::collection::vec(endpoint(), 0..6),
            preferred in prop::option::of(0..7_usize),
            turn in any::<usize>(),
        ) {
            match choose_endpoint(&endpoints, preferred, turn) {
                EndpointChoice::Go(at) => {
                    let chosen = endpoints[at];
                    prop_assert!(!chosen.open && chosen.room);
                    if preferred != Some(at) {
                        for other in endpoints.iter().filter(|endpoint| !endpoint.open && endpoint.room) {
                            let key = |endpoint: &EndpointState| (endpoint.tried, endpoint.resting, endpoint.in_flight);
                            prop_assert!(key(&chosen) <= key(other));
                        }
                    }
                }
                EndpointChoice::Wait => {
                    prop_assert!(endpoints.iter().any(|endpoint| !endpoint.open));
                    prop_assert!(endpoints.iter().all(|endpoint| endpoint.open || !endpoint.room));
                }
                EndpointChoice::NoneLeft => prop_assert!(endpoints.iter().all(|endpoint| endpoint.open)),
            }
        }
    }
}
