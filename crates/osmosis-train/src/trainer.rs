//! The loop: rollouts, update, swap, record, save, evaluate; and how it begins again.

mod asynchronous;
mod completion;
mod dropped_groups;
mod evaluating;
mod replay;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use camino::Utf8Path;
use osmosis_core::PolicyVersion;
use osmosis_engine::{Measuring, Stop};
use osmosis_store::{NewRollout, NewRow, StepRecord};
use tokio::sync::mpsc;

use self::dropped_groups::DroppedGroups;
use crate::checkpoints;
use crate::evaluation::{DueEvaluation, HeldOutSet};
use crate::journal::Journal;
use crate::learning::Learning;
use crate::report::numbers_of;
use crate::rollout_phase::{PhaseResults, RolloutPhase, stop_requested};
use crate::schedule::{EvaluationSchedule, PlannedStep, Schedule};
use crate::step::{Lesson, planned_lesson, why_flat};
use crate::{
    EvaluationReport, SkipReason, StepReport, TrainEnd, TrainError, TrainEvent, TrainParts,
    TrainPlan,
};

/// After so many steps in a row without an update somebody should be told.
const FLAT_STEPS: u64 = 10;

/// Trains.
#[derive(Debug)]
pub struct Trainer {
    plan: TrainPlan,
    parts: TrainParts,
    schedule: Schedule,
    evaluations: EvaluationSchedule,
    held_out: HeldOutSet,
    learning: Learning,
    /// Steps that are done, and the version of the weights.
    step: u64,
    /// The step of the newest checkpoint.
    saved: Option<u64>,
    journal: Journal,
    /// Steps in a row without an update.
    flat: u64,
    dropped: DroppedGroups,
    /// Of these, the last in a row whose attempts were all identical.
    identical: u64,
    /// What `open` had to say.
    warnings: Vec<String>,
}

impl Trainer {
    /// Makes ready: a fresh run, or the state after the last good checkpoint of an earlier one.
    ///
    /// The caller has taken hold of the store and called `recover`. It does not call `requeue`: the
    /// weights depend on the results of earlier steps as they are, and what failed in the current one is
    /// tried again here.
    pub async fn open(mut plan: TrainPlan, parts: TrainParts) -> Result<Self, TrainError> {
        let rows: Vec<u64> = plan.rows.iter().map(|row| row.row_index).collect();
        let trained: HashSet<&u64> = rows.iter().collect();
        if plan
            .held_out
            .iter()
            .any(|row| trained.contains(&row.row_index))
        {
            return Err(TrainError::Internal(
                "a held-out row is also a row to train on".to_owned(),
            ));
        }
        let schedule = Schedule::new(&rows, &plan.training, plan.seed)?;
        let evaluations = EvaluationSchedule::new(&plan.checkpoints, schedule.steps());

        let mut warnings = Vec::new();
        let mut learning = Learning::begin(&plan.training, parts.model.clone()).await?;
        let saved = restore_newest(&mut learning, &parts.folder, plan.seed, &mut warnings).await?;
        let step = saved.unwrap_or(0);
        let step = if plan.training.max_staleness > 0 {
            replay::replay(&plan.training, &parts, &mut learning, step).await?
        } else {
            step
        };
        let weights = learning.weights().await?;
        completion::swap(&parts, weights, step).await?;

        let journal = Journal::open(
            parts.store.clone(),
            parts.folder.clone(),
            step,
            parts.tensorboard,
        )
        .await?;
        Ok(Self {
            held_out: HeldOutSet::new(std::mem::take(&mut plan.held_out)),
            plan,
            parts,
            schedule,
            evaluations,
            learning,
            step,
            saved,
            journal,
            flat: 0,
            dropped: DroppedGroups::default(),
            identical: 0,
            warnings,
        })
    }

    /// Steps that are done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Steps that the run has.
    pub fn steps(&self) -> u64 {
        self.schedule.steps()
    }

    /// The numbers of the steps that are done, in order.
    pub fn records(&self) -> &[StepRecord] {
        self.journal.records()
    }

    /// Trains until the plan is done or it is asked to stop. When stopped, what is done is saved.
    ///
    /// After an error the trainer is of no more use: open the run again.
    pub async fn run(
        &mut self,
        stop: &Stop,
        events: mpsc::Sender<TrainEvent>,
    ) -> Result<TrainEnd, TrainError> {
        for message in std::mem::take(&mut self.warnings) {
            tell(&events, TrainEvent::Warning { message }).await;
        }
        if self.plan.training.max_staleness > 0 {
            return self.run_without_waiting(stop, &events).await;
        }
        if self.evaluation_missing() && !self.evaluate_again(stop, &events).await? {
            return self.stopped(&events).await;
        }
        while self.step < self.steps() {
            if stop_requested(stop) || !self.train_step(stop, &events).await? {
                return self.stopped(&events).await;
            }
        }
        Ok(TrainEnd::Complete { steps: self.step })
    }

    async fn stopped(&mut self, events: &mpsc::Sender<TrainEvent>) -> Result<TrainEnd, TrainError> {
        self.save_if_new(events).await?;
        Ok(TrainEnd::Stopped { steps: self.step })
    }

    /// One step; `false` when asked to stop before it, or the evaluation after it, was done.
    async fn train_step(
        &mut self,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<bool, TrainError> {
        let began = Instant::now();
        let planned = self.schedule.step(self.step + 1);
        let step = planned.step;
        let steps = self.steps();
        tell(events, TrainEvent::StepBegan { step, steps }).await;

        let phase = RolloutPhase {
            name: format!("step {step}"),
            rows: self.rows_of(&planned),
            rollouts: planned.rollouts.clone(),
            measuring: Measuring::Nothing,
            settled: step <= self.journal.settled(),
        };
        let Some(results) = phase.run(&self.parts, stop, events).await? else {
            return Ok(false);
        };

        tell(events, TrainEvent::Updating { step }).await;
        let updating = Instant::now();
        let lesson = planned_lesson(
            &*self.parts.store,
            &results.rollouts,
            &self.plan.training,
            self.parts.executor.self_graded(),
            PolicyVersion(self.step),
        )
        .await?;
        let mut report = self.report(&planned, &results, &lesson);
        let update = self.learning.update(step, lesson.batch).await?;
        report.time_update = updating.elapsed().as_secs_f64();

        let times = |report: &mut StepReport| report.time_step = began.elapsed().as_secs_f64();
        let report = self
            .complete_step(report, update, times, None, events)
            .await?;
        let due = self.evaluation_due();
        let evaluation = if due {
            self.evaluate(stop, events).await?
        } else {
            None
        };
        let finished = !due || evaluation.is_some();
        self.publish_step(report, evaluation).await?;
        Ok(finished)
    }

    fn report(&self, planned: &PlannedStep, results: &PhaseResults, lesson: &Lesson) -> StepReport {
        let numbers = numbers_of(&results.rollouts, None);
        StepReport {
            step: planned.step,
            version: planned.step,
            epoch: planned.epoch,
            reward_mean: numbers.reward.mean,
            reward_std: numbers.reward.std,
            pass_rate: numbers.pass_rate,
            groups_used: lesson.groups.used,
            groups_no_variance: lesson.groups.no_variance,
            groups_identical: lesson.identical,
            groups_incomplete: lesson.groups.incomplete,
            rollouts: numbers.outcomes,
            rollouts_stale: lesson.stale,
            rows: lesson.batch.rows.len() as u64,
            tokens_trained: lesson.batch.tokens,
            tokens_sampled: numbers.completion_tokens,
            tokens_per_second: results.tokens_per_second,
            skipped: lesson.skipped(),
            lr: self.plan.training.lr,
            time_rollout: results.rollout_time.as_secs_f64(),
            time_grade: results.grade_time.as_secs_f64(),
            ..StepReport::default()
        }
    }

    async fn watch_flat_steps(&mut self, report: &StepReport, events: &mpsc::Sender<TrainEvent>) {
        let Some(reason) = report.skipped else {
            self.flat = 0;
            self.identical = 0;
            return;
        };
        self.flat += 1;
        // A step of nothing but identical attempts needs no second look.
        let groups = report.groups_no_variance + report.groups_incomplete;
        let all_identical = report.groups_identical > 0 && report.groups_identical >= groups;
        self.identical = if all_identical { self.identical + 1 } else { 0 };
        if self.identical == 1 || self.flat.is_multiple_of(FLAT_STEPS) {
            let because = match reason {
                SkipReason::NoVariance => {
                    let attempts = self.plan.training.n_samples_per_prompt;
                    let why = why_flat(self.identical > 0, attempts);
                    format!("no group had rewards that differ: {why}")
                }
                SkipReason::NoCompleteGroup => {
                    "no group had a reward for each of its rollouts: `train show` names what happened \
                     to them"
                        .to_owned()
                }
                SkipReason::NoTokens => {
                    "what has a reward holds no token that can be trained on: of calls with `n` above 1, \
                     only the choices that a later call continues can"
                        .to_owned()
                }
            };
            let message = if self.flat == 1 {
                format!("step {} made no update, because {because}", report.step)
            } else {
                format!(
                    "{} steps in a row made no update, because {because}",
                    self.flat
                )
            };
            tracing::warn!(step = report.step, "{message}");
            tell(events, TrainEvent::Warning { message }).await;
        }
    }

    async fn watch_dropped_groups(
        &mut self,
        report: &StepReport,
        events: &mpsc::Sender<TrainEvent>,
    ) {
        if let Some(message) = self.dropped.note(report) {
            tracing::warn!(step = report.step, "{message}");
            tell(events, TrainEvent::Warning { message }).await;
        }
    }

    fn rows_of(&self, planned: &PlannedStep) -> Vec<NewRow> {
        let rows: HashMap<u64, &NewRow> = self
            .plan
            .rows
            .iter()
            .map(|row| (row.row_index, row))
            .collect();
        let wanted = planned.rows.iter().filter_map(|row| rows.get(row));
        wanted.map(|row| (*row).clone()).collect()
    }

    fn evaluation_due(&self) -> bool {
        !self.held_out.rows.is_empty() && self.evaluations.ordinal(self.step).is_some()
    }

    /// The evaluation after the step that is done has not been recorded: the run begins, or an earlier
    /// process ended in between.
    fn evaluation_missing(&self) -> bool {
        self.evaluation_due() && !self.journal.evaluated(self.step)
    }

    /// Evaluates and adds the numbers to the record of the step that is done; `false` when stopped.
    async fn evaluate_again(
        &mut self,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<bool, TrainError> {
        let (step, steps) = (self.step, self.steps());
        tell(events, TrainEvent::StepBegan { step, steps }).await;
        let Some(report) = self.evaluate(stop, events).await? else {
            return Ok(false);
        };
        self.journal.add_evaluation(step, &report).await?;
        Ok(true)
    }

    async fn evaluate(
        &mut self,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<Option<EvaluationReport>, TrainError> {
        let Some(rollouts) = self.evaluation_rollouts() else {
            return Ok(None);
        };
        let due = DueEvaluation {
            step: self.step,
            held_out: &self.held_out,
            rollouts,
            settled: self.step < self.journal.settled(),
        };
        due.run(&self.parts, stop, events).await
    }

    /// The rollouts of the evaluation after the step that is done, when one is due.
    fn evaluation_rollouts(&self) -> Option<Vec<NewRollout>> {
        let rows: Vec<u64> = self.held_out.rows.iter().map(|row| row.row_index).collect();
        self.evaluations.rollouts(self.step, &rows)
    }
}

/// Restores the newest checkpoint that is whole and returns its step; those that are not are told of and
/// passed over.
async fn restore_newest(
    learning: &mut Learning,
    run_folder: &Utf8Path,
    seed: u64,
    warnings: &mut Vec<String>,
) -> Result<Option<u64>, TrainError> {
    for checkpoint in checkpoints::list(run_folder)?.into_iter().rev() {
        match learning.restore(checkpoint).await {
            Ok(state) if state.seed == seed => return Ok(Some(state.step)),
            Ok(state) => {
                return Err(TrainError::Internal(format!(
                    "the run was trained with seed {}, not {seed}",
                    state.seed
                )));
            }
            Err(error @ TrainError::Checkpoint { .. }) => {
                tracing::warn!("{error}; going back to an earlier one");
                warnings.push(format!("{error}; going back to an earlier one"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

async fn tell(events: &mpsc::Sender<TrainEvent>, event: TrainEvent) {
    // Nobody listens any more: the display is gone, training is not.
    let _ = events.send(event).await;
}
