//! The steps of a training, and which rollouts each of them learnt from.

use std::collections::BTreeMap;

use osmosis_core::{JsonText, RolloutId};
use osmosis_store::{RunRecord, Store};
use osmosis_train::schedule::Schedule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::RolloutLine;
use crate::runs::Pinned;
use crate::train::{HeldOutRows, training_of};
use crate::{RunError, RunErrorKind};

/// `GET /api/v1/runs/{run}/steps`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingSteps {
    pub items: Vec<TrainingStep>,
    pub total_count: u64,
}

/// The numbers of a step, under the names of `metrics.jsonl`. Step 0 is the evaluation before training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingStep {
    pub step: u64,
    /// The weights after the step.
    pub version: u64,
    /// Milliseconds since 1970.
    pub finished_at_ms: i64,
    pub metrics: JsonText,
}

/// The `data` of `GET /api/v1/runs/{run}/steps/{step}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepRollouts {
    pub step: u64,
    /// `null` when the run does not record which rollouts the step learnt from.
    pub groups: Option<Vec<StepGroup>>,
}

/// The rollouts of one dataset row in a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepGroup {
    pub row_index: u64,
    pub rollouts: Vec<RolloutLine>,
}

impl TrainingSteps {
    pub async fn of(store: &dyn Store) -> Result<Self, RunError> {
        let steps = store.steps().await?;
        Ok(Self {
            total_count: steps.len() as u64,
            items: steps
                .into_iter()
                .map(|step| TrainingStep {
                    step: step.step,
                    version: step.version.0,
                    finished_at_ms: step.finished_at_ms,
                    metrics: step.metrics,
                })
                .collect(),
        })
    }
}

impl StepRollouts {
    pub async fn of(store: &dyn Store, record: &RunRecord, step: u64) -> Result<Self, RunError> {
        let ids = match batch(store, step).await? {
            Some(ids) => Some(ids),
            None => planned(record, step)?,
        };
        let Some(ids) = ids else {
            return Ok(Self { step, groups: None });
        };
        let mut groups: Vec<StepGroup> = vec![];
        let mut places: BTreeMap<u64, usize> = BTreeMap::new();
        for rollout in store.rollouts_by_id(&ids).await? {
            let row_index = rollout.row_index;
            let place = *places.entry(row_index).or_insert_with(|| {
                groups.push(StepGroup {
                    row_index,
                    rollouts: vec![],
                });
                groups.len() - 1
            });
            groups[place].rollouts.push(RolloutLine::of(&rollout));
        }
        Ok(Self {
            step,
            groups: Some(groups),
        })
    }
}

/// A batch that the order of arrival decided, as `osmosis-train` records it.
#[derive(Debug, Deserialize)]
struct BatchContent {
    groups: Vec<BatchGroup>,
}

#[derive(Debug, Deserialize)]
struct BatchGroup {
    members: Vec<BatchMember>,
}

#[derive(Debug, Deserialize)]
struct BatchMember {
    rollout: RolloutId,
}

async fn batch(store: &dyn Store, step: u64) -> Result<Option<Vec<RolloutId>>, RunError> {
    let batches = store.batches().await?;
    let Some(batch) = batches.into_iter().find(|batch| batch.number == step) else {
        return Ok(None);
    };
    let content: BatchContent = batch
        .content
        .read()
        .map_err(|error| RunError::failed(RunErrorKind::RunDamaged, error.to_string()))?;
    let members = content.groups.into_iter().flat_map(|group| group.members);
    Ok(Some(members.map(|member| member.rollout).collect()))
}

/// Where rollouts and updates take turns, the schedule decides.
fn planned(record: &RunRecord, step: u64) -> Result<Option<Vec<RolloutId>>, RunError> {
    let pinned = Pinned::read(&record.pinned)?;
    let (Some(training), Some(rows), Some(seed)) = (
        training_of(record),
        pinned.remembered.dataset_rows,
        pinned.training_seed(),
    ) else {
        return Ok(None);
    };
    if training.max_staleness > 0 || step == 0 {
        return Ok(None);
    }
    let held_out = HeldOutRows::of(&training, &pinned);
    if held_out == HeldOutRows::Unknown {
        return Ok(None);
    }
    let rows: Vec<u64> = (0..rows).filter(|row| !held_out.has(*row)).collect();
    let Ok(schedule) = Schedule::new(&rows, &training, seed) else {
        return Ok(None);
    };
    let planned = schedule.possible_rollouts(step).into_iter();
    Ok(Some(planned.map(|rollout| rollout.id).collect()))
}
