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
    /// Why it can't be said who wrote the records; left out of a run whose records are authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unauthenticated: Option<String>,
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
    rewards_are_binary: bool,
    /// In order of the index.
    pub(super) rows: Vec<RowResult>,
}

/// The rollouts of one row: some dozen bytes each, however long they were.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct RowResult {
    pub(super) row_index: u64,
    pub(super) outcomes: OutcomeCounts,
    /// Of the rollouts that ran.
    pub(super) passed: u64,
    /// Of the scored ones.
    pub(super) rewards: Vec<f64>,
    /// What each that ran took.
    pub(super) usage: Vec<Usage>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Usage {
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
        self.passed += u64::from(outcome.passed());
        self.rewards.extend(outcome.reward().map(Reward::get));
        self.usage.push(Usage {
            model_calls: rollout.calls.model_calls,
            prompt_tokens: rollout.calls.prompt_tokens,
            completion_tokens: rollout.calls.completion_tokens,
            agent_ms: rollout.durations.agent,
        });
    }

    pub(super) fn ran(&self) -> u64 {
        self.outcomes.ran()
    }

    /// Rollouts that failed outside the agent or were cancelled.
    pub(super) fn lost(&self) -> u64 {
        self.outcomes.total() - self.outcomes.ran()
    }

    /// The mean reward of the scored rollouts.
    pub(super) fn reward(&self) -> Option<f64> {
        let count = self.rewards.len() as f64;
        (count > 0.0).then(|| self.rewards.iter().sum::<f64>() / count)
    }

    pub(super) fn tested(&self) -> RowOutcome {
        RowOutcome {
            ran: self.ran(),
            passed: self.passed,
            failed: self.outcomes.failed(),
            rewards: self.rewards.clone(),
            lost: self.lost(),
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

    /// Whether every reward is 0 or 1.
    pub(super) fn has_binary_rewards(&self) -> bool {
        self.rewards_are_binary
    }

    /// Rollouts without a result.
    pub(super) fn missing(&self) -> u64 {
        self.counts.total() - self.counts.done
    }

    pub(super) fn report(&self) -> ComparedRun {
        ComparedRun {
            run_name: self.name.clone(),
            unauthenticated: self.store.authenticity().missing(),
            status: self.status,
            rollouts: self.counts.total(),
            without_result: self.missing(),
            outcomes: self.outcomes,
        }
    }
}
