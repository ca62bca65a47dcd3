//! What follows from what an executor answered: pure functions, no I/O.

mod after_agent;
mod after_grade;
#[cfg(test)]
pub(crate) mod fixtures;
mod score;

use std::time::Duration;

use osmosis_core::config::ModelErrors;
use osmosis_core::{ErrorCategory, Failure, Outcome, RewardRange};

pub use self::after_agent::{AfterAgent, after_agent};
pub use self::after_grade::{AfterGrade, Grades, after_grade};
pub use self::score::{score, within_range, without_grade};
use crate::attempts::Tried;

/// The numbers that decisions depend on.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub agent_limit: Duration,
    pub grade_limit: Duration,
    pub pass_threshold: f64,
    /// Where the rewards of samples must lie.
    pub reward_range: Option<RewardRange>,
    pub max_failures: u32,
    pub model_errors: ModelErrors,
}

impl Rules {
    /// Whether what failed because of the infrastructure may be tried again.
    fn allows_another(&self, tried: Tried) -> bool {
        tried.failures + 1 < self.max_failures && !tried.is_last()
    }
}

/// Another attempt at the whole rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Again {
    pub reason: String,
    /// Its worker was lost: the next attempt runs more alone, so that it can be told whose doing it was.
    pub lost: bool,
    /// An infrastructure failure that counts against the limit.
    pub failed: bool,
}

/// Another attempt at what was lost where it ran, or its end when there were enough.
fn lost_elsewhere(
    detail: String,
    retry: bool,
    tried: Tried,
    rules: &Rules,
) -> Result<Again, Outcome> {
    if retry && rules.allows_another(tried) {
        return Ok(Again {
            reason: detail,
            lost: false,
            failed: true,
        });
    }
    Err(Outcome::InfrastructureFailed {
        failure: Failure::new(ErrorCategory::HttpError, "rollout_server", detail),
    })
}

/// Its worker was lost again and again, and nothing says that this was its own doing.
fn worker_lost(why: &str) -> Outcome {
    Outcome::InfrastructureFailed {
        failure: Failure::new(
            ErrorCategory::AgentError,
            "worker_lost",
            format!("the worker {why}"),
        ),
    }
}

/// The wait before attempt number `failures + 1`: doubles with each failure, up to 30 s.
pub fn retry_wait(first: Duration, failures: u32) -> Duration {
    first
        .saturating_mul(2_u32.saturating_pow(failures.min(10)))
        .min(Duration::from_secs(30))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_and_is_bounded() {
        let first = Duration::from_millis(500);
        assert_eq!(retry_wait(first, 0), first);
        assert_eq!(retry_wait(first, 2), Duration::from_secs(2));
        assert_eq!(retry_wait(first, 60), Duration::from_secs(30));
    }
}
