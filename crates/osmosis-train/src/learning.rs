//! The learner on a thread of its own, so that heartbeats and signals go on while it computes.

use std::sync::Arc;

use osmosis_core::config::{self, Training};
use osmosis_core::{PolicyVersion, RolloutId};
use osmosis_policy::{
    EmbeddedModel, Learner, LearnerOptions, LossRow, ModelConfig, Objective, UpdateReport, Weights,
};

use crate::TrainError;
use crate::batch::{Batch, RowOrigin};
use crate::checkpoints::{CheckpointState, LoadedCheckpoint};

/// Logits that one piece of a batch may have at once; they are what takes the memory.
const LOGITS_PER_PIECE: usize = 1 << 25;

/// Sampler and learner compute in the same precision, from the same weights and ids: their logprobs of a
/// token differ by about 1e-6, and by less than 1e-4 in all tests. Beyond these bounds, in nats, a
/// ratio compares different things: other weights, another context, another temperature.
const MAX_MEAN_MISMATCH: f64 = 0.05;
const MAX_TOKEN_MISMATCH: f64 = 1.0;

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
}

impl LogprobMismatch {
    pub const MAX_MEAN: f64 = MAX_MEAN_MISMATCH;
    pub const MAX_TOKEN: f64 = MAX_TOKEN_MISMATCH;

    /// What is wrong with the logprobs of a batch before the first update, when something is. Only tokens
    /// of `version`, the weights that are about to be updated, can be compared, and of these only such as
    /// follow no token of others: a sequence that goes on over a swap keeps what older weights computed of
    /// the tokens before it, which the learner computes anew.
    fn find(
        rows: &[LossRow],
        origins: &[RowOrigin],
        logprobs: &[Vec<f32>],
        version: PolicyVersion,
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
        found.filter(|found| found.mean > Self::MAX_MEAN || found.max > Self::MAX_TOKEN)
    }
}

/// The policy being trained, and the model it must not leave behind when `kl_coef` is not 0.
#[derive(Debug)]
pub(crate) struct Learning {
    /// `None` only while a thread has it, or after that thread panicked.
    learner: Option<Learner>,
    reference: Option<Arc<Learner>>,
    updates_per_batch: u32,
    objective: Objective,
}

/// What the updates of one step did.
#[derive(Debug)]
pub(crate) struct StepUpdate {
    /// One for each update, in order; never empty.
    pub(crate) reports: Vec<UpdateReport>,
    pub(crate) weights: Weights,
}

impl Learning {
    /// Begins with the start model, or goes on from a checkpoint. The reference is the start model in
    /// both cases.
    pub(crate) async fn begin(
        training: &Training,
        start: EmbeddedModel,
        checkpoint: Option<LoadedCheckpoint>,
    ) -> Result<Self, TrainError> {
        let options = learner_options(training, &start.config);
        let with_reference = training.kl_coef > 0.0;
        let (learner, reference) = blocking(move || {
            let reference = if with_reference {
                let learner = Learner::new(&start.config, &start.weights, options)?;
                Some(Arc::new(learner))
            } else {
                None
            };
            let learner = match checkpoint {
                None => Learner::new(&start.config, &start.weights, options)?,
                Some(LoadedCheckpoint { state, model }) => {
                    let mut learner = Learner::new(&model.config, &model.weights, options)?;
                    learner.restore_optimizer(state.updates, state.moments)?;
                    learner
                }
            };
            Ok::<_, TrainError>((learner, reference))
        })
        .await??;
        Ok(Self {
            learner: Some(learner),
            reference,
            updates_per_batch: training.updates_per_batch,
            objective: objective(training),
        })
    }

    /// Makes `updates_per_batch` updates, each over the whole batch, unless the logprobs of tokens that the
    /// weights themselves sampled are not confirmed. After an error the learner may have made some of them:
    /// training must go back to a checkpoint.
    pub(crate) async fn update(
        &mut self,
        step: u64,
        batch: Batch,
    ) -> Result<StepUpdate, TrainError> {
        let Batch {
            mut rows, origins, ..
        } = batch;
        // The weights after a step have its number.
        let version = PolicyVersion(step.saturating_sub(1));
        let reference = self.reference.clone();
        let (updates, objective) = (self.updates_per_batch, self.objective);
        self.with_learner(move |learner| {
            let result = (|| {
                if let Some(reference) = reference {
                    let logprobs = reference.logprobs(&rows)?;
                    for (row, logprobs) in rows.iter_mut().zip(logprobs) {
                        row.reference_logprobs = Some(logprobs);
                    }
                }
                if let Objective::DecoupledPolicyGradient { .. } = objective {
                    let logprobs = learner.logprobs(&rows)?;
                    for (row, logprobs) in rows.iter_mut().zip(logprobs) {
                        row.proximal_logprobs = Some(logprobs);
                    }
                }
                let wrong = |logprobs: &[Vec<f32>]| {
                    LogprobMismatch::find(&rows, &origins, logprobs, version)
                };
                let first = match learner.update_unless(&rows, objective, wrong)? {
                    Ok(first) => first,
                    Err(mismatch) => return Ok(Err(mismatch)),
                };
                let mut reports = vec![first];
                for _ in 1..updates {
                    reports.push(learner.update(&rows, objective)?);
                }
                Ok(Ok(StepUpdate {
                    reports,
                    weights: learner.weights()?,
                }))
            })();
            match result {
                Ok(Ok(update)) => Ok(update),
                Ok(Err(mismatch)) => Err(TrainError::Mismatch { step, mismatch }),
                Err(source) => Err(TrainError::Update { step, source }),
            }
        })
        .await
    }

    /// The weights as they stand.
    pub(crate) async fn weights(&mut self) -> Result<Weights, TrainError> {
        self.with_learner(|learner| Ok(learner.weights()?)).await
    }

    /// What a checkpoint holds, with the weights.
    pub(crate) async fn state(
        &mut self,
        step: u64,
        seed: u64,
    ) -> Result<(CheckpointState, Weights), TrainError> {
        self.with_learner(move |learner| {
            let (updates, moments) = learner.optimizer_state()?;
            let state = CheckpointState {
                step,
                version: PolicyVersion(step),
                seed,
                updates,
                moments,
            };
            Ok((state, learner.weights()?))
        })
        .await
    }

    /// Hands the learner over to somebody who updates it while others go on.
    pub(crate) fn lend(&mut self) -> Self {
        Self {
            learner: self.learner.take(),
            reference: self.reference.clone(),
            ..*self
        }
    }

    /// Takes back what was lent.
    pub(crate) fn take_back(&mut self, lent: Self) {
        self.learner = lent.learner;
    }

    async fn with_learner<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Learner) -> Result<T, TrainError> + Send + 'static,
    ) -> Result<T, TrainError> {
        let Some(mut learner) = self.learner.take() else {
            return Err(TrainError::Internal(
                "the learner was lost in an earlier step".to_owned(),
            ));
        };
        let (learner, result) = blocking(move || {
            let result = work(&mut learner);
            (learner, result)
        })
        .await?;
        self.learner = Some(learner);
        result
    }
}

/// Runs something slow where it keeps nobody waiting. It runs to its end even if nobody waits any more.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TrainError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| TrainError::Internal(format!("a computing thread ended: {error}")))
}

fn objective(training: &Training) -> Objective {
    let (clip_low, clip_high) = (training.clip_ratio, training.clip_ratio);
    let kl_coef = training.kl_coef;
    match training.objective {
        config::Objective::Clipped => Objective::ClippedPolicyGradient {
            clip_low,
            clip_high,
            kl_coef,
        },
        config::Objective::Decoupled {
            behaviour_weight_cap,
        } => Objective::DecoupledPolicyGradient {
            clip_low,
            clip_high,
            kl_coef,
            behaviour_weight_cap,
        },
    }
}

fn learner_options(training: &Training, config: &ModelConfig) -> LearnerOptions {
    LearnerOptions {
        lr: training.lr,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        // The reward says which way to go; pulling weights to 0 would only add to the distance from the
        // start model.
        weight_decay: 0.0,
        max_gradient_norm: 1.0,
        threads: 0,
        tokens_per_piece: (LOGITS_PER_PIECE / config.vocabulary.max(1)).clamp(256, 8192),
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
        )
    }

    #[test]
    fn logprobs_that_the_learner_does_not_confirm_are_named() {
        assert_eq!(found(&[0.0, -1.0, -1.000_01, -0.96], 3), None);
        let one = found(&[0.0, -1.0, -2.5, -1.0], 3).unwrap();
        assert_eq!((one.position, one.tokens, one.max), (2, 3, 1.5));
        assert_eq!(one.rollout, RolloutId::of(4, 2));
        // Of equals the first.
        assert_eq!(found(&[0.0, -2.5, -2.5], 3).unwrap().position, 1);
        // No token by far, all of them a little.
        let all = found(&[0.0, -1.1, -1.1, -1.1], 3).unwrap();
        assert!((all.mean - 0.1).abs() < 1e-6 && all.max < 1.0, "{all:?}");
        assert!(found(&[0.0, f32::NAN, -1.0, -1.0], 3).is_some());
    }

    #[tokio::test]
    async fn a_step_with_invented_logprobs_stops_before_it_changes_anything() {
        let start = EmbeddedModel::builtin("tiny").unwrap();
        let before = start.weights.clone();
        let training = Training::default();
        let mut learning = Learning::begin(&training, start, None).await.unwrap();
        let batch = |sampled_logprobs: Vec<f32>| Batch {
            rows: vec![LossRow {
                ids: vec![1, 2, 3],
                weights: vec![0.0, 0.5, 0.5],
                advantages: vec![1.0; 3],
                sampled_logprobs,
                proximal_logprobs: None,
                reference_logprobs: None,
                temperatures: vec![1.0; 3],
            }],
            origins: vec![RowOrigin {
                rollout: RolloutId::of(4, 2),
                versions: vec![None, Some(PolicyVersion(0)), Some(PolicyVersion(0))],
            }],
            tokens: 2,
        };
        let error = learning.update(1, batch(vec![0.0, 7.0, 7.0])).await;
        let error = error.unwrap_err().to_string();
        for part in [
            "step 1: the learner does not confirm",
            "rollout `r4-2`",
            "bounds: 0.05 and 1",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let unchanged = learning.weights().await.unwrap();
        assert_eq!(unchanged.tensors, before.tensors);
        // Rows of older weights are not held to it.
        learning
            .update(9, batch(vec![0.0, -7.0, -7.0]))
            .await
            .unwrap();
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
            };
            let origin = RowOrigin {
                rollout: RolloutId::of(4, 2),
                versions,
            };
            let rows = [row];
            LogprobMismatch::find(&rows, &[origin], &[learned.to_vec()], PolicyVersion(3))
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
