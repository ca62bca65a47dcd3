//! The rows that did worst, with the commands that show them, for people.

use std::fmt::Write;

use osmosis_run::reports::{RunReport, WorstRow};
use owo_colors::Style;

use crate::command_line;
use crate::figures::{number, thousands};
use crate::output::paint;
use crate::workspace::Workspace;

pub(super) fn render(text: &mut String, report: &RunReport, workspace: &Workspace) {
    let rows = &report.worst_rows;
    let not_passed = report.not_passed();
    if rows.is_empty() || not_passed == 0 {
        return;
    }
    let dim = Style::new().dimmed();
    let title = paint("worst rows", Style::new().red().bold());
    let _ = writeln!(text, "\n  {title}");
    let scores: Vec<String> = rows.iter().map(score).collect();
    let width = scores.iter().map(String::len).max().unwrap_or(0);
    for (row, score) in rows.iter().zip(&scores) {
        let show = paint(&row.show, dim);
        let _ = writeln!(text, "  row {:<5} {score:<width$}  {show}", row.row_index);
    }
    let name = report.run_name.as_str();
    let command = command_line::suggest(&["eval", "show", name, "--failed"], workspace);
    let count = match not_passed {
        1 => "the one that did not pass".to_owned(),
        count => format!("all {} that did not pass", thousands(count)),
    };
    let _ = writeln!(text, "  {count}: {}", paint(&command, dim));
}

/// `1/4 passed, reward 0.25`.
fn score(row: &WorstRow) -> String {
    let passed = if row.ran > 1 {
        format!("{}/{} passed, ", row.passed, row.ran)
    } else {
        String::new()
    };
    let reward = row.reward.map_or_else(
        || "failed".to_owned(),
        |reward| format!("reward {}", number(reward)),
    );
    format!("{passed}{reward}")
}
