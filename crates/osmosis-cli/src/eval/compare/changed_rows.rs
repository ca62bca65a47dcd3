//! Rows that pass more often in the second run, and rows that pass less often.

use osmosis_core::row_selection::RowSelection;
use serde_json::{Value, json};

use super::run_rows::RowResult;
use crate::command_line;
use crate::workspace::Workspace;

/// Rows that are kept with their numbers; the selection names all of them.
const MOST_ROWS: usize = 100;

/// Rows that changed in one direction, those that changed most first.
#[derive(Debug, Default)]
pub(super) struct ChangedRows {
    pub(super) count: u64,
    pub(super) largest: Vec<(RowResult, RowResult)>,
    /// Every one of them, by its index in the second run.
    pub(super) rows: Option<RowSelection>,
}

impl ChangedRows {
    pub(super) fn of<'r>(
        pairs: impl Iterator<Item = (&'r RowResult, &'r RowResult)>,
        change: impl Fn(&RowResult, &RowResult) -> f64,
    ) -> Self {
        let mut changed: Vec<(f64, &RowResult, &RowResult)> = pairs
            .map(|(first, second)| (change(first, second), first, second))
            .filter(|(change, _, _)| *change > 0.0)
            .collect();
        changed.sort_by(|(a, _, one), (b, _, other)| {
            b.total_cmp(a).then(one.row_index.cmp(&other.row_index))
        });
        Self {
            count: changed.len() as u64,
            rows: RowSelection::of(changed.iter().map(|(_, _, second)| second.row_index)),
            largest: changed
                .iter()
                .take(MOST_ROWS)
                .map(|(_, first, second)| (**first, **second))
                .collect(),
        }
    }

    pub(super) fn json(&self, run: &str, workspace: &Workspace) -> Value {
        let items: Vec<Value> = self
            .largest
            .iter()
            .map(|(first, second)| {
                json!({
                    "row_index": second.row_index,
                    "row_index_in_first": first.row_index,
                    "first": side(first),
                    "second": side(second),
                    "show": show(run, second.row_index, workspace),
                })
            })
            .collect();
        json!({ "count": self.count, "rows": self.rows, "items": items })
    }
}

fn side(row: &RowResult) -> Value {
    let mean = (row.scored > 0).then(|| row.reward_sum / row.scored as f64);
    let failed = row.tested().failed();
    json!({ "passed": row.passed, "ran": row.ran, "failed": failed, "reward": mean })
}

/// The command that shows a row of a run.
pub(super) fn show(run: &str, row_index: u64, workspace: &Workspace) -> String {
    command_line::suggest(&["eval", "show", run, &row_index.to_string()], workspace)
}
