//! Which rows a synchronous step learns from, beside those that are planned: rows chosen by results, and further rows in
//! place of those whose rewards are all equal.
//!
//! Both follow from the seed and from recorded results, so a resume chooses the same.

use std::collections::{HashMap, HashSet};

use osmosis_core::PolicyVersion;
use osmosis_core::config::RowStrategy;
use osmosis_core::staleness::GroupId;
use osmosis_engine::{Measuring, Stop};
use osmosis_store::{NewRollout, NewRow, RolloutPages, RolloutRecord};
use tokio::sync::mpsc;

use super::Trainer;
use crate::frontier;
use crate::report::FrontierReport;
use crate::rollout_phase::{PhaseResults, RolloutPhase};
use crate::schedule::PlannedStep;
use crate::step::{
    StepInput, StepRollout, flat_visits, groups_of, identical_visits, planned_rollouts, step_input,
};
use crate::{TrainError, TrainEvent};

/// What the rollouts of a step give to learn from.
pub(super) struct StepRun {
    /// Of all rows, those that were replaced too.
    pub(super) results: PhaseResults,
    pub(super) input: StepInput,
    /// Rows that were run in place of others.
    pub(super) extra: u64,
}

impl Trainer {
    /// Rollouts of a step.
    pub(super) fn phase(
        &self,
        planned: &PlannedStep,
        rows: &[u64],
        rollouts: Vec<NewRollout>,
    ) -> RolloutPhase {
        let step = planned.step;
        let of_dataset = self.plan.rows.iter();
        let of_dataset: HashMap<u64, &NewRow> =
            of_dataset.map(|row| (row.row_index, row)).collect();
        let rows = rows.iter().filter_map(|row| of_dataset.get(row));
        RolloutPhase {
            name: format!("step {step}"),
            rows: rows.map(|row| (*row).clone()).collect(),
            rollouts,
            measuring: Measuring::Nothing,
            settled: step <= self.journal.settled(),
        }
    }

    /// Runs further rows in place of those whose rewards are all equal, as far as `max_extra_rows` goes; `None` when asked
    /// to stop.
    pub(super) async fn with_further_rows(
        &self,
        planned: &PlannedStep,
        mut results: PhaseResults,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<Option<StepRun>, TrainError> {
        let training = &self.plan.training;
        let (mut rollouts_of_step, mut stale) = self.rollouts_of_step(&results.rollouts).await?;
        let mut extra = 0;
        let mut flat = Vec::new();
        while extra < planned.further.len() {
            flat = flat_visits(&rollouts_of_step, training);
            // So many of them have another row in their place already.
            let missing = flat.len().saturating_sub(extra);
            let rows: Vec<u64> = planned
                .further
                .iter()
                .skip(extra)
                .copied()
                .take(missing)
                .collect();
            if rows.is_empty() {
                break;
            }
            tracing::info!(
                step = planned.step,
                rows = rows.len(),
                "running further rows"
            );
            let rollouts = self.schedule.further_rollouts(planned.step, &rows);
            let phase = self.phase(planned, &rows, rollouts);
            let Some(more) = phase.run(&self.parts, stop, events).await? else {
                return Ok(None);
            };
            let (rollouts, more_stale) = self.rollouts_of_step(&more.rollouts).await?;
            rollouts_of_step.extend(rollouts);
            stale += more_stale;
            extra += rows.len();
            results.extend(more);
        }
        let replaced: HashSet<GroupId> = flat.into_iter().take(extra).collect();
        let (replaced, kept): (Vec<StepRollout>, Vec<StepRollout>) = rollouts_of_step
            .into_iter()
            .partition(|one| replaced.contains(&one.visit));
        let mut input = step_input(kept, training);
        input.stale = stale;
        // Counted, and no part of the mean.
        input.groups.no_variance += groups_of(&replaced, training).no_variance;
        input.identical += identical_visits(&replaced);
        Ok(Some(StepRun {
            results,
            input,
            extra: extra as u64,
        }))
    }

    async fn rollouts_of_step(
        &self,
        rollouts: &[RolloutRecord],
    ) -> Result<(Vec<StepRollout>, u64), TrainError> {
        planned_rollouts(
            &*self.parts.store,
            rollouts,
            &self.plan.training,
            self.parts.executor.self_graded(),
            PolicyVersion(self.step),
        )
        .await
    }

    /// Reads what the steps that are done recorded of each row, where rows are chosen by it.
    pub(super) async fn read_row_records(&mut self) -> Result<(), TrainError> {
        if self.plan.training.rows.strategy != RowStrategy::Frontier {
            return Ok(());
        }
        let mut pages = RolloutPages::finished(&*self.parts.store);
        while let Some(mut page) = pages.next().await? {
            page.retain(|rollout| {
                let chosen_in = self.schedule.chosen_in(rollout.run_index);
                let measures = self.held_out.indices.contains(&rollout.row_index);
                !measures && chosen_in.is_some_and(|step| step <= self.step)
            });
            frontier::note(&mut self.row_records, &page);
        }
        Ok(())
    }

    /// What was known of the rows of a step, where they were chosen by it.
    pub(super) fn frontier_report(&self, planned: &PlannedStep) -> Option<FrontierReport> {
        if self.plan.training.rows.strategy != RowStrategy::Frontier {
            return None;
        }
        let mut report = FrontierReport {
            tried_so_far: self.row_records.len() as u64,
            ..FrontierReport::default()
        };
        let mut chances = Vec::new();
        for row in &planned.rows {
            let record = self.row_records.get(row).copied().unwrap_or_default();
            let count = match (record.attempts, record.passed) {
                (0, _) => &mut report.untried,
                (_, 0) => &mut report.never,
                (attempts, passed) if passed == attempts => &mut report.always,
                (_, _) => &mut report.sometimes,
            };
            *count += 1;
            if record.attempts > 0 {
                let attempts = self.plan.training.n_samples_per_prompt;
                chances.push(record.chance_of_variance(attempts));
            }
        }
        let mean = chances.iter().sum::<f64>() / chances.len() as f64;
        report.chance_of_variance = (!chances.is_empty()).then_some(mean);
        Some(report)
    }
}
