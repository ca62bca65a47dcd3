//! The short form of `cargo xtask bench verdicts`: the cells in which verdicts were wrong most often.

#[path = "../../examples/verdicts/simulation.rs"]
mod simulation;

use simulation::{Cell, Counts, Kind, simulated};

/// 5%, and what so many pairs may be off by (3 standard errors).
fn most(pairs: u32) -> f64 {
    0.05 + 3.0 * (0.05 * 0.95 / f64::from(pairs)).sqrt()
}

#[track_caller]
fn check(pairs: u32, kind: Kind, rows: u32, counts: Counts, chance: f64) -> simulation::Tally {
    let cell = Cell {
        kind,
        rows,
        counts,
        chance,
        gain: 0.0,
    };
    let found = simulated(cell, pairs, 119, 1);
    assert!(found.decided() <= most(pairs), "{cell:?}: {found:?}");
    assert_eq!(found.disagreeing, 0, "{cell:?}: {found:?}");
    found
}

#[test]
fn equal_policies_with_other_numbers_of_rollouts_have_no_verdict_and_intervals_hold_0() {
    for (kind, rows, counts, chance) in [
        (Kind::Passes, 40, Counts::Of(1, 8), 0.05),
        (Kind::Passes, 12, Counts::Of(1, 8), 0.05),
        (Kind::Passes, 40, Counts::Of(1, 16), 0.03),
        (Kind::Passes, 40, Counts::Of(1, 8), 0.95),
        (Kind::Passes, 20, Counts::Any, 0.1),
        (Kind::Rewards, 20, Counts::Of(8, 1), 0.05),
        (Kind::FailuresAtRandom, 10, Counts::Of(2, 3), 0.5),
        (Kind::FailuresByOutcome, 20, Counts::Of(1, 8), 0.95),
        (Kind::Cost, 20, Counts::Of(1, 16), 0.5),
    ] {
        let found = check(120, kind, rows, counts, chance);
        assert!(found.coverage() >= 1.0 - most(120), "{kind:?} {found:?}");
        assert!(found.inconclusive() <= most(120), "{kind:?} {found:?}");
    }
}

#[test]
fn rollouts_that_are_lost_by_their_outcome_give_no_verdict() {
    for kind in [
        Kind::LossesAtRandom,
        Kind::LossesByOutcome,
        Kind::RewardsLostByOutcome,
    ] {
        check(50, kind, 30, Counts::Of(2, 4), 0.5);
    }
}

#[test]
fn true_differences_are_found() {
    for (kind, counts) in [
        (Kind::Passes, Counts::Of(4, 4)),
        (Kind::Passes, Counts::Of(4, 16)),
        (Kind::Rewards, Counts::Of(4, 8)),
    ] {
        let cell = Cell {
            kind,
            rows: 40,
            counts,
            chance: 0.3,
            gain: 0.4,
        };
        let found = simulated(cell, 30, 119, 1);
        assert!(found.better > 26, "{cell:?}: {found:?}");
        assert!(found.coverage() > 0.85, "{cell:?}: {found:?}");
    }
}
