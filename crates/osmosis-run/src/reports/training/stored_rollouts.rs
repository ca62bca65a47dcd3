//! The rollouts of a training as its store has them: the one place where reports of a training count rollouts.

use std::sync::Arc;

use osmosis_core::failure_groups::FailureGroups;
use osmosis_core::statistics::OutcomeCounts;
use osmosis_core::{Outcome, OutcomeKind, RolloutId};
use osmosis_data::conversation::is_cut_at_limit;
use osmosis_store::{
    CallBody, CallPurpose, CallRecord, RolloutPages, RolloutQuery, RolloutRecord, Store,
};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RunError;

/// Rollouts whose answers are looked at: enough to say what is typical.
const ANSWERS_OF: usize = 256;

/// How many rollouts a training has, and how they ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingRollouts {
    /// Those to learn from.
    pub training: RolloutCounts,
    /// Those of evaluations on held-out rows.
    pub held_out: RolloutCounts,
    /// Rollouts to learn from that ended and are part of no step: training ended, or was interrupted, before the next
    /// one.
    pub in_no_step: u64,
}

/// Rollouts of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutCounts {
    /// With a result or without.
    pub rollouts: u64,
    pub without_result: u64,
    /// Those that say something about the agent: scored or failed, without infrastructure failures and cancelled ones.
    pub ran: u64,
    /// Those that ran and have no reward.
    pub failed: u64,
    pub passed: u64,
    pub outcomes: OutcomeCounts,
    /// The mean over scored rollouts.
    pub reward_mean: Option<f64>,
    /// Passed / all that ran.
    pub pass_rate: Option<f64>,
    pub completion_tokens: u64,
}

/// What the store has, and what conclusions are drawn from.
#[derive(Debug, Default)]
pub(super) struct StoredRollouts {
    pub(super) training: RolloutCounts,
    pub(super) held_out: RolloutCounts,
    /// How any rollout failed.
    pub(super) failures: FailureGroups,
    /// Those to learn from that ended after a moment.
    pub(super) attempts: Attempts,
}

/// Attempts that a conclusion is about.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempts {
    pub(super) ran: u64,
    pub(super) scored: u64,
    pub(super) passed: u64,
    /// The lowest and the highest reward.
    pub(super) rewards: Option<(f64, f64)>,
    pub(super) failures: FailureGroups,
    /// The first ones that made model calls.
    called: Vec<RolloutId>,
}

/// Answers that were looked at, and those of them that ended at the token limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CutAnswers {
    pub(super) cut: u64,
    pub(super) of: u64,
}

impl StoredRollouts {
    /// Reads every rollout once. `since` is the moment, in milliseconds since 1970, after which attempts are collected.
    pub(super) async fn of(store: &dyn Store, since: i64) -> Result<Self, RunError> {
        let mut stored = Self::default();
        let mut rewards = RewardSums::default();
        let mut row: Vec<RolloutRecord> = vec![];
        let mut pages = RolloutPages::new(store, RolloutQuery::default());
        while let Some(page) = pages.next().await? {
            for rollout in page {
                if row
                    .last()
                    .is_some_and(|last| last.row_index != rollout.row_index)
                {
                    stored.add_row(&row, since, &mut rewards);
                    row.clear();
                }
                row.push(rollout);
            }
        }
        stored.add_row(&row, since, &mut rewards);
        stored.training.finish(rewards.training);
        stored.held_out.finish(rewards.held_out);
        Ok(stored)
    }

    /// The rollouts of one row. A row that is run greedily is held out: nothing else is.
    fn add_row(&mut self, rollouts: &[RolloutRecord], since: i64, rewards: &mut RewardSums) {
        let held_out = rollouts.iter().any(|rollout| rollout.id.is_greedy());
        for rollout in rollouts {
            if let Some(outcome) = &rollout.outcome {
                let (row, run) = (rollout.row_index, rollout.run_index);
                self.failures.add(row, run, outcome);
            }
            if held_out {
                self.held_out.add(rollout, &mut rewards.held_out);
                continue;
            }
            self.training.add(rollout, &mut rewards.training);
            if rollout.finished_at_ms.is_some_and(|ended| ended > since) {
                self.attempts.add(rollout);
            }
        }
    }

    pub(super) fn infrastructure_failed(&self) -> u64 {
        [&self.training, &self.held_out]
            .map(|counts| counts.outcomes.infrastructure_failed)
            .iter()
            .sum()
    }
}

#[derive(Debug, Default)]
struct RewardSums {
    training: f64,
    held_out: f64,
}

impl RolloutCounts {
    /// Rollouts with a result.
    pub fn finished(&self) -> u64 {
        self.rollouts - self.without_result
    }

    fn add(&mut self, rollout: &RolloutRecord, reward_sum: &mut f64) {
        self.rollouts += 1;
        self.completion_tokens += rollout.calls.completion_tokens;
        let Some(outcome) = &rollout.outcome else {
            self.without_result += 1;
            return;
        };
        self.outcomes.add(outcome.kind());
        self.passed += u64::from(outcome.passed());
        *reward_sum += outcome.reward().map_or(0.0, osmosis_core::Reward::get);
    }

    fn finish(&mut self, reward_sum: f64) {
        self.ran = self.outcomes.ran();
        self.failed = self.outcomes.failed();
        let share = |sum: f64, of: u64| (of > 0).then(|| sum / of as f64);
        self.reward_mean = share(reward_sum, self.outcomes.scored);
        self.pass_rate = share(self.passed as f64, self.ran);
    }
}

impl Attempts {
    fn add(&mut self, rollout: &RolloutRecord) {
        let ran = |outcome: &&Outcome| outcome.kind().ran();
        let Some(outcome) = rollout.outcome.as_ref().filter(ran) else {
            return;
        };
        self.ran += 1;
        self.scored += u64::from(outcome.kind() == OutcomeKind::Scored);
        self.passed += u64::from(outcome.passed());
        self.failures
            .add(rollout.row_index, rollout.run_index, outcome);
        if let Some(reward) = outcome.reward().map(osmosis_core::Reward::get) {
            let (low, high) = self.rewards.unwrap_or((reward, reward));
            self.rewards = Some((low.min(reward), high.max(reward)));
        }
        if rollout.calls.model_calls > 0 && self.called.len() < ANSWERS_OF {
            self.called.push(rollout.id.clone());
        }
    }

    pub(super) fn failed(&self) -> u64 {
        self.ran - self.scored
    }

    /// How many answers of the policy were cut at the token limit, of the first attempts.
    pub(super) async fn cut_answers(&self, store: &dyn Store) -> Result<CutAnswers, RunError> {
        let counted = Arc::new(Mutex::new(CutAnswers::default()));
        let counting = Arc::clone(&counted);
        let count = move |call: &CallRecord, body: &CallBody| {
            if call.status == 200 {
                let mut counted = counting.lock();
                counted.of += 1;
                counted.cut += u64::from(is_cut_at_limit(&call.dialect, &body.response));
            }
        };
        store
            .visit_calls(&self.called, CallPurpose::Policy, Box::new(count))
            .await?;
        let counted = *counted.lock();
        Ok(counted)
    }
}

impl CutAnswers {
    /// Whether it is what most answers have in common.
    pub(super) fn are_typical(self) -> bool {
        self.of > 0 && self.cut * 2 >= self.of
    }
}
