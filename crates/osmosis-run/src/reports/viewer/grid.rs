//! Every rollout of a run in columns: small enough for a page to hold a hundred thousand.

use osmosis_core::{Outcome, OutcomeKind};
use osmosis_store::{RolloutPages, RolloutQuery, RolloutRecord, RunRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RunError;
use crate::runs::Pinned;
use crate::train::{HeldOutRows, training_of};

/// How a rollout stands: its outcome, or that it has none yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    Waiting,
    Running,
    Scored,
    AgentFailed,
    TimedOut,
    Ungraded,
    Rejected,
    InfrastructureFailed,
    Cancelled,
}

impl RolloutState {
    /// In the order of their codes.
    pub const ALL: [Self; 9] = [
        Self::Waiting,
        Self::Running,
        Self::Scored,
        Self::AgentFailed,
        Self::TimedOut,
        Self::Ungraded,
        Self::Rejected,
        Self::InfrastructureFailed,
        Self::Cancelled,
    ];

    pub fn of(rollout: &RolloutRecord) -> Self {
        match rollout.outcome.as_ref().map(Outcome::kind) {
            None if rollout.attempts > 0 => Self::Running,
            None => Self::Waiting,
            Some(OutcomeKind::Scored) => Self::Scored,
            Some(OutcomeKind::AgentFailed) => Self::AgentFailed,
            Some(OutcomeKind::TimedOut) => Self::TimedOut,
            Some(OutcomeKind::Ungraded) => Self::Ungraded,
            Some(OutcomeKind::Rejected) => Self::Rejected,
            Some(OutcomeKind::InfrastructureFailed) => Self::InfrastructureFailed,
            Some(OutcomeKind::Cancelled) => Self::Cancelled,
        }
    }

    fn code(self) -> u8 {
        let place = Self::ALL.iter().position(|state| *state == self);
        u8::try_from(place.unwrap_or_default()).unwrap_or_default()
    }
}

/// `GET /api/v1/runs/{run}/grid`: a column for each fact, in order of row and run index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutGrid {
    /// What the numbers in `state` mean.
    pub states: Vec<RolloutState>,
    pub row_index: Vec<u64>,
    pub run_index: Vec<u32>,
    /// An index into `states`.
    pub state: Vec<u8>,
    /// `null` unless scored.
    pub reward: Vec<Option<f64>>,
    /// 1 for those that passed.
    pub passed: Vec<u8>,
    /// Time of the agent and of grading, in milliseconds.
    pub duration_ms: Vec<u64>,
    pub completion_tokens: Vec<u64>,
    pub model_calls: Vec<u64>,
    /// In milliseconds after `began_at_ms`; `null` while it has no result.
    pub finished_after_ms: Vec<Option<i64>>,
    /// Milliseconds since 1970.
    pub began_at_ms: i64,
    /// 1 for rollouts of a training's evaluations, 2 for those of them that were decoded greedily; empty for other
    /// runs.
    pub held_out: Vec<u8>,
}

impl RolloutGrid {
    pub async fn of(store: &dyn Store, record: &RunRecord) -> Result<Self, RunError> {
        let held_out = match training_of(record) {
            Some(training) => Some(HeldOutRows::of(&training, &Pinned::read(&record.pinned)?)),
            None => None,
        };
        let mut grid = Self {
            states: RolloutState::ALL.to_vec(),
            row_index: vec![],
            run_index: vec![],
            state: vec![],
            reward: vec![],
            passed: vec![],
            duration_ms: vec![],
            completion_tokens: vec![],
            model_calls: vec![],
            finished_after_ms: vec![],
            began_at_ms: record.created_at_ms,
            held_out: vec![],
        };
        let each = |rollout: &RolloutRecord| {
            grid.add(rollout);
            if let Some(held_out) = &held_out {
                let measured = match (rollout.id.is_greedy(), held_out.has(rollout.row_index)) {
                    (true, _) => 2,
                    (false, true) => 1,
                    (false, false) => 0,
                };
                grid.held_out.push(measured);
            }
        };
        let pages = RolloutPages::new(store, RolloutQuery::default());
        pages.for_each(each).await?;
        Ok(grid)
    }

    pub fn len(&self) -> usize {
        self.row_index.len()
    }

    pub fn is_empty(&self) -> bool {
        self.row_index.is_empty()
    }

    fn add(&mut self, rollout: &RolloutRecord) {
        let outcome = rollout.outcome.as_ref();
        self.row_index.push(rollout.row_index);
        self.run_index.push(rollout.run_index);
        self.state.push(RolloutState::of(rollout).code());
        let reward = outcome.and_then(Outcome::reward);
        self.reward.push(reward.map(osmosis_core::Reward::get));
        self.passed
            .push(u8::from(outcome.is_some_and(Outcome::passed)));
        self.duration_ms
            .push(whole_ms(rollout.durations.agent + rollout.durations.grade));
        self.completion_tokens.push(rollout.calls.completion_tokens);
        self.model_calls.push(rollout.calls.model_calls);
        let finished = rollout.finished_at_ms.filter(|_| outcome.is_some());
        self.finished_after_ms
            .push(finished.map(|at_ms| at_ms - self.began_at_ms));
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a duration; a cast of what is out of range is the nearest number"
)]
fn whole_ms(ms: f64) -> u64 {
    ms.round() as u64
}
