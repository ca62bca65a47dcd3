//! What a list of rollouts is filtered and sorted by, from the store or from a grid.

use osmosis_core::{Outcome, OutcomeKind, Reward};
use osmosis_store::RolloutRecord;

use crate::reports::{RolloutGrid, RolloutState};

#[derive(Debug, Clone, Copy)]
pub(super) struct RolloutFacts {
    pub(super) row_index: u64,
    pub(super) run_index: u32,
    pub(super) state: RolloutState,
    pub(super) passed: bool,
    pub(super) reward: Option<f64>,
    pub(super) completion_tokens: u64,
    /// Time of the agent and of grading.
    pub(super) work_ms: f64,
    /// Only where the list is sorted by it.
    pub(super) row_variance: Option<f64>,
}

impl RolloutFacts {
    pub(super) fn of(rollout: &RolloutRecord, row_variance: Option<f64>) -> Self {
        let outcome = rollout.outcome.as_ref();
        Self {
            row_index: rollout.row_index,
            run_index: rollout.run_index,
            state: RolloutState::of(rollout),
            passed: outcome.is_some_and(Outcome::passed),
            reward: outcome.and_then(Outcome::reward).map(Reward::get),
            completion_tokens: rollout.calls.completion_tokens,
            work_ms: rollout.durations.agent + rollout.durations.grade,
            row_variance,
        }
    }

    pub(super) fn at(grid: &RolloutGrid, place: usize, row_variance: Option<f64>) -> Self {
        Self {
            row_index: grid.row_index[place],
            run_index: grid.run_index[place],
            state: grid.states[usize::from(grid.state[place])],
            passed: grid.passed[place] == 1,
            reward: grid.reward[place],
            completion_tokens: grid.completion_tokens[place],
            work_ms: grid.duration_ms[place] as f64,
            row_variance,
        }
    }

    pub(super) fn outcome(&self) -> Option<OutcomeKind> {
        match self.state {
            RolloutState::Waiting | RolloutState::Running => None,
            RolloutState::Scored => Some(OutcomeKind::Scored),
            RolloutState::AgentFailed => Some(OutcomeKind::AgentFailed),
            RolloutState::TimedOut => Some(OutcomeKind::TimedOut),
            RolloutState::Ungraded => Some(OutcomeKind::Ungraded),
            RolloutState::Rejected => Some(OutcomeKind::Rejected),
            RolloutState::InfrastructureFailed => Some(OutcomeKind::InfrastructureFailed),
            RolloutState::Cancelled => Some(OutcomeKind::Cancelled),
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.outcome().is_some()
    }
}

/// The variance of the rewards of a row; `None` with less than two.
pub(super) fn variance(rewards: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let count = rewards.clone().count();
    if count < 2 {
        return None;
    }
    let count = count as f64;
    let mean = rewards.clone().sum::<f64>() / count;
    let squares = rewards.map(|reward| (reward - mean).powi(2));
    Some(squares.sum::<f64>() / count)
}
