//! Failures that are alike, with examples and the command that runs just those again.

use std::fmt::Write;

use osmosis_core::failure_groups::FailureGroup;
use osmosis_core::{OutcomeKind, RunName};
use owo_colors::Style;
use serde_json::{Value, json};

use crate::command_line;
use crate::output::paint;
use crate::runs::Pinned;
use crate::workspace::{Workspace, current_dir};

/// Groups that are listed, most frequent first.
const MOST_GROUPS: usize = 10;
/// A failure's text in the list is cut here.
const TEXT_WIDTH: usize = 100;
/// A longer list of rows is left to `metrics.json`.
const COMMAND_WIDTH: usize = 300;

/// What is needed to name a command that runs some rows of a run again.
#[derive(Debug, Clone)]
pub(super) struct RunAgain {
    run: String,
    /// The config, from the workspace's folder; runs made before it was remembered have none.
    config: Option<String>,
    server: Option<String>,
    seed: Option<u64>,
}

impl RunAgain {
    pub(super) fn of(run: &RunName, pinned: &Pinned) -> Self {
        Self {
            run: run.to_string(),
            config: pinned.remembered.config.clone(),
            server: pinned.server.clone(),
            seed: pinned.model_seed().filter(|seed| *seed > 0),
        }
    }

    /// A new run of just the rows that failed so: whoever has changed the code can't resume. What failed
    /// outside the agent is run again by a resume.
    fn command(&self, group: &FailureGroup, workspace: &Workspace) -> String {
        let outside = group.signature.outcome == OutcomeKind::InfrastructureFailed;
        let (Some(config), Some(rows), false) = (&self.config, group.rows(), outside) else {
            let mut arguments = vec!["eval", "resume", self.run.as_str()];
            if !outside {
                arguments.push("--retry-failed");
            }
            return command_line::suggest(&arguments, workspace);
        };
        let config = workspace.root.join(config);
        let here = current_dir().unwrap_or_default();
        let config = config.strip_prefix(&here).unwrap_or(&config);
        let (rows, seed) = (rows.to_string(), self.seed.map(|seed| seed.to_string()));
        let mut arguments = vec!["eval", "submit", config.as_str(), "--rows", &rows];
        if let Some(server) = &self.server {
            arguments.extend(["--server", server]);
        }
        if let Some(seed) = &seed {
            arguments.extend(["--seed", seed]);
        }
        command_line::suggest(&arguments, workspace)
    }
}

pub(super) fn json_of(group: &FailureGroup, again: &RunAgain, workspace: &Workspace) -> Value {
    let examples: Vec<String> = names(group);
    json!({
        "outcome": group.signature.outcome,
        "type": group.signature.error_type,
        "message": group.signature.message,
        "frame": group.signature.frame,
        "error": group.text(),
        "count": group.count,
        "first": examples.first(),
        "examples": examples,
        "rows": group.rows(),
        "rerun": again.command(group, workspace),
    })
}

pub(super) fn render(
    text: &mut String,
    groups: &[FailureGroup],
    again: &RunAgain,
    workspace: &Workspace,
) {
    if groups.is_empty() {
        return;
    }
    let dim = Style::new().dimmed();
    let _ = writeln!(text, "\n  {}", paint("failures", Style::new().red().bold()));
    for group in groups.iter().take(MOST_GROUPS) {
        let outcome = group.signature.outcome.as_str().replace('_', " ");
        let _ = writeln!(
            text,
            "  {:>5} × {outcome}: {}",
            group.count,
            cut(&group.text())
        );
        if let Some(frame) = &group.signature.frame {
            let _ = writeln!(text, "          at {frame}");
        }
        for example in names(group) {
            let command = command_line::suggest(&["eval", "show", &again.run, &example], workspace);
            let _ = writeln!(text, "          {}", paint(&command, dim));
        }
        let command = again.command(group, workspace);
        let command = if command.len() > COMMAND_WIDTH {
            "see `failures` in metrics.json, its rows are many".to_owned()
        } else {
            command
        };
        let _ = writeln!(text, "          again: {}", paint(&command, dim));
    }
    let unseen = groups.len().saturating_sub(MOST_GROUPS);
    if unseen > 0 {
        let _ = writeln!(text, "          and {unseen} other kinds, see metrics.json");
    }
}

/// `ROW.RUN` of the examples.
fn names(group: &FailureGroup) -> Vec<String> {
    let examples = group.examples.iter();
    examples.map(|(row, run)| format!("{row}.{run}")).collect()
}

fn cut(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= TEXT_WIDTH {
        return line.to_owned();
    }
    let start: String = line.chars().take(TEXT_WIDTH).collect();
    format!("{start}…")
}
