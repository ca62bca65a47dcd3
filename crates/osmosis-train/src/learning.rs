//! The learner on a thread of its own, so that heartbeats and signals go on while it computes.

use std::sync::Arc;

use osmosis_core::PolicyVersion;
use osmosis_core::config::{self, Training};
use osmosis_policy::{
    EmbeddedModel, Learner, LearnerOptions, LossRow, ModelConfig, Objective, UpdateReport, Weights,
};

use crate::TrainError;
use crate::checkpoints::{CheckpointState, LoadedCheckpoint};

/// Logits that one piece of a batch may have at once; they are what takes the memory.
const LOGITS_PER_PIECE: usize = 1 << 25;

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

    /// Makes `updates_per_batch` updates, each over the whole batch. After an error the learner may have
    /// made some of them: training must go back to a checkpoint.
    pub(crate) async fn update(
        &mut self,
        step: u64,
        mut rows: Vec<LossRow>,
    ) -> Result<StepUpdate, TrainError> {
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
                let reports = (0..updates.max(1))
                    .map(|_| learner.update(&rows, objective))
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(StepUpdate {
                    reports,
                    weights: learner.weights()?,
                })
            })();
            result.map_err(|source| TrainError::Update { step, source })
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
