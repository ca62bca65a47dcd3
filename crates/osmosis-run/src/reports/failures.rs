//! Failures that are alike, with examples and the command that runs just those again.

use camino::Utf8PathBuf;
use osmosis_core::failure_groups::FailureGroup;
use osmosis_core::{OutcomeKind, Phase, RunName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::suggested_command;
use crate::runs::Pinned;
use crate::workspace::{Workspace, current_dir};

/// Failures that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureReport {
    pub outcome: OutcomeKind,
    /// The exception's type, or our own name for what happened.
    #[serde(rename = "type")]
    pub error_type: String,
    /// The message without numbers, ids, paths and quoted values.
    pub message: String,
    /// The innermost frame of the user's code: `main.py:12 in run`.
    pub frame: Option<String>,
    /// Type and message together.
    pub error: String,
    pub count: u64,
    /// `ROW.RUN` of the first.
    pub first: Option<String>,
    /// `ROW.RUN` of the first few.
    pub examples: Vec<String>,
    /// The rows that failed so, as `--rows` takes them.
    pub rows: Option<String>,
    /// What to change first, where that is known: the key of a limit that was passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The command that runs or grades them again.
    pub rerun: String,
}

impl FailureReport {
    pub(super) fn of(group: &FailureGroup, again: &RunAgain) -> Self {
        Self::with_rerun(group, again.command(group), "evaluation")
    }

    /// The same of a training, whose rows run again in a new run, or in a resume when what failed was outside of the agent.
    pub(super) fn in_training(
        group: &FailureGroup,
        run: &RunName,
        pinned: &Pinned,
        workspace: &Workspace,
    ) -> Self {
        let outside = group.signature.outcome == OutcomeKind::InfrastructureFailed;
        let remembered = &pinned.remembered;
        let overrides: Vec<String> = remembered.overrides.iter().map(quoted).collect();
        let is_known = remembered.config.is_some() || !overrides.is_empty();
        let rerun = if is_known && !outside {
            let config = remembered.config.as_ref();
            let config = config.map(|config| from_here(workspace, config).to_string());
            let mut arguments = vec!["train", "submit"];
            arguments.extend(config.as_deref());
            for setting in &overrides {
                arguments.extend(["--set", setting]);
            }
            suggested_command(&arguments, workspace)
        } else {
            suggested_command(&["train", "resume", run.as_str()], workspace)
        };
        Self::with_rerun(group, rerun, "training")
    }

    /// `section`: where the config has the limits.
    fn with_rerun(group: &FailureGroup, rerun: String, section: &str) -> Self {
        let examples = group.examples.iter();
        let examples: Vec<String> = examples.map(|(row, run)| format!("{row}.{run}")).collect();
        Self {
            outcome: group.signature.outcome,
            error_type: group.signature.error_type.clone(),
            message: group.signature.message.clone(),
            frame: group.signature.frame.clone(),
            error: group.text(),
            count: group.count,
            first: examples.first().cloned(),
            examples,
            rows: group.rows().map(|rows| rows.to_string()),
            advice: advice(group, section),
            rerun,
        }
    }
}

/// Which limit was passed, and where it is set.
fn advice(group: &FailureGroup, section: &str) -> Option<String> {
    let (who, key) = match group.timed_out_in()? {
        Phase::Agent => ("agent", "agent_workflow_timeout_s"),
        Phase::Grade => ("grader", "grader_timeout_s"),
    };
    Some(format!(
        "make the {who} faster, or raise `{key}` in [{section}]"
    ))
}

/// What is needed to name a command that runs some rows of a run again.
#[derive(Debug, Clone)]
pub(super) struct RunAgain {
    run: String,
    workspace: Workspace,
    /// The config, from the workspace's folder; runs made before it was remembered have none.
    config: Option<String>,
    /// What was set beside it.
    overrides: Vec<String>,
    server: Option<String>,
    seed: Option<u64>,
}

impl RunAgain {
    pub(super) fn of(run: &RunName, pinned: &Pinned, workspace: Workspace) -> Self {
        Self {
            run: run.to_string(),
            workspace,
            config: pinned.remembered.config.clone(),
            overrides: pinned.remembered.overrides.iter().map(quoted).collect(),
            server: pinned.server.clone(),
            seed: pinned.model_seed().filter(|seed| *seed > 0),
        }
    }

    /// A new run of just the rows that failed so: whoever has changed the code can't resume. What failed
    /// outside the agent is run again by a resume; what was not graded has samples, which are graded again.
    fn command(&self, group: &FailureGroup) -> String {
        let workspace = &self.workspace;
        let has_samples = group.signature.outcome == OutcomeKind::Ungraded
            || group.timed_out_in() == Some(Phase::Grade);
        if has_samples {
            let rows = group.rows().map(|rows| rows.to_string());
            let mut arguments = vec!["eval", "regrade", self.run.as_str()];
            if let Some(rows) = &rows {
                arguments.extend(["--rows", rows]);
            }
            return suggested_command(&arguments, workspace);
        }
        let outside = group.signature.outcome == OutcomeKind::InfrastructureFailed;
        let is_known = self.config.is_some() || !self.overrides.is_empty();
        let (true, Some(rows), false) = (is_known, group.rows(), outside) else {
            let mut arguments = vec!["eval", "resume", self.run.as_str()];
            if !outside {
                arguments.push("--retry-failed");
            }
            return suggested_command(&arguments, workspace);
        };
        let config = self.config.as_ref();
        let config = config.map(|config| from_here(workspace, config).to_string());
        let (rows, seed) = (rows.to_string(), self.seed.map(|seed| seed.to_string()));
        let mut arguments = vec!["eval", "submit"];
        arguments.extend(config.as_deref());
        for setting in &self.overrides {
            arguments.extend(["--set", setting]);
        }
        arguments.extend(["--rows", &rows]);
        if let Some(server) = &self.server {
            arguments.extend(["--server", server]);
        }
        if let Some(seed) = &seed {
            arguments.extend(["--seed", seed]);
        }
        suggested_command(&arguments, workspace)
    }
}

/// The path of a config that a run remembers, from the folder that commands are typed in.
fn from_here(workspace: &Workspace, config: &str) -> Utf8PathBuf {
    let config = workspace.root.join(config);
    let here = current_dir().unwrap_or_default();
    config
        .strip_prefix(&here)
        .map_or_else(|_| config.clone(), ToOwned::to_owned)
}

/// As a shell takes it.
#[expect(clippy::ptr_arg, reason = "for `map`")]
fn quoted(setting: &String) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-=/:@%+,".contains(c);
    if setting.chars().all(plain) {
        return setting.clone();
    }
    format!("'{}'", setting.replace('\'', r"'\''"))
}
