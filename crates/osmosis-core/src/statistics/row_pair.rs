//! What two runs did with the same row.

use super::Pair;

/// What a run did with one dataset row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RowOutcome {
    /// Rollouts that ran; the next three are among these.
    pub ran: u64,
    pub passed: u64,
    pub scored: u64,
    pub reward_sum: f64,
    /// Rollouts that failed outside the agent or were cancelled. They are in no rate, and have no reward.
    pub lost: u64,
}

impl RowOutcome {
    /// Rollouts that ran and have no reward.
    pub fn failed(&self) -> u64 {
        self.ran - self.scored
    }

    pub(super) fn is_scored_throughout(&self) -> bool {
        self.failed() == 0 && self.lost == 0
    }
}

/// The same row in two runs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RowPair {
    pub first: RowOutcome,
    pub second: RowOutcome,
}

impl RowPair {
    pub(super) fn pair(&self, cluster: fn(&RowOutcome) -> (u64, f64)) -> Pair {
        Pair {
            first: cluster(&self.first),
            second: cluster(&self.second),
        }
    }

    /// Whether no rollout is missing from the rewards of one run that may be among those of the other.
    pub fn is_scored_alike(&self) -> bool {
        let throughout = |row: &RowOutcome| row.is_scored_throughout();
        let nowhere = |row: &RowOutcome| row.scored == 0;
        let rows = [self.first, self.second];
        rows.iter().all(throughout) || rows.iter().all(nowhere)
    }

    /// Whether the rewards are 1 for what passed and 0 for the rest.
    pub(super) fn rewards_are_passes(&self) -> bool {
        [self.first, self.second]
            .iter()
            .all(|row| (row.reward_sum - row.passed as f64).abs() < 1e-9)
    }
}
