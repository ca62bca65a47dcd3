//! Failures that are alike, with examples and the command that runs just those again, for people.

use std::fmt::Write;

use osmosis_run::reports::{FailureReport, RunReport};
use owo_colors::Style;

use crate::command_line;
use crate::output::paint;
use crate::workspace::Workspace;

/// Groups that are listed, most frequent first.
const MOST_GROUPS: usize = 10;
/// A failure's text in the list is cut here.
const TEXT_WIDTH: usize = 100;
/// A longer list of rows is left to `metrics.json`.
const COMMAND_WIDTH: usize = 300;

pub(super) fn render(text: &mut String, report: &RunReport, workspace: &Workspace) {
    render_groups(
        text,
        &report.failures,
        ["eval", report.run_name.as_str()],
        workspace,
    );
}

/// The failures of a run, which is given by the word of its commands and its name.
pub(crate) fn render_groups(
    text: &mut String,
    groups: &[FailureReport],
    [word, run]: [&str; 2],
    workspace: &Workspace,
) {
    if groups.is_empty() {
        return;
    }
    let dim = Style::new().dimmed();
    let _ = writeln!(text, "\n  {}", paint("failures", Style::new().red().bold()));
    for group in groups.iter().take(MOST_GROUPS) {
        let outcome = group.outcome.as_str().replace('_', " ");
        let _ = writeln!(
            text,
            "  {:>5} × {outcome}: {}",
            group.count,
            cut(&group.error)
        );
        if let Some(frame) = &group.frame {
            let _ = writeln!(text, "          at {frame}");
        }
        for example in &group.examples {
            let arguments = [word, "show", run, example];
            let command = command_line::suggest(&arguments, workspace);
            let _ = writeln!(text, "          {}", paint(&command, dim));
        }
        if let Some(advice) = &group.advice {
            let _ = writeln!(text, "          advice: {advice}");
        }
        let command = if group.rerun.len() > COMMAND_WIDTH {
            "see `failures` in metrics.json, its rows are many"
        } else {
            &group.rerun
        };
        let _ = writeln!(text, "          again: {}", paint(command, dim));
    }
    let unseen = groups.len().saturating_sub(MOST_GROUPS);
    if unseen > 0 {
        let _ = writeln!(text, "          and {unseen} other kinds, see metrics.json");
    }
}

/// A failure's text in one line that is not too long.
pub(crate) fn cut(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= TEXT_WIDTH {
        return line.to_owned();
    }
    let start: String = line.chars().take(TEXT_WIDTH).collect();
    format!("{start}…")
}
