//! One run with everything that its page shows at once.

use osmosis_store::{RunKind, RunRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{RunRecordReport, RunReport, TrainingReport, suggested_command};
use super::RunOverview;
use crate::RunError;
use crate::eval::money::Money;
use crate::run_folder::command_word;
use crate::runs::{Pinned, ReadRun};
use crate::workspace::{Workspace, current_dir};

/// The `data` of `GET /api/v1/runs/{run}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunPage {
    pub overview: RunOverview,
    /// What all rollouts came to. In a training these are rollouts with changing weights, held-out rows included.
    pub report: RunReport,
    /// `null` for other runs than trainings.
    pub training: Option<TrainingReport>,
    pub record: RunRecordReport,
}

impl RunPage {
    /// `run` is how it is named in addresses.
    pub async fn of(read: &ReadRun, record: &RunRecord, run: &str) -> Result<Self, RunError> {
        let (store, folder) = (&*read.store, &read.folder);
        let pinned = Pinned::read(&record.pinned)?;
        let cost = Money::of(None, None, &pinned)?.cost(store).await?;
        let training = match record.kind {
            RunKind::Training => Some(TrainingReport::of(store, &record.name, folder).await?),
            RunKind::Evaluation | RunKind::Serving => None,
        };
        let report = RunReport::of(store, &record.name, folder).await?;
        Ok(Self {
            overview: RunOverview::of(read, record, run).await?,
            report: report.with_cost(cost.map(|cost| cost.report())),
            training,
            record: RunRecordReport::of(record, read.held),
        })
    }
}

/// What to type to go on with a rollout; `null` where there is no such command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutCommands {
    pub show: Option<String>,
    /// Runs its dataset row in a new run.
    pub run_again: Option<String>,
    /// Grades the recorded samples of its dataset row in a new run.
    pub regrade: Option<String>,
    /// Writes the run's rollouts for other programs.
    pub export: String,
}

impl RolloutCommands {
    pub fn of(
        record: &RunRecord,
        row_index: u64,
        run_index: u32,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        let pinned = Pinned::read(&record.pinned)?;
        let (run, word) = (record.name.as_str(), command_word(record.kind));
        let row = row_index.to_string();
        let rollout = format!("{row_index}.{run_index}");
        let command = |arguments: &[&str]| suggested_command(arguments, workspace);
        let is_evaluation = record.kind == RunKind::Evaluation;
        let config = pinned.remembered.config.filter(|_| is_evaluation);
        let config = config.map(|config| {
            let config = workspace.root.join(config);
            let here = current_dir().unwrap_or_default();
            config.strip_prefix(&here).unwrap_or(&config).to_owned()
        });
        Ok(Self {
            show: (record.kind != RunKind::Serving)
                .then(|| command(&[word, "show", run, &rollout, "--calls"])),
            run_again: config
                .map(|config| command(&["eval", "submit", config.as_str(), "--rows", &row])),
            regrade: is_evaluation.then(|| command(&["eval", "regrade", run, "--rows", &row])),
            export: command(&["export", run]),
        })
    }
}
