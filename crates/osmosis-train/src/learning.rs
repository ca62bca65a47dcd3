//! The learner on a thread of its own, so that heartbeats and signals go on while it computes.

use std::sync::Arc;

use camino::Utf8PathBuf;
use osmosis_core::PolicyVersion;
use osmosis_core::config::{Objective, Training};
use osmosis_core::learner::{
    Learner, LearnerError, LossFunction, LossRow, PolicyGradient, Surrogate, TrainableModel,
    UpdateReport, Weights,
};

use crate::batch::{Batch, RowOrigin};
use crate::checkpoints::{Checkpoint, CheckpointState};
use crate::{LogprobMismatch, TrainError};

/// The policy being trained, and the model it must not leave behind when `kl_coef` is not 0.
#[derive(Debug)]
pub(crate) struct Learning {
    /// `None` only while a thread has it, or after that thread panicked.
    learner: Option<Box<dyn Learner>>,
    reference: Option<Arc<dyn Learner>>,
    updates_per_batch: u32,
    loss: LossFunction,
}

/// What the updates of one step did.
#[derive(Debug)]
pub(crate) struct StepUpdate {
    /// One for each update, in order; empty when the step had nothing to learn from.
    pub(crate) reports: Vec<UpdateReport>,
    pub(crate) weights: Weights,
}

impl Learning {
    /// Begins with the start model, which is also the reference.
    pub(crate) async fn begin(
        training: &Training,
        start: Arc<dyn TrainableModel>,
    ) -> Result<Self, TrainError> {
        let (lr, with_reference) = (training.lr, training.kl_coef > 0.0);
        let (learner, reference) = blocking(move || {
            let reference = with_reference.then(|| start.learner(lr)).transpose()?;
            Ok::<_, TrainError>((start.learner(lr)?, reference))
        })
        .await??;
        Ok(Self {
            learner: Some(learner),
            reference: reference.map(Arc::from),
            updates_per_batch: training.updates_per_batch,
            loss: loss_function(training),
        })
    }

    /// Begins with the start model, to learn what rows say as they are.
    pub(crate) async fn begin_supervised(
        lr: f64,
        start: Arc<dyn TrainableModel>,
    ) -> Result<Self, TrainError> {
        let learner = blocking(move || start.learner(lr)).await??;
        Ok(Self {
            learner: Some(learner),
            reference: None,
            updates_per_batch: 1,
            loss: LossFunction::Likelihood,
        })
    }

    /// Logprobs of each token of these rows, with the weights as they stand.
    pub(crate) async fn logprobs(
        &mut self,
        rows: Vec<LossRow>,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        self.with_learner(move |learner| Ok(learner.logprobs(&rows)?))
            .await
    }

    /// Goes on from a checkpoint. The reference stays the start model.
    pub(crate) async fn restore(
        &mut self,
        checkpoint: Checkpoint,
    ) -> Result<CheckpointState, TrainError> {
        self.with_learner(move |learner| checkpoint.restore(learner))
            .await
    }

    /// Makes `updates_per_batch` updates, each over the whole batch, unless the logprobs of tokens that the
    /// weights themselves sampled are not confirmed; none when the batch has no rows. After an error the
    /// learner may have made some of them: training must go back to a checkpoint.
    pub(crate) async fn update(
        &mut self,
        step: u64,
        batch: Batch,
    ) -> Result<StepUpdate, TrainError> {
        let reference = self.reference.clone();
        let (count, loss) = (self.updates_per_batch, self.loss);
        self.with_learner(move |learner| {
            let reports = if batch.rows.is_empty() {
                Vec::new()
            } else {
                let updates = Updates {
                    rows: batch.rows,
                    origins: batch.origins,
                    // The weights after a step have its number.
                    version: PolicyVersion(step.saturating_sub(1)),
                    loss,
                    count,
                };
                match updates.make(learner, reference.as_deref()) {
                    Ok(Ok(reports)) => reports,
                    Ok(Err(mismatch)) => return Err(TrainError::Mismatch { step, mismatch }),
                    Err(source) => return Err(TrainError::Update { step, source }),
                }
            };
            let weights = learner
                .weights()
                .map_err(|source| TrainError::Update { step, source })?;
            Ok(StepUpdate { reports, weights })
        })
        .await
    }

    /// The weights as they stand.
    pub(crate) async fn weights(&mut self) -> Result<Weights, TrainError> {
        self.with_learner(|learner| Ok(learner.weights()?)).await
    }

    /// Writes a checkpoint below the run's folder; durable when this returns.
    pub(crate) async fn save(
        &mut self,
        step: u64,
        seed: u64,
        run_folder: Utf8PathBuf,
    ) -> Result<Checkpoint, TrainError> {
        self.with_learner(move |learner| {
            let state = CheckpointState {
                step,
                version: PolicyVersion(step),
                seed,
                updates: learner.updates(),
            };
            state.save(&run_folder, learner)
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
        work: impl FnOnce(&mut dyn Learner) -> Result<T, TrainError> + Send + 'static,
    ) -> Result<T, TrainError> {
        let Some(mut learner) = self.learner.take() else {
            return Err(TrainError::Internal(
                "the learner was lost in an earlier step".to_owned(),
            ));
        };
        let (learner, result) = blocking(move || {
            let result = work(&mut *learner);
            (learner, result)
        })
        .await?;
        self.learner = Some(learner);
        result
    }
}

/// The updates of a step.
struct Updates {
    rows: Vec<LossRow>,
    origins: Vec<RowOrigin>,
    /// Of the weights that are about to be updated.
    version: PolicyVersion,
    loss: LossFunction,
    count: u32,
}

impl Updates {
    fn make(
        mut self,
        learner: &mut dyn Learner,
        reference: Option<&dyn Learner>,
    ) -> Result<Result<Vec<UpdateReport>, LogprobMismatch>, LearnerError> {
        self.add_logprobs(learner, reference)?;
        let Self { rows, loss, .. } = &self;
        let mut mismatch = None;
        let tolerance = learner.logprob_tolerance();
        let mut confirmed = |logprobs: &[Vec<f32>]| {
            mismatch =
                LogprobMismatch::find(rows, &self.origins, logprobs, self.version, tolerance);
            mismatch.is_none()
        };
        let first = learner.update(rows, *loss, &mut confirmed)?;
        if let Some(mismatch) = mismatch {
            return Ok(Err(mismatch));
        }
        let mut reports = Vec::from_iter(first);
        for _ in 1..self.count {
            reports.extend(learner.update(rows, *loss, &mut |_| true)?);
        }
        Ok(Ok(reports))
    }

    /// What the loss needs beside the rows: their logprobs before the step, by the reference and by the
    /// learner.
    fn add_logprobs(
        &mut self,
        learner: &dyn Learner,
        reference: Option<&dyn Learner>,
    ) -> Result<(), LearnerError> {
        if let Some(reference) = reference {
            let logprobs = reference.logprobs(&self.rows)?;
            for (row, logprobs) in self.rows.iter_mut().zip(logprobs) {
                row.reference_logprobs = Some(logprobs);
            }
        }
        let (_, needs_proximal) = self.loss.needs();
        if needs_proximal {
            let logprobs = learner.logprobs(&self.rows)?;
            for (row, logprobs) in self.rows.iter_mut().zip(logprobs) {
                row.proximal_logprobs = Some(logprobs);
            }
        }
        Ok(())
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

/// What a training minimises, by its config.
pub fn loss_function(training: &Training) -> LossFunction {
    let dual_clip = training.dual_clip;
    let surrogate = match training.objective {
        Objective::Clipped => Surrogate::Clipped { dual_clip },
        Objective::Decoupled {
            behaviour_weight_cap,
        } => Surrogate::Decoupled {
            behaviour_weight_cap,
            dual_clip,
        },
        Objective::Gspo => Surrogate::Sequence,
        Objective::Cispo => Surrogate::ConstantWeight,
    };
    LossFunction::PolicyGradient(PolicyGradient {
        surrogate,
        clip_low: match training.objective {
            // As the paper trains: a weight has an upper bound, and no lower one but 0.
            Objective::Cispo => 1.0,
            Objective::Clipped | Objective::Decoupled { .. } | Objective::Gspo => {
                training.clip_ratio
            }
        },
        clip_high: training.clip_ratio_high.unwrap_or(training.clip_ratio),
        kl_coef: training.kl_coef,
        kl_estimator: training.kl_estimator,
        entropy_coef: training.entropy_coef,
    })
}

#[cfg(test)]
mod tests {
    use osmosis_core::RolloutId;
    use osmosis_core::learner::KlEstimator;
    use osmosis_testkit::unigram::UnigramModel;

    use super::*;

    #[test]
    fn the_config_says_what_is_minimised() {
        let of = |change: &dyn Fn(&mut Training)| {
            let mut training = Training::default();
            change(&mut training);
            match loss_function(&training) {
                LossFunction::PolicyGradient(gradient) => gradient,
                LossFunction::Likelihood => panic!("not a policy gradient"),
            }
        };
        assert_eq!(of(&|_| {}), PolicyGradient::CLIPPED);
        let higher = of(&|training| {
            training.clip_ratio_high = Some(0.28);
            training.dual_clip = Some(3.0);
            training.entropy_coef = 0.01;
            training.kl_coef = 0.1;
            training.kl_estimator = KlEstimator::K2;
        });
        let expected = PolicyGradient {
            surrogate: Surrogate::Clipped {
                dual_clip: Some(3.0),
            },
            clip_low: 0.2,
            clip_high: 0.28,
            kl_coef: 0.1,
            kl_estimator: KlEstimator::K2,
            entropy_coef: 0.01,
        };
        assert_eq!(higher, expected);
        let cispo = of(&|training| training.objective = Objective::Cispo);
        assert_eq!(cispo.surrogate, Surrogate::ConstantWeight);
        assert_eq!((cispo.clip_low, cispo.clip_high), (1.0, 0.2));
        let gspo = of(&|training| training.objective = Objective::Gspo);
        assert_eq!(gspo.surrogate, Surrogate::Sequence);
    }

    #[tokio::test]
    async fn a_step_with_invented_logprobs_stops_before_it_changes_anything() {
        let start = Arc::new(UnigramModel::new(8));
        let before = start.weights();
        let training = Training::default();
        let mut learning = Learning::begin(&training, start).await.unwrap();
        let batch = |sampled_logprobs: Vec<f32>| Batch {
            rows: vec![LossRow {
                ids: vec![1, 2, 3],
                weights: vec![0.0, 0.5, 0.5],
                advantages: vec![1.0; 3],
                sampled_logprobs,
                proximal_logprobs: None,
                reference_logprobs: None,
                temperatures: vec![1.0; 3],
                constrained: vec![],
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
            "bounds: 0.002 and 0.05",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let unchanged = learning.weights().await.unwrap();
        assert_eq!(unchanged, *before);
        // Rows of older weights are not held to it.
        learning
            .update(9, batch(vec![0.0, -7.0, -7.0]))
            .await
            .unwrap();
    }
}
