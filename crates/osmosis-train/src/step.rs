//! What the rollouts of a step give to learn from.

use std::collections::BTreeMap;

use osmosis_core::config::Training;
use osmosis_core::credit::Credit;
use osmosis_core::staleness::GroupId;
use osmosis_core::{Outcome, PolicyVersion, RolloutId, SampleId};
use osmosis_store::{RolloutRecord, Store};
use osmosis_tokens::TokenRecord;

use crate::batch::{AdvantagedSample, Batch, Weighing, batch, fresh, trained_tokens};
use crate::crediting::{Crediting, Records, Unit};
use crate::group::{GroupMember, GroupName, Groups, groups};
use crate::{SkipReason, TrainError};

/// What a step's update is computed from.
#[derive(Debug)]
pub(crate) struct StepInput {
    pub(crate) groups: Groups,
    pub(crate) batch: Batch,
    /// What the batch is made of.
    pub(crate) samples: Vec<AdvantagedSample>,
    /// Rollouts that were left out because of their age.
    pub(crate) stale: u64,
    /// Visits whose rollouts sampled the very same tokens.
    pub(crate) identical: u64,
    /// `None` unless answers may be too long.
    pub(crate) overlong: Option<OverlongNumbers>,
}

/// What long answers lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OverlongNumbers {
    /// Samples that lost something.
    pub(crate) penalized: u64,
    /// The mean over all samples with a reward.
    pub(crate) penalty_mean: f64,
}

impl StepInput {
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

/// A rollout of a step, as far as there is something to learn from it.
#[derive(Debug, Clone)]
pub(crate) struct StepRollout {
    pub(crate) id: RolloutId,
    /// Which visit to which dataset row it belongs to.
    pub(crate) visit: GroupId,
    /// `None` when it was not scored, or is too old.
    pub(crate) units: Option<Vec<Unit>>,
}

/// What a rollout earned, and the tokens that earned it; `None` unless it was scored.
pub(crate) async fn units_of(
    store: &dyn Store,
    rollout: &RolloutRecord,
    training: &Training,
    self_graded: bool,
) -> Result<Option<Vec<Unit>>, TrainError> {
    if rollout.id.is_greedy() {
        return Err(TrainError::Internal(format!(
            "rollout `{}` was decoded greedily to measure, and is not to be trained on",
            rollout.id
        )));
    }
    let Some(scored) = &rewards_of(rollout) else {
        return Ok(None);
    };
    let records = read_records(store, &rollout.id).await?;
    refuse_untrainable(rollout, scored, &records)?;
    let crediting = Crediting {
        training,
        records,
        credits: read_credits(store, &rollout.id, self_graded).await?,
    };
    crediting.units(&rollout.id, scored).map(Some)
}

/// The rollouts of a planned step, and how many were left out: all were sampled by `version`, the weights that are about
/// to be updated, or are left out.
pub(crate) async fn planned_rollouts(
    store: &dyn Store,
    rollouts: &[RolloutRecord],
    training: &Training,
    self_graded: bool,
    version: PolicyVersion,
) -> Result<(Vec<StepRollout>, u64), TrainError> {
    let mut rollouts_of_step = Vec::with_capacity(rollouts.len());
    let mut stale = 0;
    for rollout in rollouts {
        let units = units_of(store, rollout, training, self_graded).await?;
        let is_fresh = |unit: &Unit| fresh(&unit.rows, version, training.max_staleness);
        let units = match units {
            Some(units) if units.iter().all(is_fresh) => Some(units),
            Some(_) => {
                stale += 1;
                None
            }
            None => None,
        };
        rollouts_of_step.push(StepRollout {
            id: rollout.id.clone(),
            // In one step a row is visited once.
            visit: GroupId(rollout.row_index),
            units,
        });
    }
    Ok((rollouts_of_step, stale))
}

/// The visits whose groups are all without variance, in the order of the step.
pub(crate) fn flat_visits(rollouts_of_step: &[StepRollout], training: &Training) -> Vec<GroupId> {
    let visits = rollouts_of_step.chunk_by(|one, other| one.visit == other.visit);
    let flat = visits.filter_map(|visit| {
        let groups = groups_of(visit, training);
        let flat = groups.used == 0 && groups.incomplete == 0 && groups.no_variance > 0;
        flat.then(|| visit.first().map(|one| one.visit)).flatten()
    });
    flat.collect()
}

pub(crate) fn groups_of(rollouts_of_step: &[StepRollout], training: &Training) -> Groups {
    let members: Vec<GroupMember> = rollouts_of_step
        .iter()
        .map(|one| group_member(&one.id, one.visit, one.units.as_deref()))
        .collect();
    groups(&members, training.algorithm, training.incomplete_groups)
}

/// Visits whose rollouts sampled the very same tokens.
pub(crate) fn identical_visits(rollouts_of_step: &[StepRollout]) -> u64 {
    let mut visits: BTreeMap<GroupId, Vec<&[Unit]>> = BTreeMap::new();
    for one in rollouts_of_step {
        let units = one.units.as_deref().unwrap_or_default();
        visits.entry(one.visit).or_default().push(units);
    }
    visits.values().filter(|units| are_identical(units)).count() as u64
}

/// Compares the rollouts of each visit and makes the batch of them. Their order decides how sums round.
pub(crate) fn step_input(rollouts_of_step: Vec<StepRollout>, training: &Training) -> StepInput {
    let groups = groups_of(&rollouts_of_step, training);
    let identical = identical_visits(&rollouts_of_step);
    let weighing = Weighing {
        normalization: training.normalization(),
        samples: groups.samples,
        tokens: compared_tokens(&rollouts_of_step, &groups),
        max_response_length: training.max_response_length,
    };
    let overlong = training
        .overlong
        .map(|_| OverlongNumbers::of(&rollouts_of_step));
    let samples = advantaged(rollouts_of_step, &groups);
    StepInput {
        batch: batch(&samples, weighing),
        groups,
        samples,
        stale: 0,
        identical,
        overlong,
    }
}

/// The tokens of the groups that could be compared.
fn compared_tokens(rollouts_of_step: &[StepRollout], groups: &Groups) -> u64 {
    let units = rollouts_of_step.iter().flat_map(|one| {
        let units = one.units.iter().flatten();
        units.filter(|unit| {
            let key = (one.id.clone(), unit.group.clone());
            groups.advantages.contains_key(&key) || groups.flat.contains(&key)
        })
    });
    let rows = units.flat_map(|unit| &unit.rows);
    rows.map(trained_tokens).sum()
}

impl OverlongNumbers {
    fn of(rollouts_of_step: &[StepRollout]) -> Self {
        let units = || {
            rollouts_of_step
                .iter()
                .flat_map(|one| one.units.iter().flatten())
        };
        let sum: f64 = units().map(|unit| unit.penalty).sum();
        Self {
            penalized: units().filter(|unit| unit.penalty > 0.0).count() as u64,
            penalty_mean: sum / units().count().max(1) as f64,
        }
    }
}

/// Whether several rollouts sampled the same tokens, to the last one. That their rewards are equal says
/// nothing about the task then.
pub(crate) fn are_identical(rollouts: &[&[Unit]]) -> bool {
    let tokens = |units: &[Unit]| -> Vec<Vec<u32>> {
        let rows = units.iter().flat_map(|unit| &unit.rows);
        rows.map(|row| row.ids.clone()).collect()
    };
    let Some((first, others)) = rollouts.split_first() else {
        return false;
    };
    let first = tokens(first);
    !others.is_empty() && !first.is_empty() && others.iter().all(|other| tokens(other) == first)
}

/// What groups without variance are due to, for a warning.
pub(crate) fn why_flat(all_identical: bool, attempts: u32) -> String {
    if all_identical {
        format!(
            "all {attempts} attempts at each row are identical, token for token. The task is not to blame: \
             either sampling is not random (look at `rollout_temperature`), or the policy has become \
             certain of its answers (look at `entropy`)"
        )
    } else {
        "answers may be cut at the token limit, the task may be too easy or too hard for this model, or the grader \
         gives every rollout the same"
            .to_owned()
    }
}

/// What groups need to know of a rollout.
pub(crate) fn group_member(id: &RolloutId, visit: GroupId, units: Option<&[Unit]>) -> GroupMember {
    let earned = |units: &[Unit]| {
        let each = units.iter();
        each.map(|unit| (unit.group.clone(), unit.reward - unit.penalty))
            .collect()
    };
    GroupMember {
        id: id.clone(),
        visit,
        rewards: units.map(earned),
    }
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

/// What the parts of a rollout's samples earned, where they have rewards of their own. The other fields of a workflow
/// that does not grade itself may have any shape.
async fn read_credits(
    store: &dyn Store,
    id: &RolloutId,
    self_graded: bool,
) -> Result<BTreeMap<SampleId, Credit>, TrainError> {
    let samples = store.samples(id).await?.into_iter();
    let read = samples.map(|sample| match Credit::read(sample.extra_fields.as_ref()) {
        Ok(credit) => Ok((sample.id, credit)),
        Err(error) if self_graded => Err(TrainError::Internal(format!(
            "the rewards of `{id}` can't be read: {error}"
        ))),
        Err(_) => Ok((sample.id, Credit::default())),
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
fn advantaged(rollouts_of_step: Vec<StepRollout>, groups: &Groups) -> Vec<AdvantagedSample> {
    let mut samples = Vec::new();
    for StepRollout { id, visit, units } in rollouts_of_step {
        let mut taken: BTreeMap<GroupName, usize> = BTreeMap::new();
        for unit in units.unwrap_or_default() {
            let place = taken.entry(unit.group.clone()).or_default();
            let key = (id.clone(), unit.group.clone());
            let advantages = groups.advantages.get(&key);
            if let Some(advantage) = advantages.and_then(|all| all.get(*place)) {
                samples.push(AdvantagedSample {
                    rollout: id.clone(),
                    visit,
                    sample: unit.group.sample,
                    reward: unit.reward,
                    advantage: *advantage,
                    rows: unit.rows,
                });
            }
            *place += 1;
        }
    }
    samples
}
