//! What holds for any order of events. `PROPTEST_CASES=100000` runs more of them.

use std::num::{NonZeroU32, NonZeroU64};

use proptest::prelude::*;
use proptest::sample::Index;

use super::observed::{End, Event, State, World, sizes};
use super::*;
use crate::config::IncompleteGroups;

fn ends() -> impl Strategy<Value = End> {
    prop_oneof![
        2 => Just(End::Unscored),
        1 => Just(End::NoTokens),
        4 => Just(End::Oldest),
        4 => Just(End::Newest),
        4 => Just(End::Throughout),
        1 => Just(End::FromTheFuture),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Admit),
        24 => (any::<Index>(), ends()).prop_map(|(which, end)| Event::Finish { which, end }),
        3 => any::<Index>().prop_map(Event::Straggle),
        1 => any::<Index>().prop_map(Event::Skip),
        4 => Just(Event::Take),
        4 => Just(Event::Train),
        3 => (0u64..3).prop_map(Event::Advance),
    ]
}

prop_compose! {
    fn plans()(
        groups in 1u32..4,
        rows in prop::option::of(1u64..8),
        steps in 1u64..7,
        members in 1u32..4,
        max_concurrent in 1u64..14,
        max_staleness in 0u32..4,
        mask: bool,
        straggler in prop::sample::select(vec![Straggler::Wait, Straggler::TopUp, Straggler::Drop]),
        keep: bool,
    ) -> Plan {
        let stale_rows = if mask { StaleRows::Mask } else { StaleRows::Drop };
        Plan {
            batches: Batches {
                groups: NonZeroU32::new(groups).unwrap(),
                rows: rows.and_then(NonZeroU64::new),
                steps: Some(steps),
            },
            members: NonZeroU32::new(members).unwrap(),
            max_concurrent: NonZeroU64::new(max_concurrent).unwrap(),
            pace: Pace::of(max_staleness, stale_rows, straggler),
            incomplete_groups: if keep { IncompleteGroups::Keep } else { IncompleteGroups::Drop },
        }
    }
}

/// Seconds in CI; more when the environment asks for more.
fn enough_cases() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: default.cases.max(1000),
        ..default
    }
}

proptest! {
    #![proptest_config(enough_cases())]

    #[test]
    fn any_order_of_events_keeps_the_bounds_and_comes_to_an_end(
        plan in plans(), events in prop::collection::vec(events(), 0..150)
    ) {
        let mut world = World::new(&plan);
        for event in &events {
            world.apply(event)?;
            world.check()?;
        }
        world.run_to_the_end()?;
    }

    #[test]
    fn without_staleness_each_version_gets_exactly_its_batch(
        plan in plans(), ends in prop::collection::vec((any::<Index>(), ends()), 1..80)
    ) {
        let plan = Plan { pace: Pace::of(0, StaleRows::Mask, Straggler::Drop), ..plan };
        let mut world = World::new(&plan);
        let mut ends = ends.iter().cycle();
        let mut first = 0;
        for size in sizes(&plan) {
            let of_batch: Vec<GroupId> = (first..first + size).map(GroupId).collect();
            while world.count(State::Ready) < size {
                world.admit()?;
                prop_assert!(world.states.keys().all(|group| group.0 < first + size));
                let running: Vec<MemberId> = world.running.keys().copied().collect();
                let (which, end) = ends.next().unwrap();
                prop_assert_eq!(world.admission.straggling(*which.get(&running)), []);
                world.finish(*which.get(&running), *end)?;
                world.check()?;
            }
            world.admit()?;
            prop_assert!(world.running.is_empty(), "the next batch waits for the update");
            prop_assert_eq!(world.groups_in(State::Ready), of_batch);
            prop_assert_eq!(world.states.len() as u64, first + size);
            for event in [Event::Take, Event::Train, Event::Advance(1)] {
                world.apply(&event)?;
                world.check()?;
            }
            first += size;
        }
        prop_assert_eq!(world.admission.waits_for(), WaitsFor::End);
    }

    #[test]
    fn a_resumed_run_trains_on_nothing_twice_and_first_on_what_was_left(
        plan in plans(), events in prop::collection::vec(events(), 0..150)
    ) {
        let mut world = World::new(&plan);
        for event in &events {
            world.apply(event)?;
        }
        world.resume();
        let accepted = world.count(State::Trained) + world.count(State::Taken);
        prop_assert_eq!(world.admission.counts().accepted().0, accepted);
        world.check()?;
        world.run_to_the_end()?;
    }
}
