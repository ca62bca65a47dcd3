//! How often a rollout may be tried, how alone it runs, and what a lost worker proves.
//!
//! A rollout whose worker is lost is a suspect. It runs again in a worker of its own; when that is lost to a
//! signal, which anybody may have sent, it runs with nothing else beside it. Whoever shared a worker with
//! the culprit, or was forked from the same process, gets there after two losses at most, and is scored.

use std::time::Duration;

use osmosis_core::execution::{Isolation, LossCause};

/// Attempts at a rollout after which there is no other, whatever the reason.
pub const MAX_ATTEMPTS: u32 = 10;

/// From so many lost workers on nothing runs beside it.
const SOLO_FROM: u32 = 2;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The attempts before the one at hand, as far as they count: those that lost their worker, and those that
/// failed because of the infrastructure. Attempts that were cut short because the run was stopped, or its
/// engine ended, do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tried {
    pub losses: u32,
    pub failures: u32,
}

impl Tried {
    /// How the next attempt runs.
    pub fn isolation(self) -> Isolation {
        match self.losses {
            0 => Isolation::Shared,
            1 => Isolation::Alone,
            SOLO_FROM.. => Isolation::Solo,
        }
    }

    /// Whether the attempt at hand is the last.
    pub fn is_last(self) -> bool {
        self.losses.saturating_add(self.failures).saturating_add(1) >= MAX_ATTEMPTS
    }

    /// The wait after the attempt at hand has lost its worker: none the first time, when it is most likely
    /// innocent; then longer with each, up to 1 s.
    pub fn wait_after_loss(self) -> Duration {
        match self.losses {
            0 => Duration::ZERO,
            losses => FIRST_WAIT
                .saturating_mul(2_u32.saturating_pow(losses.min(10) - 1))
                .min(LONGEST_WAIT),
        }
    }
}

/// What follows from a lost worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterLoss {
    Again,
    /// It was its own doing.
    Guilty {
        why: String,
    },
    /// Nobody knows whose doing it was, and it was tried often enough.
    GivenUp {
        why: String,
    },
}

/// Decides what follows from a worker that ended as `detail` says.
pub fn after_loss(detail: &str, cause: LossCause, tried: Tried) -> AfterLoss {
    let attempts = tried.losses + 1;
    match cause {
        LossCause::Own => AfterLoss::Guilty {
            why: format!("{detail}, and nothing else ran in it"),
        },
        LossCause::Signalled | LossCause::Unknown if !tried.is_last() => AfterLoss::Again,
        LossCause::Signalled if tried.isolation() == Isolation::Solo => {
            let solo = attempts - SOLO_FROM;
            AfterLoss::Guilty {
                why: format!(
                    "{detail}; it was lost in {attempts} attempts, and nothing else ran during the last \
                     {solo}: user code signals its own process, its parent or their group, or needs more memory \
                     than there is"
                ),
            }
        }
        LossCause::Signalled | LossCause::Unknown => AfterLoss::GivenUp {
            why: format!(
                "{detail}; it was lost in {attempts} attempts, and nothing says that it was this rollout's doing"
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(losses: u32) -> Tried {
        Tried {
            losses,
            failures: 0,
        }
    }

    #[test]
    fn a_suspect_runs_alone_and_then_with_nothing_beside_it() {
        let isolations = [0, 1, 2, 9].map(|losses| lost(losses).isolation());
        assert_eq!(
            isolations,
            [
                Isolation::Shared,
                Isolation::Alone,
                Isolation::Solo,
                Isolation::Solo
            ]
        );
    }

    #[test]
    fn only_a_crash_of_its_own_worker_counts_at_once() {
        let after = after_loss("exited with code 3", LossCause::Own, lost(1));
        let AfterLoss::Guilty { why } = after else {
            panic!("{after:?}")
        };
        assert_eq!(why, "exited with code 3, and nothing else ran in it");
    }

    #[test]
    fn whatever_the_reason_there_are_ten_attempts_at_most() {
        for cause in [LossCause::Signalled, LossCause::Unknown] {
            let mut tried = Tried::default();
            let mut attempts = 1;
            while after_loss("was killed", cause, tried) == AfterLoss::Again {
                tried.losses += 1;
                attempts += 1;
            }
            assert_eq!(attempts, MAX_ATTEMPTS);
        }
        let tried = Tried {
            losses: 7,
            failures: 2,
        };
        assert!(tried.is_last());
    }

    #[test]
    fn the_last_attempt_is_guilty_only_when_nothing_ran_beside_it() {
        assert!(matches!(
            after_loss("was killed", LossCause::Signalled, lost(9)),
            AfterLoss::Guilty { .. }
        ));
        assert!(matches!(
            after_loss("was killed", LossCause::Unknown, lost(9)),
            AfterLoss::GivenUp { .. }
        ));
    }

    #[test]
    fn waits_grow_and_are_bounded() {
        let waits = [0, 1, 2, 5, 9].map(|losses| lost(losses).wait_after_loss().as_millis());
        assert_eq!(waits, [0, 100, 200, 1000, 1000]);
    }
}
