//! Training without waiting: rollouts go on while the policy is updated.
//!
//! One task does it all, one thing at a time: it takes note of what happened to rollouts, begins others,
//! takes a batch when there is one and nothing is being updated. The update itself computes on threads of
//! its own. New weights are swapped in between two tokens of whatever is being sampled; only an evaluation
//! holds them back, because it is of one version.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use osmosis_core::PolicyVersion;
use osmosis_engine::{RunEvent, Stop};
use osmosis_policy::Weights;
use tokio::sync::mpsc;

use super::evaluating::Evaluating;
use super::{FLAT_STEPS, Trainer, add_update, swap, tell};
use crate::learning::{Learning, StepUpdate};
use crate::phase_clock::PhaseClock;
use crate::rollout_phase::stop_requested;
use crate::rollout_stream::{Happening, RolloutStream, StreamParts, StreamPlan, Trained};
use crate::{StepReport, TrainEnd, TrainError, TrainEvent};

/// Where the learner stands.
enum Learner {
    /// It waits for a batch.
    Resting,
    Updating(Box<Update>),
    /// The new weights wait for the evaluation of those before them.
    Updated {
        report: Box<StepReport>,
        weights: Weights,
    },
}

/// The learner comes back with what it did.
type Work = Pin<Box<dyn Future<Output = (Learning, Result<StepUpdate, TrainError>)> + Send>>;

struct Update {
    report: StepReport,
    began: Instant,
    work: Work,
}

/// What a run without waiting consists of.
pub(super) struct Going<'a> {
    pub(super) trainer: &'a mut Trainer,
    pub(super) stream: RolloutStream,
    pub(super) events: &'a mpsc::Sender<TrainEvent>,
    learner: Learner,
    pub(super) evaluating: Option<Evaluating>,
    /// The engine has ended, as it was asked to.
    ended: bool,
    /// Since when the learner rests.
    rests_since: Instant,
    /// How long rollouts were held back since the last step.
    held_back: Duration,
    /// Since the beginning, and what of it belongs to the step.
    began: Instant,
    clock: PhaseClock,
    step_began: Instant,
    sampled_before: u64,
}

impl Trainer {
    pub(super) async fn run_without_waiting(
        &mut self,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<TrainEnd, TrainError> {
        if self.step >= self.steps() && !self.evaluation_missing() {
            self.save_if_new(events).await?;
            return Ok(TrainEnd::Complete { steps: self.step });
        }
        let parts = StreamParts {
            store: self.parts.store.clone(),
            sessions: self.parts.sessions.clone(),
            executor: self.parts.executor.clone(),
            engine: self.parts.engine.clone(),
        };
        let plan = StreamPlan {
            rows: self.plan.rows.clone(),
            held_out: Arc::clone(&self.held_out.indices),
            training: self.plan.training.clone(),
            schedule: self.schedule.clone(),
        };
        let version = PolicyVersion(self.step);
        let trained = Trained::Through(self.step);
        let stream = RolloutStream::open(parts, plan, version, trained, stop).await?;
        let sampled_before = self.parts.sampler.rate().sampled_tokens;
        let mut going = Going {
            trainer: self,
            stream,
            events,
            learner: Learner::Resting,
            evaluating: None,
            ended: false,
            rests_since: Instant::now(),
            held_back: Duration::ZERO,
            began: Instant::now(),
            clock: PhaseClock::default(),
            step_began: Instant::now(),
            sampled_before,
        };
        if going.trainer.evaluation_missing() {
            going.begin_evaluation(None).await?;
        }
        let end = going.go(stop).await?;
        let Going {
            trainer,
            stream,
            ended,
            ..
        } = going;
        if !ended {
            stream.finish().await?;
        }
        let complete = trainer.step == trainer.steps();
        match end {
            // The last step has saved it.
            TrainEnd::Complete { .. } if complete => {}
            TrainEnd::Complete { .. } | TrainEnd::NothingToLearn { .. } => {
                trainer.save_if_new(events).await?;
            }
            TrainEnd::Stopped { .. } => {}
        }
        Ok(end)
    }

    async fn save_if_new(&mut self, events: &mpsc::Sender<TrainEvent>) -> Result<(), TrainError> {
        if self.step > 0 && self.saved != Some(self.step) {
            self.save(events).await?;
        }
        Ok(())
    }

    /// So many groups without anything to learn in a row that going on is of no use.
    fn most_flat_groups(&self) -> u64 {
        let batches = FLAT_STEPS * u64::from(self.plan.training.rollout_batch_size);
        batches.max(self.plan.rows.len() as u64)
    }
}

impl Going<'_> {
    async fn go(&mut self, stop: &Stop) -> Result<TrainEnd, TrainError> {
        self.tell_step().await;
        loop {
            let stopping = stop_requested(stop);
            if matches!(self.learner, Learner::Updated { .. }) && self.evaluating.is_none() {
                self.settle(stopping).await?;
            }
            let steps = self.trainer.step;
            if !stopping {
                self.stream.admit().await?;
                self.update_when_there_is_a_batch().await?;
                if let Some(end) = self.end().await {
                    return Ok(end);
                }
            } else if self.ended && !matches!(self.learner, Learner::Updating(_)) {
                self.leave().await?;
                return Ok(TrainEnd::Stopped { steps });
            }
            let (held_back, since) = (self.stream.held_back(), Instant::now());
            tokio::select! {
                biased;
                (learning, update) = self.learner.updated() => self.updated(learning, update)?,
                happening = self.stream.next(), if !self.ended => self.note(happening, stop).await?,
                () = stop.drain.cancelled(), if !stopping => {}
                () = stop.now.cancelled(), if !stopping => {}
            }
            if held_back {
                self.held_back += since.elapsed();
            }
        }
    }

    // `&mut`, so that the future can be sent between threads: an update is not `Sync`.
    async fn end(&mut self) -> Option<TrainEnd> {
        if !matches!(self.learner, Learner::Resting) || self.evaluating.is_some() {
            return None;
        }
        let (steps, groups) = (self.trainer.step, self.stream.flat());
        if steps >= self.trainer.steps() {
            return Some(TrainEnd::Complete { steps });
        }
        if groups < self.trainer.most_flat_groups() {
            return None;
        }
        let message = format!(
            "{groups} groups in a row had rewards that don't differ, so there is nothing to learn from \
             them: {}. Training ends after step {steps}",
            self.stream.why_flat()
        );
        tracing::warn!("{message}");
        tell(self.events, TrainEvent::Warning { message }).await;
        Some(TrainEnd::NothingToLearn { steps, groups })
    }

    async fn tell_step(&mut self) {
        let (step, steps) = (self.trainer.step + 1, self.trainer.steps());
        if step <= steps {
            tell(self.events, TrainEvent::StepBegan { step, steps }).await;
        }
    }

    async fn note(&mut self, happening: Happening, stop: &Stop) -> Result<(), TrainError> {
        self.stream.note(&happening).await?;
        match happening {
            Happening::Engine(event) => {
                self.clock.note(&event, self.began.elapsed());
                if let RunEvent::Finished { id, .. } = &event
                    && let Some(evaluating) = &mut self.evaluating
                    && evaluating.missing.remove(id)
                    && evaluating.missing.is_empty()
                {
                    self.end_evaluation().await?;
                }
                tell(self.events, TrainEvent::Rollout(event)).await;
                Ok(())
            }
            Happening::Look => Ok(()),
            Happening::Ended(result) => {
                result?;
                if !stop_requested(stop) {
                    return Err(TrainError::Internal(
                        "the engine ended before training did".to_owned(),
                    ));
                }
                self.ended = true;
                Ok(())
            }
        }
    }

    async fn update_when_there_is_a_batch(&mut self) -> Result<(), TrainError> {
        if !matches!(self.learner, Learner::Resting) {
            return Ok(());
        }
        let Some(taken) = self.stream.take_batch().await? else {
            return Ok(());
        };
        let step = taken.number;
        tell(self.events, TrainEvent::Updating { step }).await;
        let report = StepReport {
            lr: self.trainer.plan.training.lr,
            ..taken.report(&self.stream.take_recent(), self.rests_since.elapsed())
        };
        let batch = taken.lesson.batch;
        let mut learning = self.trainer.learning.lend();
        let work = async move {
            let update = if batch.rows.is_empty() {
                let weights = learning.weights().await;
                weights.map(|weights| StepUpdate {
                    reports: Vec::new(),
                    weights,
                })
            } else {
                learning.update(step, batch).await
            };
            (learning, update)
        };
        self.learner = Learner::Updating(Box::new(Update {
            report,
            began: Instant::now(),
            work: Box::pin(work),
        }));
        Ok(())
    }

    fn updated(
        &mut self,
        learning: Learning,
        update: Result<StepUpdate, TrainError>,
    ) -> Result<(), TrainError> {
        self.trainer.learning.take_back(learning);
        let update = update?;
        let learner = std::mem::replace(&mut self.learner, Learner::Resting);
        if let Learner::Updating(done) = learner {
            let Update {
                mut report, began, ..
            } = *done;
            report.time_update = began.elapsed().as_secs_f64();
            if !update.reports.is_empty() {
                add_update(&mut report, &update.reports, &self.trainer.plan.training);
            }
            self.learner = Learner::Updated {
                report: Box::new(report),
                weights: update.weights,
            };
        }
        Ok(())
    }

    /// Puts new weights in place, and makes the step durable.
    async fn settle(&mut self, stopping: bool) -> Result<(), TrainError> {
        let learner = std::mem::replace(&mut self.learner, Learner::Resting);
        let Learner::Updated {
            mut report,
            weights,
        } = learner
        else {
            self.learner = learner;
            return Ok(());
        };
        let step = report.step;
        let swapping = Instant::now();
        swap(&self.trainer.parts, weights, step).await?;
        report.time_swap = swapping.elapsed().as_secs_f64();
        self.close_accounts(&mut report);

        // Recorded before it is saved: a checkpoint never knows more than the store.
        self.trainer.journal.record_report(&report).await?;
        self.trainer.step = step;
        self.stream.trained()?;
        self.stream.advance(PolicyVersion(step)).await?;
        tell(self.events, TrainEvent::Stepped(report.clone())).await;
        self.trainer
            .watch_dropped_groups(&report, self.events)
            .await;

        let every = self.trainer.plan.checkpoints.checkpoint_save_freq.max(1);
        if step.is_multiple_of(every) || step == self.trainer.steps() {
            let saving = Instant::now();
            self.trainer.save(self.events).await?;
            report.time_save = Some(saving.elapsed().as_secs_f64());
            self.trainer.journal.record_report(&report).await?;
        }
        if self.trainer.evaluation_due() && !stopping {
            self.begin_evaluation(Some(report)).await?;
        } else {
            self.trainer.journal.publish()?;
        }
        self.rests_since = Instant::now();
        self.tell_step().await;
        Ok(())
    }

    /// The times of the step that ends, and those of the next begin.
    fn close_accounts(&mut self, report: &mut StepReport) {
        self.clock.advance(self.began.elapsed());
        report.time_rollout = std::mem::take(&mut self.clock.rollout).as_secs_f64();
        report.time_grade = std::mem::take(&mut self.clock.grade).as_secs_f64();
        let took = std::mem::replace(&mut self.step_began, Instant::now()).elapsed();
        report.time_step = took.as_secs_f64();
        let held_back = std::mem::take(&mut self.held_back);
        if let Some(numbers) = &mut report.asynchronous {
            numbers.time_wait_update = held_back.as_secs_f64();
        }
        let sampled = self.trainer.parts.sampler.rate().sampled_tokens;
        let before = std::mem::replace(&mut self.sampled_before, sampled);
        let seconds = took.as_secs_f64();
        report.tokens_per_second =
            (seconds > 0.0).then(|| sampled.saturating_sub(before) as f64 / seconds);
    }

    /// Saves what can be saved when asked to stop.
    async fn leave(&mut self) -> Result<(), TrainError> {
        if self.evaluating.take().is_some_and(|e| e.report.is_some()) {
            self.trainer.journal.publish()?;
        }
        match self.learner {
            // The learner is one step ahead of what is recorded. A resume repeats the evaluation with the
            // weights that it is of, which it makes of the last checkpoint and the recorded batches.
            Learner::Updated { .. } => Ok(()),
            Learner::Resting | Learner::Updating(_) => self.trainer.save_if_new(self.events).await,
        }
    }
}

impl Learner {
    /// Waits for the end of the update; for ever when there is none.
    async fn updated(&mut self) -> (Learning, Result<StepUpdate, TrainError>) {
        match self {
            Self::Updating(update) => update.work.as_mut().await,
            Self::Resting | Self::Updated { .. } => std::future::pending().await,
        }
    }
}
