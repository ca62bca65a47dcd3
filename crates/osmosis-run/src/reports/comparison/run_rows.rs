//! One run of a comparison: what it is, and its results added up by dataset row.

use std::sync::Arc;

use osmosis_core::statistics::{OutcomeCounts, RowOutcome};
use osmosis_core::{Outcome, Reward, RewardRange, RunName};
use osmosis_store::{QueueCounts, RolloutPages, RolloutQuery, RolloutRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::RunState;
use crate::RunError;
use crate::runs::{Pinned, ReadRun};

/// A run of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedRun {
    pub run_name: RunName,
    pub status: RunState,
    pub rollouts: u64,
    pub without_result: u64,
    pub outcomes: OutcomeCounts,
}

/// A run to be compared, and its rows as long as they are needed.
#[derive(Debug)]
pub(super) struct RunRows {
    pub(super) name: RunName,
    pub(super) status: RunState,
    pub(super) pinned: Pinned,
    pub(super) counts: QueueCounts,
    pub(super) outcomes: OutcomeCounts,
    pub(super) store: Arc<dyn Store>,
    /// Whether every reward is 0 or 1.
    rewards_are_binary: bool,
    /// In order of the index.
    pub(super) rows: Vec<RowResult>,
}

/// The rollouts of one row, added up: less than two hundred bytes, however long they were.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct RowResult {
    pub(super) row_index: u64,
    pub(super) outcomes: OutcomeCounts,
    /// Rollouts that ran; all below are over these.
    pub(super) ran: u64,
    pub(super) passed: u64,
    pub(super) scored: u64,
    pub(super) reward_sum: f64,
    pub(super) model_calls: u64,
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) agent_ms: f64,
}

impl RowResult {
    fn add(&mut self, rollout: &RolloutRecord, outcome: &Outcome) {
        self.outcomes.add(outcome.kind());
        if !outcome.kind().ran() {
            return;
        }
        self.ran += 1;
        self.passed += u64::from(outcome.passed());
        if let Some(reward) = outcome.reward() {
            self.scored += 1;
            self.reward_sum += reward.get();
        }
        self.model_calls += rollout.calls.model_calls;
        self.prompt_tokens += rollout.calls.prompt_tokens;
        self.completion_tokens += rollout.calls.completion_tokens;
        self.agent_ms += rollout.durations.agent;
    }

    pub(super) fn tested(&self) -> RowOutcome {
        RowOutcome {
            ran: self.ran,
            passed: self.passed,
            scored: self.scored,
            reward_sum: self.reward_sum,
            lost: self.outcomes.total() - self.outcomes.ran(),
        }
    }
}

impl RunRows {
    pub(super) async fn open(run: ReadRun) -> Result<Self, RunError> {
        let record = run.record(run.folder.name()).await?;
        let ReadRun { store, held, .. } = run;
        Ok(Self {
            name: record.name,
            status: RunState::of(record.status, held),
            pinned: Pinned::read(&record.pinned)?,
            counts: store.counts().await?,
            outcomes: OutcomeCounts::default(),
            rewards_are_binary: true,
            store,
            rows: vec![],
        })
    }

    pub(super) async fn read_rows(&mut self) -> Result<(), RunError> {
        let mut rows: Vec<RowResult> = vec![];
        let each = |rollout: &RolloutRecord| {
            if rows.last().map(|row| row.row_index) != Some(rollout.row_index) {
                rows.push(RowResult {
                    row_index: rollout.row_index,
                    ..RowResult::default()
                });
            }
            if let (Some(row), Some(outcome)) = (rows.last_mut(), &rollout.outcome) {
                self.outcomes.add(outcome.kind());
                let reward = outcome.reward().map(Reward::get);
                self.rewards_are_binary &= reward.is_none_or(|r| RewardRange::UNIT.is_end(r));
                row.add(rollout, outcome);
            }
        };
        let pages = RolloutPages::new(&*self.store, RolloutQuery::default());
        pages.for_each(each).await?;
        self.rows = rows;
        Ok(())
    }

    pub(super) fn drop_rows(&mut self) {
        self.rows = vec![];
    }

    /// Where its rewards lie: as its config states, or as rewards that are all 0 or 1 imply.
    pub(super) fn reward_range(&self) -> Option<RewardRange> {
        let implied = self.rewards_are_binary.then_some(RewardRange::UNIT);
        self.pinned.reward_range().or(implied)
    }

    /// Rollouts without a result.
    pub(super) fn missing(&self) -> u64 {
        self.counts.total() - self.counts.done
    }

    pub(super) fn report(&self) -> ComparedRun {
        ComparedRun {
            run_name: self.name.clone(),
            status: self.status,
            rollouts: self.counts.total(),
            without_result: self.missing(),
            outcomes: self.outcomes,
        }
    }
}
