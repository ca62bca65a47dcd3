//! What the rollouts of a step give to learn from.

use std::collections::BTreeMap;

use osmosis_core::config::Training;
use osmosis_core::credit::Credit;
use osmosis_core::{Outcome, PolicyVersion, RolloutId, SampleId};
use osmosis_store::{RolloutRecord, Store};
use osmosis_tokens::TokenRecord;

use crate::batch::{AdvantagedSample, Batch, Weighing, batch, fresh};
use crate::crediting::{Crediting, Records, Unit};
use crate::group::{GroupMember, GroupName, Groups, groups};
use crate::{SkipReason, TrainError};

/// The lesson of a step.
#[derive(Debug)]
pub(crate) struct Lesson {
    pub(crate) groups: Groups,
    pub(crate) batch: Batch,
    pub(crate) stale: u64,
}

impl Lesson {
    /// Why there is nothing to learn, when there is not.
    pub(crate) fn skipped(&self) -> Option<SkipReason> {
        if !self.batch.rows.is_empty() {
            None
        } else if self.groups.used > 0 {
            Some(SkipReason::NoTokens)
        } else if self.groups.no_variance > 0 {
            Some(SkipReason::NoVariance)
        } else {
            Some(SkipReason::NoCompleteGroup)
        }
    }
}

/// Reads the tokens of a step's rollouts and makes the batch of them. `version` is that of the weights
/// that are about to be updated.
pub(crate) async fn lesson(
    store: &dyn Store,
    rollouts: &[RolloutRecord],
    training: &Training,
    self_graded: bool,
    version: PolicyVersion,
) -> Result<Lesson, TrainError> {
    let mut members = Vec::with_capacity(rollouts.len());
    let mut units_of: BTreeMap<RolloutId, Vec<Unit>> = BTreeMap::new();
    let mut stale = 0;
    for rollout in rollouts {
        let mut compared = None;
        if let Some(scored) = &rewards_of(rollout) {
            let records = read_records(store, &rollout.id).await?;
            refuse_untrainable(rollout, scored, &records)?;
            let credits = if self_graded {
                read_credits(store, &rollout.id).await?
            } else {
                BTreeMap::new()
            };
            let units = Crediting {
                training,
                records,
                credits,
            }
            .units(&rollout.id, scored)?;
            if units
                .iter()
                .all(|unit| fresh(&unit.rows, version, training.max_staleness))
            {
                let earned = units.iter().map(|unit| (unit.group.clone(), unit.reward));
                compared = Some(earned.collect());
                units_of.insert(rollout.id.clone(), units);
            } else {
                stale += 1;
            }
        }
        members.push(GroupMember {
            id: rollout.id.clone(),
            row_index: rollout.row_index,
            rewards: compared,
        });
    }
    let groups = groups(&members, training.algorithm, training.incomplete_groups);
    let weighing = Weighing {
        algorithm: training.algorithm,
        samples: groups.samples,
        max_response_length: training.max_response_length,
    };
    let samples = advantaged(rollouts, &groups, units_of);
    Ok(Lesson {
        batch: batch(&samples, weighing),
        groups,
        stale,
    })
}

/// The rewards of the kept samples of a scored rollout.
pub(crate) fn rewards_of(rollout: &RolloutRecord) -> Option<Vec<(SampleId, f64)>> {
    match rollout.outcome.as_ref()? {
        Outcome::Scored { .. } => Some(
            rollout
                .rewards
                .iter()
                .filter_map(|(name, reward)| Some((name.clone(), (*reward)?.get())))
                .collect(),
        ),
        Outcome::AgentFailed { .. }
        | Outcome::TimedOut { .. }
        | Outcome::Ungraded { .. }
        | Outcome::Rejected { .. }
        | Outcome::InfrastructureFailed { .. }
        | Outcome::Cancelled => None,
    }
}

pub(crate) async fn read_records(store: &dyn Store, id: &RolloutId) -> Result<Records, TrainError> {
    let mut records = Records::new();
    for (sample, bytes) in store.token_records(id).await? {
        let record = TokenRecord::decode(&bytes).map_err(|source| TrainError::Tokens {
            rollout: id.clone(),
            source,
        })?;
        records.entry(sample).or_default().push(record);
    }
    Ok(records)
}

/// What the parts of a rollout's samples earned, where they have rewards of their own.
async fn read_credits(
    store: &dyn Store,
    id: &RolloutId,
) -> Result<BTreeMap<SampleId, Credit>, TrainError> {
    let samples = store.samples(id).await?.into_iter();
    let read = samples.map(|sample| {
        let credit = Credit::read(sample.extra_fields.as_ref()).map_err(|error| {
            TrainError::Internal(format!("the rewards of `{id}` can't be read: {error}"))
        })?;
        Ok((sample.id, credit))
    });
    read.collect()
}

/// A reward for something the policy had no part in teaches nothing, and would do so in every step:
/// better to stop at the first.
fn refuse_untrainable(
    rollout: &RolloutRecord,
    scored: &[(SampleId, f64)],
    rows: &Records,
) -> Result<(), TrainError> {
    let why = if rollout.calls.model_calls == 0 {
        "its agent never called the policy".to_owned()
    } else if rows.is_empty() {
        if rollout.calls.completion_tokens == 0 {
            // Every call failed (a prompt beyond the context, say): a real, if sad, result.
            return Ok(());
        }
        "its model calls were recorded without tokens".to_owned()
    } else if scored.iter().any(|(name, _)| rows.contains_key(name)) {
        return Ok(());
    } else {
        let list = |names: Vec<&SampleId>| -> String {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            names.join(", ")
        };
        format!(
            "the policy was called for {}, and the reward is for {}",
            list(rows.keys().collect()),
            list(scored.iter().map(|(name, _)| name).collect()),
        )
    };
    Err(TrainError::NoPolicyCall {
        rollout: rollout.id.clone(),
        why,
    })
}

/// What has an advantage, in the order of the step's rollouts: the order decides how sums round.
fn advantaged(
    rollouts: &[RolloutRecord],
    groups: &Groups,
    mut units_of: BTreeMap<RolloutId, Vec<Unit>>,
) -> Vec<AdvantagedSample> {
    let mut samples = Vec::new();
    for rollout in rollouts {
        let mut taken: BTreeMap<GroupName, usize> = BTreeMap::new();
        for Unit { group, rows, .. } in units_of.remove(&rollout.id).unwrap_or_default() {
            let place = taken.entry(group.clone()).or_default();
            let key = (rollout.id.clone(), group.clone());
            let advantages = groups.advantages.get(&key);
            if let Some(advantage) = advantages.and_then(|all| all.get(*place)) {
                samples.push(AdvantagedSample {
                    rollout: rollout.id.clone(),
                    sample: group.sample,
                    advantage: *advantage,
                    rows,
                });
            }
            *place += 1;
        }
    }
    samples
}
