//! Which rollouts a batch is made of, as the store keeps it: enough to make the same batch again.

use osmosis_core::staleness::{GroupId, StalenessHistogram, Window};
use osmosis_core::{JsonText, PolicyVersion, RolloutId};
use osmosis_store::{BatchRecord, Store};
use serde::{Deserialize, Serialize};

use osmosis_core::config::Training;

use crate::crediting::Unit;
use crate::step::{StepInput, StepRollout, step_input, units_of};
use crate::{TrainError, clock};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchContent {
    pub(crate) groups: Vec<GroupContent>,
    /// What was given up since the batch before, so that a resume does not take it up again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) discarded: Vec<GroupId>,
    /// Scored rollouts of its groups that were too old; for the report of a step that is repeated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) stale_rollouts: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A batch as it was when it was formed.
#[derive(Debug)]
pub(crate) struct RepeatedInput {
    pub(crate) input: StepInput,
    /// Of the tokens to train on.
    pub(crate) staleness: StalenessHistogram,
    pub(crate) masked_tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupContent {
    pub(crate) id: GroupId,
    pub(crate) members: Vec<MemberContent>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberContent {
    pub(crate) rollout: RolloutId,
    /// Its stale tokens are masked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) fresh_only: bool,
}

impl BatchContent {
    pub(crate) fn read(record: &BatchRecord) -> Result<Self, TrainError> {
        record.content.read().map_err(|error| {
            TrainError::Internal(format!("batch {} can't be read: {error}", record.number))
        })
    }

    pub(crate) fn record(
        &self,
        number: u64,
        version: PolicyVersion,
    ) -> Result<BatchRecord, TrainError> {
        let content =
            JsonText::of(self).map_err(|error| TrainError::Internal(error.to_string()))?;
        Ok(BatchRecord {
            number,
            version,
            content,
            formed_at_ms: clock::now_ms(),
            acknowledged_at_ms: None,
        })
    }

    /// The same input as when the batch was formed, from what the store has.
    pub(crate) async fn repeat_input(
        &self,
        store: &dyn Store,
        training: &Training,
        self_graded: bool,
        version: PolicyVersion,
    ) -> Result<RepeatedInput, TrainError> {
        let window = Window {
            version,
            max_staleness: training.max_staleness,
        };
        let mut rollouts_of_step = Vec::new();
        let mut staleness = StalenessHistogram::default();
        let mut masked_tokens = 0;
        for group in &self.groups {
            for member in &group.members {
                let found = store.rollout(&member.rollout).await?;
                let units = match &found {
                    Some(record) => units_of(store, record, training, self_graded).await?,
                    None => None,
                };
                let mut units = units.ok_or_else(|| {
                    TrainError::Internal(format!(
                        "rollout `{}` is part of a recorded batch, and has no reward any more",
                        member.rollout
                    ))
                })?;
                if member.fresh_only {
                    masked_tokens += mask(&window, &mut units);
                }
                count(&window, &units, &mut staleness);
                rollouts_of_step.push(StepRollout {
                    id: member.rollout.clone(),
                    visit: group.id,
                    units: Some(units),
                });
            }
        }
        Ok(RepeatedInput {
            input: step_input(rollouts_of_step, training),
            staleness,
            masked_tokens,
        })
    }
}

/// Takes the tokens that are too old out of what is trained on; returns how many these are.
pub(super) fn mask(window: &Window, units: &mut [Unit]) -> u64 {
    let rows = units.iter_mut().flat_map(|unit| &mut unit.rows);
    rows.map(|row| window.mask(&row.versions, &mut row.loss_mask))
        .sum()
}

/// Counts the tokens that are trained on by their age.
fn count(window: &Window, units: &[Unit], into: &mut StalenessHistogram) {
    let rows = units.iter().flat_map(|unit| &unit.rows);
    let tokens = rows.flat_map(|row| row.versions.iter().zip(&row.loss_mask));
    for (version, trained) in tokens {
        if *trained && let Some(age) = version.and_then(|version| window.staleness(version)) {
            into.add(age, 1);
        }
    }
}
