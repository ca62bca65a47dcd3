//! The rows that did worst, each with the command that shows one of its rollouts.

use std::cmp::Ordering;

use osmosis_core::Outcome;
use osmosis_store::RolloutRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::suggested_command;
use crate::workspace::Workspace;

/// Rows that a report names.
const MOST_ROWS: usize = 5;

/// A row with rollouts that did not pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorstRow {
    pub row_index: u64,
    /// Its rollouts that ran, and how many of them passed.
    pub ran: u64,
    pub passed: u64,
    /// Those that ran and have no reward.
    pub failed: u64,
    /// The mean over its scored rollouts; `null` when none was.
    pub reward: Option<f64>,
    /// `ROW.RUN` of its worst rollout.
    pub example: String,
    /// The command that shows that rollout.
    pub show: String,
}

/// Reads rollouts in the order of their rows, and keeps the worst rows.
#[derive(Debug, Default)]
pub(super) struct WorstRows {
    worst: Vec<RowTally>,
    current: Option<RowTally>,
}

#[derive(Debug)]
struct RowTally {
    row_index: u64,
    ran: u64,
    passed: u64,
    scored: u64,
    reward_sum: f64,
    /// The lowest reward of a rollout that did not pass, if it has one; and that rollout's number.
    example: Option<(Option<f64>, u32)>,
}

impl WorstRows {
    pub(super) fn add(&mut self, rollout: &RolloutRecord, outcome: &Outcome) {
        let row_index = rollout.row_index;
        let is_next = |row: &RowTally| row.row_index != row_index;
        if self.current.as_ref().is_some_and(is_next) {
            self.end_row();
        }
        let row = self.current.get_or_insert_with(|| RowTally::new(row_index));
        row.add(rollout.run_index, outcome);
    }

    fn end_row(&mut self) {
        let Some(row) = self.current.take() else {
            return;
        };
        if row.passed == row.ran {
            return;
        }
        let place = self
            .worst
            .partition_point(|kept| kept.compare(&row) != Ordering::Greater);
        if place < MOST_ROWS {
            self.worst.insert(place, row);
            self.worst.truncate(MOST_ROWS);
        }
    }

    pub(super) fn into_rows(mut self, run: &str, workspace: &Workspace) -> Vec<WorstRow> {
        self.end_row();
        let rows = self.worst.into_iter();
        rows.map(|row| {
            let run_index = row.example.map_or(0, |(_, run_index)| run_index);
            let example = format!("{}.{run_index}", row.row_index);
            // The number of a row's only rollout says nothing.
            let shown = if row.ran == 1 && run_index == 0 {
                row.row_index.to_string()
            } else {
                example.clone()
            };
            WorstRow {
                row_index: row.row_index,
                ran: row.ran,
                passed: row.passed,
                failed: row.ran - row.scored,
                reward: row.mean(),
                show: suggested_command(&["eval", "show", run, &shown], workspace),
                example,
            }
        })
        .collect()
    }
}

impl RowTally {
    fn new(row_index: u64) -> Self {
        Self {
            row_index,
            ran: 0,
            passed: 0,
            scored: 0,
            reward_sum: 0.0,
            example: None,
        }
    }

    fn add(&mut self, run_index: u32, outcome: &Outcome) {
        if !outcome.kind().ran() {
            return;
        }
        self.ran += 1;
        self.passed += u64::from(outcome.passed());
        let reward = outcome.reward().map(osmosis_core::Reward::get);
        if let Some(reward) = reward {
            self.scored += 1;
            self.reward_sum += reward;
        }
        let is_worse = self
            .example
            .is_none_or(|(kept, _)| by_reward(reward, kept).is_lt());
        if !outcome.passed() && is_worse {
            self.example = Some((reward, run_index));
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.scored > 0).then(|| self.reward_sum / self.scored as f64)
    }

    /// The worse, the less.
    fn compare(&self, other: &Self) -> Ordering {
        let share = |row: &Self| row.passed as f64 / row.ran as f64;
        share(self)
            .total_cmp(&share(other))
            .then_with(|| by_reward(self.mean(), other.mean()))
    }
}

/// Lowest first. What has no reward comes last: the failures of a report name those already.
fn by_reward(one: Option<f64>, other: Option<f64>) -> Ordering {
    match (one, other) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::{Durations, ErrorCategory, Failure, Reward, RolloutId};
    use osmosis_store::CallSummary;

    use super::*;

    fn rollout(row_index: u64, run_index: u32) -> RolloutRecord {
        RolloutRecord {
            id: RolloutId::of(row_index, run_index),
            row_index,
            run_index,
            attempts: 1,
            failures: 0,
            outcome: None,
            rewards: vec![],
            metrics: None,
            durations: Durations::default(),
            calls: CallSummary::default(),
            started_at_ms: None,
            finished_at_ms: None,
        }
    }

    fn scored(reward: f64) -> Outcome {
        Outcome::Scored {
            reward: Reward::new(reward).unwrap(),
            passed: reward >= 1.0,
        }
    }

    /// `EXAMPLE PASSED/RAN REWARD` of each of the worst rows.
    fn worst(rows: &[&[Outcome]]) -> Vec<String> {
        let mut worst = WorstRows::default();
        for (row_index, outcomes) in (0..).zip(rows) {
            for (run_index, outcome) in (0..).zip(*outcomes) {
                worst.add(&rollout(row_index, run_index), outcome);
            }
        }
        let root = crate::workspace::current_dir().unwrap();
        let rows = worst.into_rows("t", &Workspace::at(root)).into_iter();
        rows.map(|row| {
            assert!(row.show.contains(" eval show t "), "{}", row.show);
            format!(
                "{} {}/{} {:?}",
                row.example, row.passed, row.ran, row.reward
            )
        })
        .collect()
    }

    #[test]
    fn rows_with_the_fewest_passes_and_then_the_lowest_reward_are_the_worst() {
        let failed = || Outcome::AgentFailed {
            failure: Failure::new(ErrorCategory::AgentError, "E", "e".to_owned()),
        };
        let found = worst(&[
            &[scored(1.0), scored(0.0)],
            &[scored(1.0), scored(1.0)],
            &[failed(), failed()],
            &[scored(0.5), scored(0.25)],
            &[scored(0.0), failed()],
            &[Outcome::Cancelled],
        ]);
        assert_eq!(
            found,
            [
                "4.0 0/2 Some(0.0)",
                "3.1 0/2 Some(0.375)",
                "2.0 0/2 None",
                "0.1 1/2 Some(0.5)"
            ]
        );
    }

    #[test]
    fn only_a_few_rows_are_named_and_the_first_of_those_that_are_alike() {
        let row = [scored(0.0)];
        let rows: Vec<&[Outcome]> = vec![&row; 20];
        let found = worst(&rows);
        assert_eq!(found.len(), MOST_ROWS);
        assert!(found[0].starts_with("0.0"), "{found:?}");
        assert!(found[4].starts_with("4.0"), "{found:?}");
    }
}
