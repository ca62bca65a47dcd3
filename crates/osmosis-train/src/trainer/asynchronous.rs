//! Asynchronous training: rollouts go on while the policy is updated.
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
use tokio::sync::mpsc;

use super::ending::LoopEnd;
use super::evaluating::Evaluating;
use super::{FLAT_STEPS, Trainer, failed_end, tell};
use crate::learning::{Learning, StepUpdate};
use crate::phase_clock::PhaseClock;
use crate::rollout_phase::stop_requested;
use crate::rollout_stream::{Happening, RolloutStream, StreamParts, StreamPlan, Trained};
use crate::{EndCause, StepReport, TrainError, TrainEvent};

/// Where the learner stands.
enum LearnerState {
    /// It waits for a batch.
    Resting,
    Updating(Box<Update>),
    /// The new weights wait for the evaluation of those before them.
    Updated {
        report: Box<StepReport>,
        update: StepUpdate,
    },
}

/// The learner comes back with what it did.
type Work = Pin<Box<dyn Future<Output = (Learning, Result<StepUpdate, TrainError>)> + Send>>;

struct Update {
    report: StepReport,
    began: Instant,
    work: Work,
}

/// Asynchronous training under way.
pub(super) struct AsyncTraining<'a> {
    pub(super) trainer: &'a mut Trainer,
    pub(super) stream: RolloutStream,
    pub(super) events: &'a mpsc::Sender<TrainEvent>,
    learner: LearnerState,
    pub(super) evaluating: Option<Evaluating>,
    /// The engine has ended, as it was asked to.
    ended: bool,
    /// Since when the learner rests.
    rests_since: Instant,
    clock: StepClock,
}

/// What of the time belongs to the step that is under way.
struct StepClock {
    /// The beginning of it all.
    began: Instant,
    phases: PhaseClock,
    step_began: Instant,
    /// How long rollouts were held back.
    held_back: Duration,
    sampled_before: u64,
}

impl Trainer {
    pub(super) async fn run_asynchronously(
        &mut self,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<LoopEnd, TrainError> {
        if self.step >= self.steps() && !self.evaluation_missing() {
            return Ok(EndCause::Complete.into());
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
        let _open = self.parts.open_to_nodes();
        let clock = StepClock::start(self.parts.sampler.sampled_tokens());
        let mut training = AsyncTraining {
            trainer: self,
            stream,
            events,
            learner: LearnerState::Resting,
            evaluating: None,
            ended: false,
            rests_since: Instant::now(),
            clock,
        };
        if training.trainer.evaluation_missing() {
            training.begin_evaluation(None).await?;
        }
        let driven = training.drive(stop).await;
        let AsyncTraining {
            mut stream,
            ended,
            learner,
            ..
        } = training;
        let cause = match driven {
            Ok(cause) => cause,
            Err(error) => {
                // The run may be opened again by this process: nothing of it must still go on then.
                stream.abandon().await;
                return Err(error);
            }
        };
        let unused = stream.unused_groups();
        // A resume repeats the evaluation with the weights that it is of, which it makes of the last checkpoint and the
        // recorded batches.
        let learner_is_ahead = matches!(learner, LearnerState::Updated { .. });
        if !ended {
            stream.finish().await?;
        }
        Ok(LoopEnd {
            cause,
            unused,
            learner_is_ahead,
        })
    }

    /// So many groups without anything to learn in a row that going on is of no use.
    fn most_flat_groups(&self) -> u64 {
        let batches = FLAT_STEPS * u64::from(self.plan.training.rollout_batch_size);
        batches.max(self.plan.rows.len() as u64)
    }
}

impl AsyncTraining<'_> {
    async fn drive(&mut self, stop: &Stop) -> Result<EndCause, TrainError> {
        self.tell_step().await;
        loop {
            let stopping = stop_requested(stop);
            if matches!(self.learner, LearnerState::Updated { .. }) && self.evaluating.is_none() {
                self.settle(stopping).await?;
            }
            if !stopping {
                self.stream.admit().await?;
                self.update_when_there_is_a_batch().await?;
                if let Some(end) = self.end().await {
                    return Ok(end);
                }
            } else if self.ended && !matches!(self.learner, LearnerState::Updating(_)) {
                self.leave().await?;
                return Ok(EndCause::Stopped);
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
                self.clock.held_back += since.elapsed();
            }
        }
    }

    // `&mut`, so that the future can be sent between threads: an update is not `Sync`.
    async fn end(&mut self) -> Option<EndCause> {
        if !matches!(self.learner, LearnerState::Resting) || self.evaluating.is_some() {
            return None;
        }
        let (steps, groups) = (self.trainer.step, self.stream.flat());
        if steps >= self.trainer.steps() {
            return Some(EndCause::Complete);
        }
        if let Some(failed) = self.stream.failed_alike() {
            return Some(failed_end(&failed, self.events).await);
        }
        if groups < self.trainer.most_flat_groups() {
            return None;
        }
        let message = format!(
            "{groups} groups in a row had rewards that don't differ, so there is nothing to learn from \
             them: training ends after step {steps} of {}",
            self.trainer.steps()
        );
        tracing::warn!("{message}");
        tell(self.events, TrainEvent::Warning { message }).await;
        Some(EndCause::NoVariance { groups })
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
                self.clock.note(&event);
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
        if !matches!(self.learner, LearnerState::Resting) {
            return Ok(());
        }
        let Some(taken) = self.stream.take_batch().await? else {
            return Ok(());
        };
        let step = taken.number;
        tell(self.events, TrainEvent::Updating { step }).await;
        let report = StepReport {
            lr: self.trainer.plan.training.lr,
            ..taken.report(&self.stream.take_given_up(), self.rests_since.elapsed())
        };
        let batch = taken.input.batch;
        let mut learning = self.trainer.learning.lend();
        let work = async move {
            let update = learning.update(step, batch).await;
            (learning, update)
        };
        self.learner = LearnerState::Updating(Box::new(Update {
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
        let learner = std::mem::replace(&mut self.learner, LearnerState::Resting);
        if let LearnerState::Updating(done) = learner {
            let Update {
                mut report, began, ..
            } = *done;
            report.time_update = began.elapsed().as_secs_f64();
            self.learner = LearnerState::Updated {
                report: Box::new(report),
                update,
            };
        }
        Ok(())
    }

    /// Completes the step whose update is made.
    async fn settle(&mut self, stopping: bool) -> Result<(), TrainError> {
        let learner = std::mem::replace(&mut self.learner, LearnerState::Resting);
        let LearnerState::Updated { report, update } = learner else {
            self.learner = learner;
            return Ok(());
        };
        let (clock, sampler) = (&mut self.clock, self.trainer.parts.sampler.clone());
        let times = |report: &mut StepReport| clock.close_step(report, sampler.sampled_tokens());
        let stream = Some(&mut self.stream);
        let report = self
            .trainer
            .complete_step(*report, update, times, stream, self.events)
            .await?;
        if self.trainer.evaluation_due() && !stopping {
            self.begin_evaluation(Some(Box::new(report))).await?;
        } else {
            self.trainer.publish_step(report, None).await?;
        }
        self.rests_since = Instant::now();
        self.tell_step().await;
        Ok(())
    }

    /// Publishes the step whose evaluation is given up, when asked to stop.
    async fn leave(&mut self) -> Result<(), TrainError> {
        match self.evaluating.take().and_then(|e| e.report) {
            Some(report) => self.trainer.publish_step(*report, None).await,
            None => Ok(()),
        }
    }
}

impl LearnerState {
    /// Waits for the end of the update; for ever when there is none.
    async fn updated(&mut self) -> (Learning, Result<StepUpdate, TrainError>) {
        match self {
            Self::Updating(update) => update.work.as_mut().await,
            Self::Resting | Self::Updated { .. } => std::future::pending().await,
        }
    }
}

impl StepClock {
    fn start(sampled_tokens: u64) -> Self {
        Self {
            began: Instant::now(),
            phases: PhaseClock::default(),
            step_began: Instant::now(),
            held_back: Duration::ZERO,
            sampled_before: sampled_tokens,
        }
    }

    fn note(&mut self, event: &RunEvent) {
        self.phases.note(event, self.began.elapsed());
    }

    /// Adds the times of the step that ends; those of the next begin.
    fn close_step(&mut self, report: &mut StepReport, sampled_tokens: u64) {
        self.phases.advance(self.began.elapsed());
        report.time_rollout = std::mem::take(&mut self.phases.rollout).as_secs_f64();
        report.time_grade = std::mem::take(&mut self.phases.grade).as_secs_f64();
        let took = std::mem::replace(&mut self.step_began, Instant::now()).elapsed();
        let seconds = took.as_secs_f64();
        report.time_step = seconds;
        let held_back = std::mem::take(&mut self.held_back);
        if let Some(numbers) = &mut report.asynchronous {
            numbers.time_wait_update = held_back.as_secs_f64();
        }
        let before = std::mem::replace(&mut self.sampled_before, sampled_tokens);
        report.tokens_per_second =
            (seconds > 0.0).then(|| sampled_tokens.saturating_sub(before) as f64 / seconds);
    }
}
