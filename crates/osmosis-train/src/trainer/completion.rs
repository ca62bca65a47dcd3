//! The one way to complete a step, whether rollouts waited for it or not.
//!
//! The order is what a kill at any point relies on:
//!
//! 1. The sampler gets the new weights. Killed here, a resume repeats the step from the same rollouts (planned, or
//!    recorded as a batch) and gets the same weights: what was sampled with them meanwhile stays right.
//! 2. The step is recorded in the store. From here on it is done.
//! 3. Whoever begins rollouts is told, and those who watch.
//! 4. The checkpoint is written, when one is due and any step has made an update. It never knows more than the store: a resume goes back to it
//!    and repeats the steps that were recorded since.
//! 5. The record is completed with what came after (how long saving took, the evaluation), and the step is
//!    published in the files that people and tools read. These are made anew of the store on resume.

use std::time::Instant;

use osmosis_core::PolicyVersion;
use osmosis_core::config::Training;
use osmosis_core::learner::{UpdateReport, Weights};
use tokio::sync::mpsc;

use super::{Trainer, tell};
use crate::checkpoints::{self, Checkpoint};
use crate::learning::{StepUpdate, blocking};
use crate::rollout_stream::RolloutStream;
use crate::{EvaluationReport, StepReport, TrainError, TrainEvent, TrainParts};

impl Trainer {
    /// Makes a step durable whose update is made. `times` adds what only the caller has measured, after the
    /// swap; `stream` is there when rollouts go on during updates. The report that comes back is recorded,
    /// and still to be published.
    pub(super) async fn complete_step(
        &mut self,
        mut report: StepReport,
        update: StepUpdate,
        times: impl FnOnce(&mut StepReport),
        stream: Option<&mut RolloutStream>,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<StepReport, TrainError> {
        let step = report.step;
        add_update(&mut report, &update.reports, &self.plan.training);
        self.updated |= report.skipped.is_none();
        let swapping = Instant::now();
        swap(&self.parts, update.weights, step).await?;
        report.time_swap = swapping.elapsed().as_secs_f64();
        times(&mut report);

        self.journal.record_report(&report).await?;
        self.step = step;

        let waiting = stream.is_none();
        if let Some(stream) = stream {
            stream.trained()?;
            stream.advance(PolicyVersion(step)).await?;
        }
        tell(events, TrainEvent::Stepped(Box::new(report.clone()))).await;
        if waiting {
            // Without waiting, groups are counted and not steps.
            self.watch_flat_steps(&report, events).await;
        }
        self.watch_dropped_groups(&report, events).await;

        let every = self.plan.checkpoints.checkpoint_save_freq.max(1);
        if self.updated && (step.is_multiple_of(every) || step == self.steps()) {
            let saving = Instant::now();
            self.save(events).await?;
            report.time_save = Some(saving.elapsed().as_secs_f64());
            self.journal.record_report(&report).await?;
        }
        Ok(report)
    }

    /// Ends a step that [`Self::complete_step`] made durable, with the evaluation after it when there was one.
    pub(super) async fn publish_step(
        &mut self,
        mut report: StepReport,
        evaluation: Option<EvaluationReport>,
    ) -> Result<(), TrainError> {
        if evaluation.is_some() {
            report.evaluation = evaluation;
            self.journal.record_report(&report).await?;
        }
        self.journal.publish()?;
        self.retain_checkpoints();
        Ok(())
    }

    /// Deletes the checkpoints that the config does not keep. The evaluation of the newest one is recorded by
    /// now, so that it is known which one is the best.
    pub(super) fn retain_checkpoints(&self) {
        checkpoints::retain_or_log(&self.parts.folder, &self.plan.checkpoints, self.saved);
    }

    /// Saves what is done and not saved yet, when training ends before its plan does.
    pub(super) async fn save_if_new(
        &mut self,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<(), TrainError> {
        if self.updated && self.step > 0 && self.saved != Some(self.step) {
            self.save(events).await?;
            self.retain_checkpoints();
        }
        Ok(())
    }

    async fn save(&mut self, events: &mpsc::Sender<TrainEvent>) -> Result<(), TrainError> {
        let folder = self.parts.folder.clone();
        let saved = self
            .learning
            .save(self.step, self.plan.seed, folder)
            .await?;
        let Checkpoint { step, folder } = saved;
        self.saved = Some(step);
        tell(events, TrainEvent::Saved { step, folder }).await;
        Ok(())
    }
}

/// Gives the sampler the weights after a step.
pub(super) async fn swap(
    parts: &TrainParts,
    weights: Weights,
    step: u64,
) -> Result<(), TrainError> {
    let sampler = parts.sampler.clone();
    blocking(move || sampler.load(&weights, PolicyVersion(step))).await??;
    Ok(())
}

fn add_update(report: &mut StepReport, updates: &[UpdateReport], training: &Training) {
    let mean = |of: fn(&UpdateReport) -> f64| {
        let sum: f64 = updates.iter().map(of).sum();
        (!updates.is_empty()).then(|| sum / updates.len() as f64)
    };
    report.loss = mean(|update| update.loss);
    report.entropy = mean(|update| update.entropy);
    report.clip_fraction = mean(|update| update.clip_fraction);
    report.kl = mean(|update| update.kl_to_sampled);
    report.kl_reference = mean(|update| update.kl_to_reference).filter(|_| training.kl_coef > 0.0);
    report.gradient_norm = mean(|update| update.gradient_norm);
    report.logprob_mismatch_mean = updates.first().map(|update| update.mismatch_mean);
    report.logprob_mismatch_max = updates.first().map(|update| update.mismatch_max);
    // The same in every update of a step: both logprobs were there before it.
    report.behaviour_weight_mean = updates.first().and_then(|update| update.behaviour_weight);
    report.behaviour_weight_capped = updates.first().and_then(|update| update.capped_fraction);
}
