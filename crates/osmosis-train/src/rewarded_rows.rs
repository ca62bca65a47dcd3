//! The training rows of one rollout with its rewards, for trainers outside.

use std::collections::BTreeMap;

use osmosis_core::config::Training;
use osmosis_core::credit::Credit;
use osmosis_core::{Sample, SampleId};
use osmosis_store::{RolloutRecord, Store};
use osmosis_tokens::{TokenRecord, TrainingRow};

use crate::TrainError;
use crate::crediting::{Crediting, Records, Unit};
use crate::schedule::runs_per_visit;
use crate::step::{read_records, rewards_of};

/// The training rows of a rollout, or why there are none.
#[derive(Debug, Clone, PartialEq)]
pub enum RolloutRows {
    /// At least one row, and each of them has a token to train on.
    Rows(Vec<RewardedRows>),
    /// It has no reward.
    Unscored,
    /// Nobody told the token ids.
    NoTokens { why: String },
    /// There are token ids, but none of them can be trained on.
    Nothing { why: String },
}

/// Something with one reward, and the rows that earned it.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardedRows {
    pub sample: SampleId,
    /// From 0; always 0 for rewards of whole samples.
    pub turn: u32,
    pub reward: f64,
    pub rows: Vec<TrainingRow>,
}

/// The training rows of a rollout with its samples, just as a step of training makes them. `calls` is where its
/// calls are: another run than the rollout's when it was graded again.
pub async fn rows_of(
    calls: &dyn Store,
    rollout: &RolloutRecord,
    samples: &[Sample],
    training: &Training,
) -> Result<RolloutRows, TrainError> {
    let Some(scored) = rewards_of(rollout).filter(|scored| !scored.is_empty()) else {
        return Ok(RolloutRows::Unscored);
    };
    let records = read_records(calls, &rollout.id).await?;
    let why_unknown = why_unknown(rollout, &records);
    // Fields of the user's own may have any shape.
    let credits: BTreeMap<SampleId, Credit> = samples
        .iter()
        .filter_map(|sample| {
            let credit = Credit::read(sample.extra_fields.as_ref()).ok()?;
            Some((sample.id.clone(), credit))
        })
        .collect();
    let has_sequences = credits.values().any(|credit| !credit.sequences.is_empty());
    if let Some(why) = why_unknown.filter(|_| !has_sequences) {
        return Ok(RolloutRows::NoTokens { why });
    }
    let crediting = Crediting {
        training,
        records,
        credits,
    };
    let units = match crediting.units(&rollout.id, &scored) {
        Ok(units) => units,
        Err(TrainError::UnusableSequence { why, .. }) => return Ok(RolloutRows::Nothing { why }),
        Err(other) => return Err(other),
    };
    let rewarded: Vec<RewardedRows> = units.into_iter().filter_map(RewardedRows::of).collect();
    if rewarded.is_empty() {
        let why =
            "no token was sampled whole, with logprobs at its temperature, for what has the reward";
        return Ok(RolloutRows::Nothing {
            why: why.to_owned(),
        });
    }
    Ok(RolloutRows::Rows(rewarded))
}

impl RewardedRows {
    /// Without rows that have nothing to train on; `None` when no other is left.
    fn of(unit: Unit) -> Option<Self> {
        let mut rows = unit.rows;
        rows.retain(|row| row.loss_mask.contains(&true));
        (!rows.is_empty()).then_some(Self {
            sample: unit.group.sample,
            turn: unit.group.turn,
            reward: unit.reward,
            rows,
        })
    }
}

/// Why no call has token ids, when none has.
fn why_unknown(rollout: &RolloutRecord, records: &Records) -> Option<String> {
    if rollout.calls.model_calls == 0 && records.is_empty() {
        return Some("its agent never called the policy".to_owned());
    }
    let mut unknown = None;
    for record in records.values().flatten() {
        match TokenRecord::ids_unknown(record) {
            Some(why) => unknown = Some(why.to_owned()),
            None => return None,
        }
    }
    Some(unknown.unwrap_or_else(|| "its model calls were recorded without tokens".to_owned()))
}

/// Which visit to its dataset row a rollout of a training run belongs to, from 0: each epoch has its own run
/// indices. Only rollouts of one visit are compared.
pub fn visit_of(training: &Training, run_index: u32) -> u32 {
    run_index / runs_per_visit(training)
}

#[cfg(test)]
mod tests {
    use osmosis_core::staleness::Straggler;

    use super::*;

    #[test]
    fn each_epoch_is_a_visit_of_its_own() {
        let training = Training {
            n_samples_per_prompt: 4,
            ..Training::default()
        };
        let visits: Vec<u32> = [0, 3, 4, 7, 8].map(|run| visit_of(&training, run)).into();
        assert_eq!(visits, [0, 0, 1, 1, 2]);
        let topped_up = Training {
            max_staleness: 1,
            stragglers: Straggler::TopUp,
            ..training
        };
        assert_eq!([7, 8].map(|run| visit_of(&topped_up, run)), [0, 1]);
    }
}
