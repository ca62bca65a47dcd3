//! The loop: rollouts, update, swap, record, save, evaluate; and how it begins again.

mod asynchronous;
mod completion;
mod dropped_groups;
mod ending;
mod evaluating;
mod further_rows;
mod replay;
mod second_chance;

use std::collections::HashSet;
use std::time::Instant;

use camino::Utf8Path;
use osmosis_engine::Stop;
use osmosis_store::{NewRollout, StepRecord};
use tokio::sync::mpsc;

use self::dropped_groups::DroppedGroups;
use self::further_rows::StepRun;
use crate::checkpoints;
use crate::evaluation::{DueEvaluation, HeldOutSet};
use crate::failed_alike::{FailedAlike, failed_alike, most_frequent_error};
use crate::frontier::{self, RowRecords};
use crate::journal::Journal;
use crate::learning::Learning;
use crate::report::numbers_of;
use crate::rollout_phase::{PhaseResults, stop_requested};
use crate::schedule::{EvaluationSchedule, PlannedStep, Schedule};
use crate::step::{StepInput, why_flat};
use crate::{
    EndCause, EvaluationReport, SkipReason, StepReport, TrainEnd, TrainError, TrainEvent,
    TrainParts, TrainPlan,
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
    /// The error that most rollouts of the step failed with.
    why_failed: Option<String>,
    /// Whether any step has changed the weights: without one, a checkpoint would be the start model again.
    updated: bool,
    /// The evaluation before training is recorded, and some of its rollouts run again.
    evaluates_again: bool,
    /// Of the steps that are done, where rows are chosen by it.
    row_records: RowRecords,
    /// What `open` had to say.
    warnings: Vec<String>,
}

/// How a step ended.
enum StepEnd {
    Done,
    /// Asked to stop before it, or the evaluation after it, was done.
    Stopped,
    FailedAlike(FailedAlike),
}

impl Trainer {
    /// Makes ready: a fresh run, or the state after the last good checkpoint of an earlier one. That may be one of this
    /// process, with the same parts: the weights go back, so nodes end what they sample.
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
        parts.model.begun();
        let saved = restore_newest(&mut learning, &parts.folder, plan.seed, &mut warnings).await?;
        let step = saved.unwrap_or(0);
        let step = if plan.training.max_staleness > 0 {
            replay::replay(&plan.training, &parts, &mut learning, step).await?
        } else {
            step
        };
        let weights = learning.weights().await?;
        if let Some(nodes) = &parts.nodes {
            nodes.interrupt();
        }
        completion::swap(&parts, weights, step).await?;

        let journal = Journal::open(
            parts.store.clone(),
            parts.folder.clone(),
            step,
            parts.tensorboard,
        )
        .await?;
        let mut trainer = Self {
            updated: saved.is_some() || journal.any_update(),
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
            why_failed: None,
            evaluates_again: false,
            row_records: RowRecords::new(),
            warnings,
        };
        trainer.read_row_records().await?;
        trainer.retry_what_failed_alike().await?;
        Ok(trainer)
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
        let came_to = if self.plan.training.max_staleness > 0 {
            self.run_asynchronously(stop, &events).await?
        } else {
            self.run_in_turns(stop, &events).await?.into()
        };
        self.end(came_to, stop, &events).await
    }

    /// Rollouts and updates take turns.
    async fn run_in_turns(
        &mut self,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<EndCause, TrainError> {
        if self.evaluation_missing() && !self.evaluate_again(stop, events).await? {
            return Ok(EndCause::Stopped);
        }
        while self.step < self.steps() {
            if stop_requested(stop) {
                return Ok(EndCause::Stopped);
            }
            match self.train_step(stop, events).await? {
                StepEnd::Done => {}
                StepEnd::Stopped => return Ok(EndCause::Stopped),
                StepEnd::FailedAlike(failed) => return Ok(failed_end(&failed, events).await),
            }
        }
        Ok(EndCause::Complete)
    }

    async fn train_step(
        &mut self,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<StepEnd, TrainError> {
        let began = Instant::now();
        let planned = self.schedule.step(self.step + 1, &self.row_records);
        let step = planned.step;
        let steps = self.steps();
        tell(events, TrainEvent::StepBegan { step, steps }).await;

        let phase = self.phase(&planned, &planned.rows, planned.rollouts.clone());
        let settled = phase.settled;
        let Some(results) = phase.run(&self.parts, stop, events).await? else {
            return Ok(StepEnd::Stopped);
        };
        if step == 1
            && !settled
            && let Some(failed) = failed_alike(&results.rollouts)
        {
            return Ok(StepEnd::FailedAlike(failed));
        }
        let run = self.with_further_rows(&planned, results, stop, events);
        let Some(run) = run.await? else {
            return Ok(StepEnd::Stopped);
        };
        let StepRun { results, input, .. } = &run;

        tell(events, TrainEvent::Updating { step }).await;
        let updating = Instant::now();
        let mut report = self.report(&planned, results, input);
        report.rows_extra = (self.plan.training.max_extra_rows > 0).then_some(run.extra);
        report.frontier = self.frontier_report(&planned);
        if report.frontier.is_some() {
            frontier::note(&mut self.row_records, &results.rollouts);
        }
        self.why_failed = most_frequent_error(&results.rollouts);
        let update = self.learning.update(step, run.input.batch).await?;
        report.time_update = updating.elapsed().as_secs_f64();

        let times = |report: &mut StepReport| report.time_step = began.elapsed().as_secs_f64();
        let report = self
            .complete_step(report, update, times, None, events)
            .await?;
        let due = self.evaluation_rollouts();
        let is_due = due.is_some();
        let evaluation = match due {
            Some(rollouts) => self.evaluate(rollouts, stop, events).await?,
            None => None,
        };
        let finished = !is_due || evaluation.is_some();
        self.publish_step(report, evaluation).await?;
        Ok(if finished {
            StepEnd::Done
        } else {
            StepEnd::Stopped
        })
    }

    fn report(
        &self,
        planned: &PlannedStep,
        results: &PhaseResults,
        input: &StepInput,
    ) -> StepReport {
        let numbers = numbers_of(&results.rollouts, None);
        StepReport {
            step: planned.step,
            version: planned.step,
            epoch: planned.epoch,
            reward_mean: numbers.reward.mean,
            reward_std: numbers.reward.std,
            pass_rate: numbers.pass_rate,
            groups_used: input.groups.used,
            groups_no_variance: input.groups.no_variance,
            groups_identical: input.identical,
            groups_incomplete: input.groups.incomplete,
            rollouts: numbers.outcomes,
            rollouts_stale: input.stale,
            rows: input.batch.rows.len() as u64,
            tokens_trained: input.batch.tokens,
            tokens_sampled: numbers.completion_tokens,
            tokens_per_second: results.tokens_per_second,
            skipped: input.skipped(),
            overlong_penalized: input.overlong.map(|numbers| numbers.penalized),
            overlong_penalty_mean: input.overlong.map(|numbers| numbers.penalty_mean),
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
                    let why = self.why_failed.as_deref();
                    let why = why.map_or_else(String::new, |why| format!(": {why}"));
                    format!("no row had a reward for each of its attempts{why}")
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

    fn evaluation_due(&self) -> bool {
        !self.held_out.rows.is_empty() && self.evaluations.ordinal(self.step).is_some()
    }

    /// The evaluation after the step that is done has not been recorded: the run begins, or an earlier
    /// process ended in between.
    fn evaluation_missing(&self) -> bool {
        self.evaluation_due() && (self.evaluates_again || !self.journal.evaluated(self.step))
    }

    /// Evaluates and adds the numbers to the record of the step that is done; `false` when stopped.
    async fn evaluate_again(
        &mut self,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<bool, TrainError> {
        let (step, steps) = (self.step, self.steps());
        tell(events, TrainEvent::StepBegan { step, steps }).await;
        let Some(rollouts) = self.evaluation_rollouts() else {
            return Ok(true);
        };
        let Some(report) = self.evaluate(rollouts, stop, events).await? else {
            return Ok(false);
        };
        self.evaluates_again = false;
        self.journal.add_evaluation(step, &report).await?;
        Ok(true)
    }

    /// Evaluates the weights as they stand; `None` when stopped.
    async fn evaluate(
        &mut self,
        rollouts: Vec<NewRollout>,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<Option<EvaluationReport>, TrainError> {
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
        let rows = self.held_out_indices();
        if rows.is_empty() {
            return None;
        }
        self.evaluations.rollouts(self.step, &rows)
    }

    fn held_out_indices(&self) -> Vec<u64> {
        self.held_out.rows.iter().map(|row| row.row_index).collect()
    }
}

/// Restores the newest checkpoint that is whole and returns its step; those that are not are told of and
/// passed over.
pub(crate) async fn restore_newest(
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

/// Training ends before its first step, with the error by name.
async fn failed_end(failed: &FailedAlike, events: &mpsc::Sender<TrainEvent>) -> EndCause {
    let FailedAlike { rollouts, error } = failed;
    let message = format!(
        "all {rollouts} attempts of the first step failed in the same way, so training stops: {error}"
    );
    tracing::warn!("{message}");
    tell(events, TrainEvent::Warning { message }).await;
    EndCause::FailedAlike {
        rollouts: *rollouts,
    }
}

async fn tell(events: &mpsc::Sender<TrainEvent>, event: TrainEvent) {
    // Nobody listens any more: the display is gone, training is not.
    let _ = events.send(event).await;
}
