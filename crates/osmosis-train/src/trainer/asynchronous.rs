//! Training without waiting: rollouts go on while the policy is updated.
//!
//! One task does it all, one thing at a time: it takes note of what happened to rollouts, begins others,
//! takes a batch when there is one and nothing is being updated. The update itself computes on threads of
//! its own. New weights are swapped in between two tokens of whatever is being sampled; only an evaluation
//! holds them back, because it is of one version.

use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use osmosis_core::staleness::DiscardReason;
use osmosis_core::{PolicyVersion, RolloutId};
use osmosis_engine::{RunEvent, Stop};
use osmosis_policy::Weights;
use tokio::sync::mpsc;

use super::{FLAT_STEPS, Trainer, add_update, swap, tell};
use crate::learning::{Learning, StepUpdate};
use crate::phase_clock::PhaseClock;
use crate::report::numbers_of;
use crate::rollout_phase::{refuse_nothing, stop_requested};
use crate::rollout_stream::{
    Happening, Recent, RolloutStream, StreamParts, StreamPlan, TakenBatch, Trained,
};
use crate::{AsyncReport, EvaluationReport, StepReport, TrainEnd, TrainError, TrainEvent};

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

/// An evaluation under way. The weights stay as they are until it is done.
struct Evaluating {
    step: u64,
    ids: Vec<RolloutId>,
    missing: HashSet<RolloutId>,
    began: Instant,
    /// Of the step that it completes; `None` when that was published before.
    report: Option<Box<StepReport>>,
}

/// What a run without waiting consists of.
struct Going<'a> {
    trainer: &'a mut Trainer,
    stream: RolloutStream,
    events: &'a mpsc::Sender<TrainEvent>,
    learner: Learner,
    evaluating: Option<Evaluating>,
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
            gateway: self.parts.gateway.clone(),
            workers: self.parts.workers.clone(),
            engine: self.parts.engine.clone(),
        };
        let held_out: BTreeSet<u64> = self.plan.held_out.iter().map(|row| row.row_index).collect();
        let plan = StreamPlan {
            rows: self.plan.rows.clone(),
            held_out,
            training: self.plan.training.clone(),
            schedule: self.schedule.clone(),
        };
        let version = PolicyVersion(self.step);
        let trained = Trained::Through(self.step);
        let (stream, _) = RolloutStream::open(parts, plan, version, trained, stop).await?;
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

    async fn end(&self) -> Option<TrainEnd> {
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
             them: the task may be too easy or too hard for this model by now, or the grader gives every \
             rollout the same. Training ends after step {steps}"
        );
        tracing::warn!("{message}");
        tell(self.events, TrainEvent::Warning { message }).await;
        Some(TrainEnd::NothingToLearn { steps, groups })
    }

    async fn tell_step(&self) {
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
        let report = self.report(&taken);
        let rows = taken.lesson.batch.rows;
        let mut learning = self.trainer.learning.lend();
        let work = async move {
            let update = if rows.is_empty() {
                let weights = learning.weights().await;
                weights.map(|weights| StepUpdate {
                    reports: Vec::new(),
                    weights,
                })
            } else {
                learning.update(step, rows).await
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

    /// What is known of a step when its batch is taken. Rewards and outcomes are those of all rollouts that
    /// ended since the step before, not of the chosen ones alone.
    fn report(&mut self, taken: &TakenBatch) -> StepReport {
        let Recent {
            rollouts,
            mut discarded,
        } = self.stream.take_recent();
        let numbers = numbers_of(&rollouts);
        let mut given_up = |reason| discarded.remove(&reason).unwrap_or_default();
        let groups = &taken.lesson.groups;
        StepReport {
            step: taken.number,
            version: taken.number,
            epoch: taken.epoch,
            reward_mean: numbers.reward.mean,
            reward_std: numbers.reward.std,
            pass_rate: numbers.pass_rate,
            groups_used: groups.used,
            groups_no_variance: groups.no_variance + given_up(DiscardReason::NoVariance),
            groups_incomplete: groups.incomplete + given_up(DiscardReason::Incomplete),
            rollouts: numbers.outcomes,
            rollouts_stale: taken.stale_rollouts,
            rows: taken.lesson.batch.rows.len() as u64,
            tokens_trained: taken.lesson.batch.tokens,
            tokens_sampled: numbers.completion_tokens,
            skipped: taken.lesson.skipped(),
            lr: self.trainer.plan.training.lr,
            asynchronous: Some(AsyncReport {
                staleness_mean: taken.staleness.mean(),
                staleness_max: taken.staleness.max(),
                staleness: taken.staleness.clone(),
                tokens_masked: taken.masked_tokens,
                groups_stale: given_up(DiscardReason::Stale),
                time_wait_rollouts: self.rests_since.elapsed().as_secs_f64(),
                time_wait_update: 0.0,
            }),
            ..StepReport::default()
        }
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

    /// Has the held-out rows run with the weights as they stand.
    async fn begin_evaluation(
        &mut self,
        report: Option<Box<StepReport>>,
    ) -> Result<(), TrainError> {
        let step = self.trainer.step;
        let rows = self.trainer.plan.held_out.clone();
        let indices: Vec<u64> = rows.iter().map(|row| row.row_index).collect();
        let Some(rollouts) = self.trainer.evaluations.rollouts(step, &indices) else {
            return Ok(());
        };
        tell(self.events, TrainEvent::Evaluating { step }).await;
        let ids: Vec<RolloutId> = rollouts.iter().map(|r| r.id.clone()).collect();
        let known = self.trainer.parts.store.rollouts_by_id(&ids).await?;
        let done: HashSet<RolloutId> = known
            .into_iter()
            .filter(|rollout| rollout.outcome.is_some())
            .map(|rollout| rollout.id)
            .collect();
        let missing: HashSet<RolloutId> = ids
            .iter()
            .filter(|id| !done.contains(id))
            .cloned()
            .collect();
        let nothing_missing = missing.is_empty();
        self.evaluating = Some(Evaluating {
            step,
            ids,
            missing,
            began: Instant::now(),
            report,
        });
        if nothing_missing {
            return self.end_evaluation().await;
        }
        self.stream.run(rows, rollouts).await
    }

    async fn end_evaluation(&mut self) -> Result<(), TrainError> {
        let Some(evaluating) = self.evaluating.take() else {
            return Ok(());
        };
        let step = evaluating.step;
        let store = &self.trainer.parts.store;
        let rollouts = store.rollouts_by_id(&evaluating.ids).await?;
        refuse_nothing(&format!("the evaluation after step {step}"), &rollouts)?;
        let seconds = evaluating.began.elapsed().as_secs_f64();
        let numbers = EvaluationReport::of(&rollouts, seconds);
        let told = TrainEvent::Evaluated {
            step,
            report: Box::new(numbers.clone()),
        };
        tell(self.events, told).await;
        let journal = &mut self.trainer.journal;
        match evaluating.report {
            Some(mut report) => {
                report.evaluation = Some(numbers);
                journal.record_report(&report).await?;
                journal.publish()
            }
            None => journal.add_evaluation(step, &numbers).await,
        }
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
