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
use crate::{AsyncReport, StepReport, TrainError, UnusedGroups};

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
    /// What ended of its groups, and of those that were given up since the batch before: every group is in one step, so
    /// every rollout is counted once, over resumes too.
    pub(crate) rollouts: Vec<RolloutRecord>,
}

/// Groups that were given up since the last batch.
pub(crate) type GivenUp = BTreeMap<DiscardReason, u64>;

impl TakenBatch {
    /// What is known of a step when its batch is taken.
    pub(crate) fn report(&self, given_up: &GivenUp, waited: Duration) -> StepReport {
        let numbers = numbers_of(&self.rollouts, None);
        let given_up = |reason| given_up.get(&reason).copied().unwrap_or_default();
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

impl RolloutStream {
    /// A recorded batch, the same as when it was formed. Why groups were given up before it is not recorded.
    pub(crate) async fn form_again(
        &mut self,
        record: &BatchRecord,
    ) -> Result<TakenBatch, TrainError> {
        let content = BatchContent::read(record)?;
        let again = content
            .repeat_input(
                &*self.store,
                &self.training,
                self.self_graded,
                record.version,
            )
            .await?;
        let rollouts = self.ended_of(&content).await?;
        let epoch = content.groups.first().map(|group| group.id);
        let RepeatedInput {
            input,
            staleness,
            masked_tokens,
        } = again;
        Ok(TakenBatch {
            number: record.number,
            version: record.version,
            epoch: epoch.map_or(0, |group| self.numbering.epoch(group)),
            input,
            staleness,
            masked_tokens,
            stale_rollouts: content.stale_rollouts,
            rollouts,
        })
    }

    /// The rollouts with a result of the groups that a batch trains on or gives up.
    pub(super) async fn ended_of(
        &mut self,
        content: &BatchContent,
    ) -> Result<Vec<RolloutRecord>, TrainError> {
        let groups = content.groups.iter().map(|group| group.id);
        let mut ids = Vec::new();
        for group in groups.chain(content.discarded.iter().copied()) {
            for member in self.numbering.members(group) {
                ids.push(self.numbering.rollout(member)?.id);
            }
        }
        let mut rollouts = self.store.rollouts_by_id(&ids).await?;
        rollouts.retain(|rollout| rollout.outcome.is_some());
        Ok(rollouts)
    }

    /// Groups that ended in no batch so far.
    pub(crate) fn unused_groups(&mut self) -> UnusedGroups {
        let given_up = self.take_given_up();
        let count = |reason| given_up.get(&reason).copied().unwrap_or_default();
        UnusedGroups {
            no_variance: count(DiscardReason::NoVariance),
            identical: self.flat_identical,
            incomplete: count(DiscardReason::Incomplete),
            stale: count(DiscardReason::Stale),
        }
    }
}
