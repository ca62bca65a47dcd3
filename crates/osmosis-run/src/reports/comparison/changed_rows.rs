//! Rows that pass more often in the second run, and rows that pass less often.

use osmosis_core::row_selection::RowSelection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::suggested_command;
use super::run_rows::RowResult;
use crate::workspace::Workspace;

/// Rows that are kept with their numbers; the selection names all of them.
const MOST_ROWS: usize = 100;

/// Rows that changed in one direction, those that changed most first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedRows {
    pub count: u64,
    /// Every one of them, by its index in the second run, as `--rows` takes them.
    pub rows: Option<String>,
    /// Those that changed most.
    pub items: Vec<ChangedRow>,
}

/// A row in two runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ChangedRow {
    /// In the second run.
    pub row_index: u64,
    pub row_index_in_first: u64,
    pub first: RowSide,
    pub second: RowSide,
    /// The command that shows the row in the second run.
    pub show: String,
}

/// The rollouts of a row in one run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RowSide {
    pub passed: u64,
    pub ran: u64,
    /// Those that ran without being scored.
    pub failed: u64,
    /// The mean of those that were scored; `null` without any.
    pub reward: Option<f64>,
}

impl RowSide {
    fn of(row: &RowResult) -> Self {
        Self {
            passed: row.passed,
            ran: row.ran(),
            failed: row.outcomes.failed(),
            reward: row.reward(),
        }
    }
}

/// The second run, as commands name it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) run: &'a str,
    pub(super) workspace: &'a Workspace,
}

impl ChangedRows {
    pub(super) fn of<'r>(
        pairs: impl Iterator<Item = (&'r RowResult, &'r RowResult)>,
        shown: Shown<'_>,
        change: impl Fn(&RowResult, &RowResult) -> f64,
    ) -> Self {
        let mut changed: Vec<(f64, &RowResult, &RowResult)> = pairs
            .map(|(first, second)| (change(first, second), first, second))
            .filter(|(change, _, _)| *change > 0.0)
            .collect();
        changed.sort_by(|(a, _, one), (b, _, other)| {
            b.total_cmp(a).then(one.row_index.cmp(&other.row_index))
        });
        let rows = RowSelection::of(changed.iter().map(|(_, _, second)| second.row_index));
        Self {
            count: changed.len() as u64,
            rows: rows.map(|rows| rows.to_string()),
            items: changed
                .iter()
                .take(MOST_ROWS)
                .map(|(_, first, second)| {
                    let row = second.row_index.to_string();
                    ChangedRow {
                        row_index: second.row_index,
                        row_index_in_first: first.row_index,
                        first: RowSide::of(first),
                        second: RowSide::of(second),
                        show: suggested_command(
                            &["eval", "show", shown.run, &row],
                            shown.workspace,
                        ),
                    }
                })
                .collect(),
        }
    }
}
