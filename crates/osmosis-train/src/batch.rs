//! From advantages and recorded tokens to what the learner is given.
//!
//! What a token counts (`w` in the learner's objective), with `N` the samples of all groups that could be
//! compared. Those without variance are part of the mean, as in the papers, but add nothing to the sum: their
//! rows are left out. With `kl_coef = 0` that is the papers' objective, since their advantages are 0. With
//! `kl_coef > 0` it is not: there, such groups are still pulled towards the start model, and here they are not.
//!
//! - `sample` (GRPO): `1 / (N · tokens of its sample)`: the mean over the tokens of a sample, then over samples.
//! - `batch` (DAPO, REINFORCE++): `1 / tokens of the N samples`: the mean over all tokens.
//! - `constant` (Dr. GRPO): `1 / (N · max_response_length)`: no sample is favoured for its length.
//! - `none` (RLOO): `1 / N`: the log-probability of the sample as a whole.
//!
//! A sample that splits into several rows counts once: its tokens are counted over all of its rows, and
//! every row has the sample's advantage. Tokens that `stale_rows = "mask"` took out are not counted: under GRPO
//! the tokens that are left of such a sample count more.

use osmosis_core::config::LossNormalization;
use osmosis_core::learner::LossRow;
use osmosis_core::staleness::GroupId;
use osmosis_core::{PolicyVersion, RolloutId, SampleId};
use osmosis_tokens::TrainingRow;

/// A sample to learn from.
#[derive(Debug, Clone, PartialEq)]
pub struct AdvantagedSample {
    pub rollout: RolloutId,
    /// Which visit to which dataset row it belongs to.
    pub visit: GroupId,
    pub sample: SampleId,
    pub reward: f64,
    pub advantage: f64,
    pub rows: Vec<TrainingRow>,
}

/// What one update is made of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub rows: Vec<LossRow>,
    /// Where each row comes from.
    pub origins: Vec<RowOrigin>,
    /// Tokens with a weight.
    pub tokens: u64,
}

/// Where a row of a batch comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct RowOrigin {
    pub rollout: RolloutId,
    /// Of each token: the weights that sampled it.
    pub versions: Vec<Option<PolicyVersion>>,
}

/// How tokens are weighed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weighing {
    pub normalization: LossNormalization,
    /// `Groups::samples`
    pub samples: u64,
    /// Of these samples, the tokens that are trained on or would be if their group had variance.
    pub tokens: u64,
    /// Dr. GRPO's constant.
    pub max_response_length: u32,
}

impl Weighing {
    fn weight(&self, tokens: u64) -> f64 {
        let samples = self.samples.max(1) as f64;
        match self.normalization {
            LossNormalization::Sample => 1.0 / (samples * tokens.max(1) as f64),
            LossNormalization::Batch => 1.0 / self.tokens.max(1) as f64,
            LossNormalization::Constant => 1.0 / (samples * f64::from(self.max_response_length)),
            LossNormalization::None => 1.0 / samples,
        }
    }
}

/// The rows to train on, in the order of the samples. Rows without a token to train on are left out.
pub fn batch(samples: &[AdvantagedSample], weighing: Weighing) -> Batch {
    let mut batch = Batch::default();
    for sample in samples {
        let tokens: u64 = sample.rows.iter().map(trained_tokens).sum();
        let weight = weighing.weight(tokens);
        batch.tokens += tokens;
        for row in &sample.rows {
            if trained_tokens(row) > 0 {
                batch.rows.push(loss_row(row, weight, sample.advantage));
                batch.origins.push(RowOrigin {
                    rollout: sample.rollout.clone(),
                    versions: row.versions.clone(),
                });
            }
        }
    }
    batch
}

/// The token at 0 has nothing before it that it could be predicted from.
fn trained(row: &TrainingRow) -> impl Iterator<Item = bool> {
    row.loss_mask
        .iter()
        .enumerate()
        .map(|(at, trained)| at > 0 && *trained)
}

pub(crate) fn trained_tokens(row: &TrainingRow) -> u64 {
    trained(row).filter(|trained| *trained).count() as u64
}

fn loss_row(row: &TrainingRow, weight: f64, advantage: f64) -> LossRow {
    let on_trained = |value: f64| -> Vec<f32> {
        trained(row)
            .map(|trained| if trained { narrow(value) } else { 0.0 })
            .collect()
    };
    LossRow {
        ids: row.ids.clone(),
        weights: on_trained(weight),
        advantages: on_trained(advantage),
        sampled_logprobs: row.logprobs.clone(),
        proximal_logprobs: None,
        reference_logprobs: None,
        temperatures: row.temperatures.clone(),
        constrained: row.constrained.clone(),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the learner computes in f32; both values are of moderate size"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}

/// Whether these weights may be trained with these rows: every sampled token comes from a version that
/// is not in the future and at most `max_staleness` versions old.
pub fn fresh(rows: &[TrainingRow], version: PolicyVersion, max_staleness: u32) -> bool {
    rows.iter().flat_map(|row| &row.versions).all(|sampled| {
        sampled.is_none_or(|sampled| {
            version
                .0
                .checked_sub(sampled.0)
                .is_some_and(|age| age <= u64::from(max_staleness))
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A row of which the tokens under `true` were sampled.
    fn row(mask: &[bool]) -> TrainingRow {
        TrainingRow {
            id: "main/0".to_owned(),
            calls: vec![0],
            ids: (0..).take(mask.len()).collect(),
            loss_mask: mask.to_vec(),
            logprobs: mask.iter().map(|s| if *s { -0.5 } else { 0.0 }).collect(),
            versions: mask.iter().map(|s| s.then_some(PolicyVersion(3))).collect(),
            temperatures: mask.iter().map(|s| if *s { 0.7 } else { 1.0 }).collect(),
            constrained: vec![],
        }
    }

    fn sample(run: u32, advantage: f64, rows: Vec<TrainingRow>) -> AdvantagedSample {
        AdvantagedSample {
            rollout: RolloutId::of(0, run),
            sample: SampleId::main(),
            visit: GroupId(0),
            reward: 0.0,
            advantage,
            rows,
        }
    }

    fn weighing(normalization: LossNormalization, samples: u64) -> Weighing {
        Weighing {
            normalization,
            samples,
            tokens: 8,
            max_response_length: 100,
        }
    }

    fn sum(rows: &[LossRow]) -> f32 {
        rows.iter().flat_map(|row| &row.weights).sum()
    }

    #[test]
    fn a_rollout_that_splits_into_rows_counts_once() {
        let whole = [sample(0, 1.0, vec![row(&[false, true, true, true, true])])];
        let split = [sample(
            0,
            1.0,
            vec![row(&[false, true]), row(&[false, true, true, false, true])],
        )];
        let whole = batch(&whole, weighing(LossNormalization::Sample, 2));
        let split = batch(&split, weighing(LossNormalization::Sample, 2));
        assert_eq!((whole.tokens, split.tokens), (4, 4));
        assert_eq!(split.rows.len(), 2);
        assert!((sum(&whole.rows) - 0.5).abs() < 1e-6);
        assert!((sum(&split.rows) - 0.5).abs() < 1e-6);
        assert_eq!(split.rows[1].advantages, [0.0, 1.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn weights_are_those_computed_by_hand() {
        let text = include_str!("../../osmosis-core/fixtures/objectives.json");
        let cases: serde_json::Value = serde_json::from_str(text).unwrap();
        let case = &cases["weights"];
        let numbers = |value: &serde_json::Value| -> Vec<f64> {
            let numbers = value.as_array().unwrap().iter();
            numbers.map(|number| number.as_f64().unwrap()).collect()
        };
        let lengths: Vec<usize> = serde_json::from_value(case["lengths"].clone()).unwrap();
        let flat: Vec<u64> =
            serde_json::from_value(case["lengths_of_equal_rewards"].clone()).unwrap();
        let samples: Vec<AdvantagedSample> = (0..)
            .zip(&lengths)
            .map(|(run, tokens)| {
                let mask: Vec<bool> = (0..=*tokens).map(|at| at > 0).collect();
                sample(run, 1.0, vec![row(&mask)])
            })
            .collect();
        for (name, normalization) in [
            ("sample", LossNormalization::Sample),
            ("batch", LossNormalization::Batch),
            ("constant", LossNormalization::Constant),
            ("none", LossNormalization::None),
        ] {
            let weighing = Weighing {
                normalization,
                samples: (lengths.len() + flat.len()) as u64,
                tokens: lengths.iter().sum::<usize>() as u64 + flat.iter().sum::<u64>(),
                max_response_length: 100,
            };
            let batch = batch(&samples, weighing);
            for (row, expected) in batch.rows.iter().zip(numbers(&case["weights"][name])) {
                let found = &row.weights[1..];
                let close = |weight: &f32| (f64::from(*weight) - expected).abs() < 1e-7 * expected;
                assert!(
                    found.iter().all(close),
                    "{name}: {found:?}, by hand {expected}"
                );
            }
        }
    }

    #[test]
    fn rows_without_a_sampled_token_are_left_out() {
        let samples = [sample(0, 1.0, vec![row(&[false, false]), row(&[true])])];
        assert_eq!(
            batch(&samples, weighing(LossNormalization::Sample, 1)),
            Batch::default()
        );
    }

    #[test]
    fn tokens_of_other_weights_than_allowed_are_stale() {
        let rows = [row(&[false, true])];
        assert!(fresh(&rows, PolicyVersion(3), 0));
        assert!(!fresh(&rows, PolicyVersion(4), 0));
        assert!(fresh(&rows, PolicyVersion(4), 1));
        assert!(!fresh(&rows, PolicyVersion(2), 5), "from the future");
    }

    proptest! {
        #[test]
        fn the_mean_over_samples_is_a_mean(
            masks in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<bool>(), 1..12), 1..4), 1..6)
        ) {
            let samples: Vec<_> = (0..).zip(&masks).map(|(at, rows)| {
                sample(at, 1.0, rows.iter().map(|mask| row(mask)).collect())
            }).collect();
            let batch = batch(&samples, weighing(LossNormalization::Sample, samples.len() as u64));
            let with_tokens = masks.iter()
                .filter(|rows| rows.iter().any(|mask| mask[1..].contains(&true)))
                .count();
            let expected = with_tokens as f32 / masks.len() as f32;
            prop_assert!((sum(&batch.rows) - expected).abs() < 1e-5);
            for row in &batch.rows {
                prop_assert!(row.weights[0].abs() < f32::EPSILON);
                prop_assert_eq!(row.weights.len(), row.ids.len());
                prop_assert_eq!(row.advantages.len(), row.ids.len());
            }
        }
    }
}
