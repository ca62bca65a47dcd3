//! A batch that was taken, and what is known of its step.

use std::collections::BTreeMap;
use std::time::Duration;

use osmosis_core::PolicyVersion;
use osmosis_core::staleness::{DiscardReason, StalenessHistogram};
use osmosis_store::{BatchRecord, RolloutRecord};

use super::RolloutStream;
use super::content::{BatchContent, RepeatedInput};
use crate::report::numbers_of;
use crate::step::StepInput;
use crate::{AsyncReport, StepReport, TrainError};

/// A batch to train on.
#[derive(Debug)]
pub(crate) struct TakenBatch {
    /// From 1.
    pub(crate) number: u64,
    /// Of the weights that are about to be updated.
    pub(crate) version: PolicyVersion,
    /// The pass over the rows that its first group belongs to.
    pub(crate) epoch: u64,
    pub(crate) input: StepInput,
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
        let groups = &self.input.groups;
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
            rows: self.input.batch.rows.len() as u64,
            tokens_trained: self.input.batch.tokens,
            tokens_sampled: numbers.completion_tokens,
            skipped: self.input.skipped(),
            overlong_penalized: self.input.overlong.map(|numbers| numbers.penalized),
            overlong_penalty_mean: self.input.overlong.map(|numbers| numbers.penalty_mean),
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

impl RolloutStream {
    /// A recorded batch, the same as when it was formed, with the rollouts of its groups and of those that
    /// were given up before it. Why these were given up, and what else ended by then, nobody knows any more.
    pub(crate) async fn form_again(
        &mut self,
        record: &BatchRecord,
    ) -> Result<(TakenBatch, Recent), TrainError> {
        let content = BatchContent::read(record)?;
        let again = content
            .repeat_input(
                &*self.store,
                &self.training,
                self.self_graded,
                record.version,
            )
            .await?;
        let groups = content.groups.iter().map(|group| group.id);
        let mut ids = Vec::new();
        for group in groups.chain(content.discarded.iter().copied()) {
            for member in self.numbering.members(group) {
                ids.push(self.numbering.rollout(member)?.id);
            }
        }
        let mut rollouts = self.store.rollouts_by_id(&ids).await?;
        rollouts.retain(|rollout| rollout.outcome.is_some());
        let epoch = content.groups.first().map(|group| group.id);
        let RepeatedInput {
            input,
            staleness,
            masked_tokens,
        } = again;
        let taken = TakenBatch {
            number: record.number,
            version: record.version,
            epoch: epoch.map_or(0, |group| self.numbering.epoch(group)),
            input,
            staleness,
            masked_tokens,
            stale_rollouts: content.stale_rollouts,
        };
        let recent = Recent {
            rollouts,
            discarded: BTreeMap::new(),
        };
        Ok((taken, recent))
    }
}
