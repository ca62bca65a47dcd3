//! A batch that was taken, and what is known of its step.

use std::collections::BTreeMap;
use std::time::Duration;

use osmosis_core::PolicyVersion;
use osmosis_core::staleness::{DiscardReason, StalenessHistogram};
use osmosis_store::RolloutRecord;

use crate::report::numbers_of;
use crate::step::Lesson;
use crate::{AsyncReport, StepReport};

/// A batch to train on.
#[derive(Debug)]
pub(crate) struct TakenBatch {
    /// From 1.
    pub(crate) number: u64,
    /// Of the weights that are about to be updated.
    pub(crate) version: PolicyVersion,
    /// The pass over the rows that its first group belongs to.
    pub(crate) epoch: u64,
    pub(crate) lesson: Lesson,
    pub(crate) staleness: StalenessHistogram,
    pub(crate) masked_tokens: u64,
    pub(crate) stale_rollouts: u64,
}

impl TakenBatch {
    /// What is known of a step when its batch is taken. Rewards and outcomes are those of all rollouts that
    /// ended since the batch before, not of the chosen ones alone.
    pub(crate) fn report(&self, recent: &Recent, waited: Duration) -> StepReport {
        let numbers = numbers_of(&recent.rollouts, None);
        let given_up = |reason| recent.discarded.get(&reason).copied().unwrap_or_default();
        let groups = &self.lesson.groups;
        StepReport {
            step: self.number,
            version: self.number,
            epoch: self.epoch,
            reward_mean: numbers.reward.mean,
            reward_std: numbers.reward.std,
            pass_rate: numbers.pass_rate,
            groups_used: groups.used,
            groups_no_variance: groups.no_variance + given_up(DiscardReason::NoVariance),
            groups_incomplete: groups.incomplete + given_up(DiscardReason::Incomplete),
            rollouts: numbers.outcomes,
            rollouts_stale: self.stale_rollouts,
            rows: self.lesson.batch.rows.len() as u64,
            tokens_trained: self.lesson.batch.tokens,
            tokens_sampled: numbers.completion_tokens,
            skipped: self.lesson.skipped(),
            asynchronous: Some(AsyncReport {
                staleness_mean: self.staleness.mean(),
                staleness_max: self.staleness.max(),
                staleness: self.staleness.clone(),
                tokens_masked: self.masked_tokens,
                groups_stale: given_up(DiscardReason::Stale),
                time_wait_rollouts: waited.as_secs_f64(),
                time_wait_update: 0.0,
            }),
            ..StepReport::default()
        }
    }
}

/// What ended since it was asked the last time.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Trained on or not.
    pub(crate) rollouts: Vec<RolloutRecord>,
    pub(crate) discarded: BTreeMap<DiscardReason, u64>,
}
