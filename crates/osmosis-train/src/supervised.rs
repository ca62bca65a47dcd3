//! Training on conversations that are written down, before rewards take over.
//!
//! The loss is the mean negative logprob of the assistant's tokens of a batch. Which conversations a step takes follows
//! from the seed, and nothing is sampled, so a run that was killed and resumed ends with the same weights, bit for bit.
//!
//! A step is completed in the order of [`Trainer`](crate::Trainer)'s: it is recorded, then the checkpoint is written, then
//! the held-out loss is measured and added, the step is published, and checkpoints that are not to be kept are deleted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use camino::Utf8PathBuf;
use osmosis_core::config::{Checkpoints, Supervised, Training};
use osmosis_core::learner::{LossRow, TrainableModel};
use osmosis_core::{JsonText, RolloutId};
use osmosis_engine::Stop;
use osmosis_store::Store;
use osmosis_tokens::TrainingRow;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::batch::{Batch, RowOrigin, trained_tokens};
use crate::checkpoints::{self, Checkpoint};
use crate::ending::Ending;
use crate::frontier::RowRecords;
use crate::journal::Journal;
use crate::learning::Learning;
use crate::rollout_phase::stop_requested;
use crate::schedule::{EvaluationSchedule, Schedule};
use crate::trainer::restore_newest;
use crate::{EndCause, FinalEvaluation, TrainEnd, TrainError, UnusedGroups};

/// Held-out tokens whose logprobs are computed at once.
const MEASURED_AT_ONCE: usize = 1 << 16;

/// The name of the held-out loss among the numbers of a step.
pub(crate) const HELD_OUT_LOSS: &str = "eval/loss";

/// A conversation in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct SupervisedRow {
    /// Of the dataset.
    pub row_index: u64,
    /// Each has a token to learn.
    pub rows: Vec<TrainingRow>,
}

/// What is trained on, and how. Equal plans give equal runs.
#[derive(Debug, Clone)]
pub struct SupervisedPlan {
    pub rows: Vec<SupervisedRow>,
    /// Never trained on.
    pub held_out: Vec<SupervisedRow>,
    pub settings: Supervised,
    pub checkpoints: Checkpoints,
    pub seed: u64,
}

impl SupervisedPlan {
    /// Steps that the run has.
    pub fn steps(&self) -> Result<u64, TrainError> {
        Ok(self.schedule()?.steps())
    }

    fn schedule(&self) -> Result<Schedule, TrainError> {
        let rows: Vec<u64> = self.rows.iter().map(|row| row.row_index).collect();
        let visits = Training {
            rollout_batch_size: self.settings.batch_size,
            n_samples_per_prompt: 1,
            total_epochs: self.settings.total_epochs,
            steps: self.settings.steps,
            ..Training::default()
        };
        Schedule::new(&rows, &visits, self.seed)
    }
}

/// What a trainer works with.
#[derive(Debug, Clone)]
pub struct SupervisedParts {
    pub store: Arc<dyn Store>,
    /// What training starts from; a resume loads the last good checkpoint instead.
    pub model: Arc<dyn TrainableModel>,
    /// The run's folder.
    pub folder: Utf8PathBuf,
    /// Also write TensorBoard event files below `folder/tensorboard`.
    pub tensorboard: bool,
}

/// The numbers of one step, as in `metrics.jsonl`. Times are seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SupervisedReport {
    pub step: u64,
    /// The weights after the step.
    pub version: u64,
    /// The pass over the dataset that the step belongs to, from 0.
    pub epoch: u64,
    /// The mean negative logprob of the step's tokens, before its update.
    pub loss: f64,
    pub entropy: f64,
    /// Before it is scaled down.
    pub gradient_norm: f64,
    pub lr: f64,
    /// Conversations.
    pub rows: u64,
    #[serde(rename = "tokens/trained")]
    pub tokens_trained: u64,
    #[serde(rename = "time/update")]
    pub time_update: f64,
    /// `None` when the step saved no checkpoint.
    #[serde(rename = "time/save")]
    pub time_save: Option<f64>,
    #[serde(flatten)]
    pub held_out: Option<HeldOutLoss>,
}

/// What the weights after a step say of held-out rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeldOutLoss {
    /// The mean negative logprob of their tokens.
    #[serde(rename = "eval/loss")]
    pub loss: f64,
    #[serde(rename = "eval/tokens")]
    pub tokens: u64,
    #[serde(rename = "time/eval")]
    pub time: f64,
}

/// Something that happened, in order.
#[derive(Debug, Clone)]
pub enum SupervisedEvent {
    /// A step is durable.
    Stepped {
        report: Box<SupervisedReport>,
        steps: u64,
    },
    /// Held-out rows were measured with the weights after `step`.
    Measured { step: u64, loss: HeldOutLoss },
    /// A checkpoint is durable.
    Saved { step: u64, folder: Utf8PathBuf },
    /// Something a person should know; training goes on.
    Warning { message: String },
}

/// Trains on conversations.
#[derive(Debug)]
pub struct SupervisedTrainer {
    plan: SupervisedPlan,
    parts: SupervisedParts,
    schedule: Schedule,
    measuring: EvaluationSchedule,
    learning: Learning,
    /// Steps that are done, and the version of the weights.
    step: u64,
    saved: Option<u64>,
    journal: Journal,
    warnings: Vec<String>,
}

impl SupervisedTrainer {
    /// Makes ready: a fresh run, or the state after the last good checkpoint of an earlier one.
    pub async fn open(plan: SupervisedPlan, parts: SupervisedParts) -> Result<Self, TrainError> {
        let schedule = plan.schedule()?;
        let mut warnings = Vec::new();
        let lr = plan.settings.lr;
        let mut learning = Learning::begin_supervised(lr, Arc::clone(&parts.model)).await?;
        parts.model.begun();
        let saved = restore_newest(&mut learning, &parts.folder, plan.seed, &mut warnings).await?;
        let step = saved.unwrap_or(0);
        let store = Arc::clone(&parts.store);
        let journal = Journal::open(store, parts.folder.clone(), step, parts.tensorboard).await?;
        Ok(Self {
            measuring: EvaluationSchedule::new(&plan.checkpoints, schedule.steps()),
            plan,
            parts,
            schedule,
            learning,
            step,
            saved,
            journal,
            warnings,
        })
    }

    /// Trains until the plan is done or it is asked to stop. When stopped, what is done is saved.
    pub async fn run(
        &mut self,
        stop: &Stop,
        events: mpsc::Sender<SupervisedEvent>,
    ) -> Result<TrainEnd, TrainError> {
        for message in std::mem::take(&mut self.warnings) {
            tell(&events, SupervisedEvent::Warning { message }).await;
        }
        if self.measurement_due() && !self.journal.newest_has(self.step, HELD_OUT_LOSS) {
            let loss = self.measure(&events).await?;
            self.journal.add_evaluation(self.step, &loss).await?;
        }
        while self.step < self.schedule.steps() {
            if stop_requested(stop) {
                if self.step > 0 && self.saved != Some(self.step) {
                    self.save(&events).await?;
                    self.retain_checkpoints();
                }
                return self.end(EndCause::Stopped).await;
            }
            self.train_step(&events).await?;
        }
        // A process that was killed after its last step may not have come to it.
        self.retain_checkpoints();
        self.end(EndCause::Complete).await
    }

    async fn end(&mut self, cause: EndCause) -> Result<TrainEnd, TrainError> {
        let evaluation = if self.plan.held_out.is_empty() {
            FinalEvaluation::NoHeldOutRows
        } else if self.journal.newest_has(self.step, HELD_OUT_LOSS) {
            FinalEvaluation::Done
        } else {
            FinalEvaluation::Missing
        };
        let ending = Ending {
            cause,
            step: self.step,
            planned_steps: self.schedule.steps(),
            evaluation,
            unused: UnusedGroups::default(),
        };
        TrainEnd::pass(&*self.parts.store, ending).await
    }

    async fn train_step(
        &mut self,
        events: &mpsc::Sender<SupervisedEvent>,
    ) -> Result<(), TrainError> {
        let planned = self.schedule.step(self.step + 1, &RowRecords::new());
        let step = planned.step;
        let updating = Instant::now();
        let batch = self.batch(&planned.rows);
        let tokens = batch.tokens;
        let update = self.learning.update(step, batch).await?;
        let Some(updated) = update.reports.first() else {
            return Err(TrainError::Internal("a step made no update".to_owned()));
        };
        let mut report = SupervisedReport {
            step,
            version: step,
            epoch: planned.epoch,
            loss: updated.loss,
            entropy: updated.entropy,
            gradient_norm: updated.gradient_norm,
            lr: self.plan.settings.lr,
            rows: planned.rows.len() as u64,
            tokens_trained: tokens,
            time_update: updating.elapsed().as_secs_f64(),
            ..SupervisedReport::default()
        };
        self.record(&report).await?;
        self.step = step;
        let stepped = SupervisedEvent::Stepped {
            report: Box::new(report.clone()),
            steps: self.schedule.steps(),
        };
        tell(events, stepped).await;
        let every = self.plan.checkpoints.checkpoint_save_freq.max(1);
        if step.is_multiple_of(every) || step == self.schedule.steps() {
            let saving = Instant::now();
            self.save(events).await?;
            report.time_save = Some(saving.elapsed().as_secs_f64());
            self.record(&report).await?;
        }
        if self.measurement_due() {
            report.held_out = Some(self.measure(events).await?);
            self.record(&report).await?;
        }
        self.journal.publish()?;
        self.retain_checkpoints();
        Ok(())
    }

    /// Deletes the checkpoints that the config does not keep. The held-out loss of the newest one is published by now,
    /// so that it is known which one is the best.
    fn retain_checkpoints(&self) {
        checkpoints::retain_or_log(&self.parts.folder, &self.plan.checkpoints, self.saved);
    }

    async fn record(&mut self, report: &SupervisedReport) -> Result<(), TrainError> {
        let metrics =
            JsonText::of(report).map_err(|error| TrainError::Internal(error.to_string()))?;
        self.journal.record(report.step, metrics).await
    }

    /// The conversations of a step. Every token of theirs counts the same.
    fn batch(&self, rows: &[u64]) -> Batch {
        let by_index: HashMap<u64, &SupervisedRow> = self
            .plan
            .rows
            .iter()
            .map(|row| (row.row_index, row))
            .collect();
        let chosen: Vec<(u64, &TrainingRow)> = rows
            .iter()
            .filter_map(|row| by_index.get(row))
            .flat_map(|row| row.rows.iter().map(|one| (row.row_index, one)))
            .collect();
        let tokens: u64 = chosen.iter().map(|(_, row)| trained_tokens(row)).sum();
        Batch {
            rows: chosen
                .iter()
                .map(|(_, row)| loss_row(row, tokens))
                .collect(),
            origins: chosen
                .iter()
                .map(|(index, row)| RowOrigin {
                    rollout: RolloutId::of(*index, 0),
                    // Nobody sampled them.
                    versions: vec![None; row.ids.len()],
                })
                .collect(),
            tokens,
        }
    }

    fn measurement_due(&self) -> bool {
        !self.plan.held_out.is_empty() && self.measuring.ordinal(self.step).is_some()
    }

    async fn measure(
        &mut self,
        events: &mpsc::Sender<SupervisedEvent>,
    ) -> Result<HeldOutLoss, TrainError> {
        let began = Instant::now();
        let all: Vec<LossRow> = self
            .plan
            .held_out
            .iter()
            .flat_map(|row| &row.rows)
            .map(|row| loss_row(row, 1))
            .collect();
        let (mut sum, mut tokens) = (0.0, 0_u64);
        for part in parts(all) {
            let logprobs = self.learning.logprobs(part.clone()).await?;
            for (row, logprobs) in part.iter().zip(&logprobs) {
                for (weight, logprob) in row.weights.iter().zip(logprobs) {
                    if *weight != 0.0 {
                        sum -= f64::from(*logprob);
                        tokens += 1;
                    }
                }
            }
        }
        let loss = HeldOutLoss {
            loss: sum / tokens.max(1) as f64,
            tokens,
            time: began.elapsed().as_secs_f64(),
        };
        let step = self.step;
        tell(events, SupervisedEvent::Measured { step, loss }).await;
        Ok(loss)
    }

    async fn save(&mut self, events: &mpsc::Sender<SupervisedEvent>) -> Result<(), TrainError> {
        let folder = self.parts.folder.clone();
        let saved = self.learning.save(self.step, self.plan.seed, folder);
        let Checkpoint { step, folder } = saved.await?;
        self.saved = Some(step);
        tell(events, SupervisedEvent::Saved { step, folder }).await;
        Ok(())
    }
}

/// A row whose trained tokens count one part in so many.
fn loss_row(row: &TrainingRow, parts: u64) -> LossRow {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the learner computes in f32"
    )]
    let weight = (1.0 / parts.max(1) as f64) as f32;
    let length = row.ids.len();
    let weights = row.loss_mask.iter().enumerate();
    LossRow {
        ids: row.ids.clone(),
        weights: weights
            .map(|(at, trained)| if at > 0 && *trained { weight } else { 0.0 })
            .collect(),
        advantages: vec![0.0; length],
        sampled_logprobs: vec![0.0; length],
        proximal_logprobs: None,
        reference_logprobs: None,
        temperatures: vec![1.0; length],
        constrained: vec![],
    }
}

/// Rows in parts of bounded size, so that memory does not grow with them.
fn parts(rows: Vec<LossRow>) -> Vec<Vec<LossRow>> {
    let mut parts: Vec<Vec<LossRow>> = Vec::new();
    let mut tokens = usize::MAX;
    for row in rows {
        if tokens.saturating_add(row.ids.len()) > MEASURED_AT_ONCE {
            parts.push(Vec::new());
            tokens = 0;
        }
        tokens += row.ids.len();
        if let Some(part) = parts.last_mut() {
            part.push(row);
        }
    }
    parts
}

async fn tell(events: &mpsc::Sender<SupervisedEvent>, event: SupervisedEvent) {
    // Nobody listens any more: the display is gone, the run is not.
    let _ = events.send(event).await;
}
