//! Whether the learner confirms the logprobs of tokens that its own weights sampled.

use osmosis_core::learner::LossRow;
use osmosis_core::{PolicyVersion, RolloutId};

use crate::batch::RowOrigin;

/// Sampler and learner compute in the same precision, from the same weights and ids: their logprobs of a
/// token differ by about 1e-6, and by less than 1e-4 in all tests. Beyond these bounds, in nats, a
/// ratio compares different things: other weights, another context, another temperature.
const MAX_MEAN_MISMATCH: f64 = 0.002;
const MAX_TOKEN_MISMATCH: f64 = 0.05;

/// Tokens that the weights themselves sampled, whose logprobs they don't confirm.
#[derive(Debug, Clone, PartialEq)]
pub struct LogprobMismatch {
    /// Over the tokens that these weights sampled.
    pub mean: f64,
    pub max: f64,
    pub tokens: u64,
    /// Where the largest one is.
    pub rollout: RolloutId,
    /// The token's place in its row.
    pub position: usize,
    pub sampled: f32,
    pub learned: f32,
    /// How many times the usual bounds are allowed.
    tolerance: f64,
}

impl LogprobMismatch {
    /// The bound on the mean.
    pub fn max_mean(&self) -> f64 {
        MAX_MEAN_MISMATCH * self.tolerance
    }

    /// The bound on one token.
    pub fn max_token(&self) -> f64 {
        MAX_TOKEN_MISMATCH * self.tolerance
    }

    /// What is wrong with the logprobs of a batch before the first update, when something is. Only tokens
    /// of `version`, the weights that are about to be updated, can be compared, and of these only such as
    /// follow no token of others: a sequence that goes on over a swap keeps what older weights computed of
    /// the tokens before it, which the learner computes anew.
    pub(crate) fn find(
        rows: &[LossRow],
        origins: &[RowOrigin],
        logprobs: &[Vec<f32>],
        version: PolicyVersion,
        tolerance: f64,
    ) -> Option<Self> {
        let mut found: Option<Self> = None;
        let (mut sum, mut tokens) = (0.0, 0_u64);
        for ((row, origin), logprobs) in rows.iter().zip(origins).zip(logprobs) {
            let others = |sampled: &Option<PolicyVersion>| sampled.is_some_and(|v| v != version);
            let mixed = origin.versions.iter().position(others);
            let own = logprobs
                .iter()
                .enumerate()
                .take(mixed.unwrap_or(usize::MAX));
            for (position, learned) in own {
                if row.weights[position] == 0.0 || origin.versions[position] != Some(version) {
                    continue;
                }
                let sampled = row.sampled_logprobs[position];
                let size = f64::from((learned - sampled).abs());
                // One that is not a number is the largest of all.
                let size = if size.is_nan() { f64::INFINITY } else { size };
                sum += size;
                tokens += 1;
                if found.as_ref().is_none_or(|worst| size > worst.max) {
                    found = Some(Self {
                        mean: 0.0,
                        max: size,
                        tokens: 0,
                        rollout: origin.rollout.clone(),
                        position,
                        sampled,
                        learned: *learned,
                        tolerance,
                    });
                }
            }
        }
        let mean = sum / tokens.max(1) as f64;
        let found = found.map(|worst| Self {
            mean,
            tokens,
            ..worst
        });
        found.filter(|found| found.mean > found.max_mean() || found.max > found.max_token())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(learned: &[f32], version: u64) -> Option<LogprobMismatch> {
        let count = learned.len();
        let row = LossRow {
            ids: vec![1; count],
            weights: (0..count)
                .map(|at| if at == 0 { 0.0 } else { 0.5 })
                .collect(),
            advantages: vec![1.0; count],
            sampled_logprobs: vec![-1.0; count],
            proximal_logprobs: None,
            reference_logprobs: None,
            temperatures: vec![1.0; count],
            constrained: vec![],
        };
        let origin = RowOrigin {
            rollout: RolloutId::of(4, 2),
            versions: vec![Some(PolicyVersion(3)); count],
        };
        LogprobMismatch::find(
            &[row],
            &[origin],
            &[learned.to_vec()],
            PolicyVersion(version),
            1.0,
        )
    }

    #[test]
    fn logprobs_that_the_learner_does_not_confirm_are_named() {
        assert_eq!(found(&[0.0, -1.0, -1.000_01, -0.995], 3), None);
        let one = found(&[0.0, -1.0, -2.5, -1.0], 3).unwrap();
        assert_eq!((one.position, one.tokens, one.max), (2, 3, 1.5));
        assert_eq!(one.rollout, RolloutId::of(4, 2));
        // Of equals the first.
        assert_eq!(found(&[0.0, -2.5, -2.5], 3).unwrap().position, 1);
        // No token by far, all of them a little.
        let all = found(&[0.0, -1.01, -1.01, -1.01], 3).unwrap();
        assert!((all.mean - 0.01).abs() < 1e-6, "{all:?}");
        assert!(all.max < all.max_token(), "{all:?}");
        assert!(found(&[0.0, f32::NAN, -1.0, -1.0], 3).is_some());
    }

    #[test]
    fn tokens_of_older_weights_may_differ() {
        assert_eq!(found(&[0.0, -9.0, -9.0], 4), None);
    }

    #[test]
    fn tokens_after_those_of_older_weights_may_differ() {
        let versions = |numbers: [Option<u64>; 5]| numbers.map(|n| n.map(PolicyVersion)).to_vec();
        let of = |versions: Vec<Option<PolicyVersion>>, learned: [f32; 5]| {
            let row = LossRow {
                ids: vec![1; 5],
                weights: vec![0.0, 0.5, 0.5, 0.5, 0.5],
                advantages: vec![1.0; 5],
                sampled_logprobs: vec![-1.0; 5],
                proximal_logprobs: None,
                reference_logprobs: None,
                temperatures: vec![1.0; 5],
                constrained: vec![],
            };
            let origin = RowOrigin {
                rollout: RolloutId::of(4, 2),
                versions,
            };
            let rows = [row];
            LogprobMismatch::find(&rows, &[origin], &[learned.to_vec()], PolicyVersion(3), 1.0)
        };
        // Swapped in the middle of the answer: the last two saw what older weights made of the first.
        let mixed = versions([None, Some(2), Some(2), Some(3), Some(3)]);
        assert_eq!(of(mixed, [0.0, -1.0, -1.0, -4.0, -4.0]), None);
        // Before the swap they are held to it.
        let late = versions([None, Some(3), Some(3), Some(4), Some(3)]);
        let found = of(late, [0.0, -1.0, -4.0, -9.0, -9.0]).unwrap();
        assert_eq!((found.position, found.tokens), (2, 2));
    }
}
