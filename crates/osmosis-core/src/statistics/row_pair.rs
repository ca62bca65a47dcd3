//! What two runs did with the same row.

use super::RowValues;

/// What a run did with one dataset row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowOutcome {
    /// Rollouts that ran; the next two are among these.
    pub ran: u64,
    pub passed: u64,
    /// Those without a reward.
    pub failed: u64,
    /// Of the scored rollouts.
    pub rewards: Vec<f64>,
    /// Rollouts that failed outside the agent or were cancelled. They are in no rate, and have no reward.
    pub lost: u64,
}

/// The same row in two runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowPair {
    pub first: RowOutcome,
    pub second: RowOutcome,
}

impl RowPair {
    pub(super) fn values(&self, of: fn(&RowOutcome) -> Vec<f64>) -> RowValues {
        RowValues {
            first: of(&self.first),
            second: of(&self.second),
        }
    }

    fn both(&self) -> [&RowOutcome; 2] {
        [&self.first, &self.second]
    }

    /// Whether no rollout that failed in one run may be among the scored ones of the other.
    pub fn is_scored_alike(&self) -> bool {
        let throughout = self.both().iter().all(|row| row.failed == 0);
        throughout || self.both().iter().all(|row| row.rewards.is_empty())
    }

    pub(super) fn has_lost(&self) -> bool {
        self.both().iter().any(|row| row.lost > 0)
    }

    /// Whether the rewards are 1 for what passed and 0 for the rest.
    pub(super) fn rewards_are_passes(&self) -> bool {
        self.both().iter().all(|row| {
            let sum: f64 = row.rewards.iter().sum();
            (sum - row.passed as f64).abs() < 1e-9
        })
    }
}

/// So many of so many.
pub(super) fn share(part: u64, whole: u64) -> Vec<f64> {
    (0..whole)
        .map(|place| f64::from(u8::from(place < part)))
        .collect()
}
