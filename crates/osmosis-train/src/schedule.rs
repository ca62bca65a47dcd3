//! Which rollouts make up which step. A pure function of the rows, the config and the seed, so that a
//! resume computes the same.

use std::collections::HashSet;

use osmosis_core::RolloutId;
use osmosis_core::config::{Checkpoints, RowStrategy, Training};
use osmosis_core::staleness::Pace;
use osmosis_store::NewRollout;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::TrainError;
use crate::frontier::{self, RowRecords};

/// The random numbers of the order of further rows: streams apart from those of epochs.
const FURTHER_ROWS: u64 = 1 << 63;

/// The steps of a run.
///
/// Each epoch goes through all rows in an order of its own, `rollout_batch_size` rows a step. The last
/// batch of an epoch is smaller when the rows don't divide evenly; it is kept, so that every row is
/// trained on once per epoch, and a row never comes twice in one step. `steps` of the config overrides
/// `total_epochs`. With `strategy = "frontier"` the rows of a step follow from the results of the steps before it
/// ([`frontier`]), and there are as many steps.
#[derive(Debug, Clone)]
pub struct Schedule {
    rows: Vec<u64>,
    batch: usize,
    samples: u32,
    /// [`runs_per_visit`]
    stride: u32,
    steps: u64,
    seed: u64,
    strategy: RowStrategy,
    /// `max_extra_rows`
    extra: usize,
}

/// One step: which rows, and the rollouts of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStep {
    /// From 1.
    pub step: u64,
    /// From 0.
    pub epoch: u64,
    /// Indices of dataset rows, in the order of the shuffle.
    pub rows: Vec<u64>,
    /// All rollouts of a row together, rows in order.
    pub rollouts: Vec<NewRollout>,
    /// Other rows, in the order in which they take the place of rows whose rewards are all equal.
    pub further: Vec<u64>,
}

impl Schedule {
    /// `rows` are the indices of the dataset rows to train on.
    pub fn new(rows: &[u64], training: &Training, seed: u64) -> Result<Self, TrainError> {
        if rows.is_empty() {
            return Err(TrainError::NoRows);
        }
        let distinct: HashSet<&u64> = rows.iter().collect();
        if distinct.len() != rows.len() {
            return Err(TrainError::Internal(
                "a dataset row occurs twice in the plan".to_owned(),
            ));
        }
        let schedule = Self {
            rows: rows.to_vec(),
            batch: training.rollout_batch_size.max(1) as usize,
            samples: training.n_samples_per_prompt.max(1),
            stride: runs_per_visit(training),
            steps: 0,
            seed,
            strategy: training.rows.strategy,
            extra: training.max_extra_rows as usize,
        };
        let steps = training
            .steps
            .unwrap_or_else(|| schedule.steps_per_epoch() * u64::from(training.total_epochs));
        // The last run index must fit: it is part of every rollout's id.
        let epochs = steps.div_ceil(schedule.steps_per_epoch());
        let visits = match schedule.strategy {
            RowStrategy::Frontier => steps,
            RowStrategy::Uniform if schedule.extra > 0 => epochs.saturating_add(steps),
            RowStrategy::Uniform => epochs,
        };
        match visits.checked_mul(u64::from(schedule.stride)) {
            Some(runs) if u32::try_from(runs).is_ok() => Ok(Self { steps, ..schedule }),
            Some(_) | None => Err(TrainError::TooManySteps { steps }),
        }
    }

    /// How many steps the run has.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    fn steps_per_epoch(&self) -> u64 {
        self.rows.len().div_ceil(self.batch) as u64
    }

    /// Step `step`, from 1. `records` are the results of all steps before it, which matter where rows are chosen by
    /// them.
    pub fn step(&self, step: u64, records: &RowRecords) -> PlannedStep {
        let position = step.saturating_sub(1);
        let epoch = position / self.steps_per_epoch();
        let (rows, further) = match self.strategy {
            RowStrategy::Uniform => {
                let batch =
                    usize::try_from(position % self.steps_per_epoch()).unwrap_or(usize::MAX);
                let rows: Vec<u64> = self
                    .shuffled(epoch)
                    .into_iter()
                    .skip(batch.saturating_mul(self.batch))
                    .take(self.batch)
                    .collect();
                let further = self.further(step, &rows);
                (rows, further)
            }
            RowStrategy::Frontier => {
                let first = self.shuffled(0);
                let mut order = frontier::order(&first, records, self.samples, self.seed, step);
                let mut further = order.split_off(self.batch.min(order.len()));
                further.truncate(self.extra);
                (order, further)
            }
        };
        let visit = match self.strategy {
            RowStrategy::Uniform => epoch,
            RowStrategy::Frontier => position,
        };
        PlannedStep {
            step,
            epoch,
            rollouts: self.visit(&rows, visit),
            rows,
            further,
        }
    }

    /// Rows that may take the place of the planned ones.
    fn further(&self, step: u64, planned: &[u64]) -> Vec<u64> {
        if self.extra == 0 {
            return Vec::new();
        }
        let planned: HashSet<&u64> = planned.iter().collect();
        let order = self.shuffled(FURTHER_ROWS | step);
        let others = order.into_iter().filter(|row| !planned.contains(row));
        others.take(self.extra).collect()
    }

    /// The rollouts that a step may have, planned or not: where rows are chosen by results, nobody knows which before
    /// these are there.
    pub fn possible_rollouts(&self, step: u64) -> Vec<NewRollout> {
        match self.strategy {
            RowStrategy::Uniform => {
                let planned = self.step(step, &RowRecords::new());
                let further = self.further_rollouts(step, &planned.further);
                planned.rollouts.into_iter().chain(further).collect()
            }
            RowStrategy::Frontier => self.visit(&self.rows, step.saturating_sub(1)),
        }
    }

    /// The rollouts of further rows of a step.
    pub fn further_rollouts(&self, step: u64, rows: &[u64]) -> Vec<NewRollout> {
        let position = step.saturating_sub(1);
        let visit = match self.strategy {
            // After all visits that are planned: a row comes once per epoch, and at most once in a step beside that.
            RowStrategy::Uniform => self.steps.div_ceil(self.steps_per_epoch()) + position,
            RowStrategy::Frontier => position,
        };
        self.visit(rows, visit)
    }

    /// The step that a rollout belongs to, where rows are chosen by results; `None` elsewhere.
    pub(crate) fn chosen_in(&self, run_index: u32) -> Option<u64> {
        match self.strategy {
            RowStrategy::Uniform => None,
            RowStrategy::Frontier => Some(u64::from(run_index / self.stride) + 1),
        }
    }

    /// One visit to each of these rows.
    fn visit(&self, rows: &[u64], visit: u64) -> Vec<NewRollout> {
        let (samples, stride) = (u64::from(self.samples), u64::from(self.stride));
        let each = rows.iter();
        each.flat_map(|row| (0..samples).map(move |k| rollout(*row, visit * stride + k)))
            .collect()
    }

    /// Rows of an epoch.
    pub(crate) fn epoch_length(&self) -> u64 {
        self.rows.len() as u64
    }

    pub(crate) fn stride(&self) -> u32 {
        self.stride
    }

    /// The rows in the order of an epoch. Fisher-Yates written out, because a run must resume the same
    /// under a later version of any library.
    pub(crate) fn shuffled(&self, epoch: u64) -> Vec<u64> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(epoch);
        let mut rows = self.rows.clone();
        for last in (1..rows.len()).rev() {
            let wide = u128::from(random.next_u64()) * (last as u128 + 1);
            let chosen = usize::try_from(wide >> 64).unwrap_or(last);
            rows.swap(last, chosen);
        }
        rows
    }
}

/// Run indices that a visit to a row has: its rollouts, and those it may be topped up with.
pub(crate) fn runs_per_visit(training: &Training) -> u32 {
    let samples = training.n_samples_per_prompt.max(1);
    let pace = Pace::of(
        training.max_staleness,
        training.stale_rows,
        training.stragglers,
    );
    if pace.tops_up() {
        samples.saturating_mul(2)
    } else {
        samples
    }
}

/// When held-out rows are evaluated: before training, every `eval_interval` steps, and at the end.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationSchedule {
    interval: u64,
    steps: u64,
}

impl EvaluationSchedule {
    pub fn new(checkpoints: &Checkpoints, steps: u64) -> Self {
        Self {
            interval: checkpoints.eval_interval.max(1),
            steps,
        }
    }

    /// The number of the evaluation after `step`, from 0; `None` when none is due.
    pub fn ordinal(&self, step: u64) -> Option<u64> {
        if step == self.steps || step.is_multiple_of(self.interval) {
            Some(step.div_ceil(self.interval))
        } else {
            None
        }
    }

    /// The rollouts of the evaluation after `step`; `None` when none is due. Each row is run twice: sampled
    /// as in training, and greedily.
    pub fn rollouts(&self, step: u64, rows: &[u64]) -> Option<Vec<NewRollout>> {
        let ordinal = self.ordinal(step)?;
        // After the sampled ones of all evaluations, which have the numbers they always had: a run from
        // before there were greedy ones goes on.
        Some(decoded_twice(rows, ordinal, self.count() + ordinal))
    }

    /// The rollouts of the evaluation after `step` when training ends with it. Where none is due, they have numbers of
    /// their own, after all others: a resume that gets further evaluates other weights.
    pub fn rollouts_at_end(&self, step: u64, rows: &[u64]) -> Vec<NewRollout> {
        self.rollouts(step, rows).unwrap_or_else(|| {
            let run = 2 * (self.count() + step);
            decoded_twice(rows, run, run + 1)
        })
    }

    /// How many evaluations the run has.
    fn count(&self) -> u64 {
        self.steps.div_ceil(self.interval) + 1
    }
}

/// Each row sampled as this run, and greedily as that one.
fn decoded_twice(rows: &[u64], sampled: u64, greedy: u64) -> Vec<NewRollout> {
    let greedy = rows.iter().map(|row| {
        let planned = rollout(*row, greedy);
        NewRollout {
            id: RolloutId::greedy(planned.row_index, planned.run_index),
            ..planned
        }
    });
    let sampled = rows.iter().map(|row| rollout(*row, sampled));
    sampled.chain(greedy).collect()
}

fn rollout(row_index: u64, run_index: u64) -> NewRollout {
    // `Schedule::new` made sure that it fits; evaluations are fewer than runs.
    let run_index = u32::try_from(run_index).unwrap_or(u32::MAX);
    NewRollout {
        id: RolloutId::of(row_index, run_index),
        row_index,
        run_index,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use osmosis_core::config::RowChoice;
    use proptest::prelude::*;

    use super::*;
    use crate::frontier::RowRecord;

    fn training(batch: u32, samples: u32, epochs: u32, steps: Option<u64>) -> Training {
        Training {
            rollout_batch_size: batch,
            n_samples_per_prompt: samples,
            total_epochs: epochs,
            steps,
            ..Training::default()
        }
    }

    fn schedule(rows: u64, batch: u32, epochs: u32, steps: Option<u64>, seed: u64) -> Schedule {
        let rows: Vec<u64> = (0..rows).collect();
        Schedule::new(&rows, &training(batch, 2, epochs, steps), seed).unwrap()
    }

    #[test]
    fn steps_override_epochs_both_ways() {
        assert_eq!(schedule(10, 4, 2, None, 0).steps(), 6);
        assert_eq!(schedule(10, 4, 2, Some(5), 0).steps(), 5);
        assert_eq!(schedule(10, 4, 2, Some(50), 0).steps(), 50);
    }

    #[test]
    fn the_order_of_an_epoch_is_fixed_for_ever() {
        // A change here breaks the resume of runs that exist.
        let schedule = schedule(8, 8, 2, None, 42);
        assert_eq!(schedule.step(1, &RowRecords::new()).rows, FIRST_EPOCH);
        assert_eq!(schedule.step(2, &RowRecords::new()).rows, SECOND_EPOCH);
    }

    const FIRST_EPOCH: [u64; 8] = [4, 7, 0, 1, 3, 2, 6, 5];
    const SECOND_EPOCH: [u64; 8] = [6, 3, 7, 0, 4, 2, 1, 5];

    #[test]
    fn no_rows_and_endless_plans_are_refused() {
        assert!(matches!(
            Schedule::new(&[], &Training::default(), 0),
            Err(TrainError::NoRows)
        ));
        assert!(matches!(
            Schedule::new(&[1], &training(1, 8, 1, Some(u64::MAX)), 0),
            Err(TrainError::TooManySteps { .. })
        ));
    }

    #[test]
    fn evaluations_are_numbered_without_gaps() {
        let every = EvaluationSchedule::new(
            &Checkpoints {
                eval_interval: 10,
                checkpoint_save_freq: 1,
                ..Checkpoints::default()
            },
            25,
        );
        let due: Vec<_> = (0..=25)
            .filter_map(|step| every.ordinal(step).map(|n| (step, n)))
            .collect();
        assert_eq!(due, [(0, 0), (10, 1), (20, 2), (25, 3)]);
        let ids: Vec<_> = every
            .rollouts(25, &[7, 9])
            .unwrap()
            .into_iter()
            .map(|rollout| rollout.id)
            .collect();
        assert_eq!(ids[..2], [RolloutId::of(7, 3), RolloutId::of(9, 3)]);
        assert_eq!(ids[2..], [RolloutId::greedy(7, 7), RolloutId::greedy(9, 7)]);
        assert_eq!(every.rollouts(24, &[7]), None);
    }

    fn with_extra_rows(rows: u64, batch: u32, strategy: RowStrategy) -> Schedule {
        let rows: Vec<u64> = (0..rows).collect();
        let training = Training {
            rows: RowChoice { strategy },
            max_extra_rows: 4,
            ..training(batch, 2, 2, None)
        };
        Schedule::new(&rows, &training, 5).unwrap()
    }

    #[test]
    fn the_frontier_begins_like_an_epoch_and_then_prefers_what_varies() {
        let frontier = with_extra_rows(8, 4, RowStrategy::Frontier);
        let uniform = schedule(8, 4, 2, None, 5);
        assert_eq!(frontier.steps(), uniform.steps());
        let mut records = RowRecords::new();
        assert_eq!(
            frontier.step(1, &records).rollouts,
            uniform.step(1, &records).rollouts
        );
        let first = frontier.step(1, &records).rows;
        for row in &first {
            let attempts = RowRecord {
                attempts: 2,
                passed: 1,
            };
            records.insert(*row, attempts);
        }
        let second = frontier.step(2, &records);
        assert!(second.rows.iter().all(|row| !first.contains(row)));
        assert_eq!(second.rows.len() + second.further.len(), 8);
        let runs = second.rollouts.iter().map(|rollout| rollout.run_index);
        assert_eq!(runs.collect::<BTreeSet<_>>(), BTreeSet::from([2, 3]));
        assert_eq!(frontier.chosen_in(3), Some(2));
    }

    #[test]
    fn further_rows_have_visits_of_their_own() {
        for strategy in [RowStrategy::Uniform, RowStrategy::Frontier] {
            let schedule = with_extra_rows(9, 2, strategy);
            let mut ids = BTreeSet::new();
            for step in 1..=schedule.steps() {
                let planned = schedule.step(step, &RowRecords::new());
                let further = &planned.further[..3];
                assert!(further.iter().all(|row| !planned.rows.contains(row)));
                let rollouts = schedule.further_rollouts(step, further);
                let possible = schedule.possible_rollouts(step);
                assert!(rollouts.iter().all(|rollout| possible.contains(rollout)));
                for rollout in planned.rollouts.into_iter().chain(rollouts) {
                    assert!(ids.insert(rollout.id.clone()), "{}", rollout.id);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn an_epoch_takes_every_row_once(
            rows in 1u64..40, batch in 1u32..50, seed in any::<u64>(), epoch in 0u64..3
        ) {
            let schedule = schedule(rows, batch, 3, None, seed);
            let per_epoch = schedule.steps_per_epoch();
            let mut seen = Vec::new();
            for step in epoch * per_epoch + 1..=(epoch + 1) * per_epoch {
                let planned = schedule.step(step, &RowRecords::new());
                prop_assert_eq!(planned.epoch, epoch);
                prop_assert!(!planned.rows.is_empty());
                prop_assert!(planned.rows.len() <= batch as usize);
                seen.extend(planned.rows);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..rows).collect::<Vec<_>>());
        }

        #[test]
        fn no_rollout_occurs_in_two_steps(rows in 1u64..20, batch in 1u32..8, seed in any::<u64>()) {
            let schedule = schedule(rows, batch, 3, None, seed);
            let mut ids = BTreeSet::new();
            for step in 1..=schedule.steps() {
                for rollout in schedule.step(step, &RowRecords::new()).rollouts {
                    prop_assert_eq!(&rollout.id, &RolloutId::of(rollout.row_index, rollout.run_index));
                    prop_assert!(ids.insert(rollout.id));
                }
            }
            prop_assert_eq!(ids.len() as u64, rows * 3 * 2);
        }

        #[test]
        fn evaluation_ordinals_count_up(interval in 1u64..9, steps in 1u64..40) {
            let every = EvaluationSchedule { interval, steps };
            let ordinals: Vec<u64> = (0..=steps).filter_map(|s| every.ordinal(s)).collect();
            let counted: Vec<u64> = (0..ordinals.len() as u64).collect();
            prop_assert_eq!(ordinals, counted);
        }

        #[test]
        fn no_two_rollouts_of_a_held_out_row_have_the_same_number(interval in 1u64..9, steps in 1u64..40) {
            let every = EvaluationSchedule { interval, steps };
            let mut runs = BTreeSet::new();
            let rollouts = (0..=steps).filter_map(|step| every.rollouts(step, &[3])).flatten();
            for rollout in rollouts {
                prop_assert!(runs.insert(rollout.run_index));
                let sampled = u64::from(rollout.run_index) < every.count();
                prop_assert_eq!(rollout.id.is_greedy(), !sampled);
            }
        }
    }
}
