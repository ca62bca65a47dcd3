//! One evaluation with several models: a run for each, and how they differ.

use osmosis_core::RunName;
use osmosis_store::RunKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ComparedWith, Comparison, RunReport};
use crate::RunError;
use crate::run_folder::RunFolder;
use crate::runs::ReadRun;
use crate::workspace::Workspace;

/// The `resource` of `eval submit --json` with several models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelRunsReport {
    /// In the order in which the models were given.
    pub runs: Vec<ModelRun>,
    /// Every run after the first, compared with it; empty as long as there is one run.
    pub comparisons: Vec<ModelComparison>,
}

/// A model and its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelRun {
    pub model: String,
    #[serde(flatten)]
    pub report: RunReport,
}

/// A run beside the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelComparison {
    /// The run that it is compared with.
    pub first: RunName,
    #[serde(flatten)]
    pub compared: ComparedWith,
}

impl ModelRunsReport {
    /// These runs, compared as far as they have gone.
    pub async fn of(runs: Vec<ModelRun>, workspace: &Workspace) -> Result<Self, RunError> {
        let mut comparisons = vec![];
        if runs.len() > 1 {
            let mut opened = vec![];
            for run in &runs {
                let name = &run.report.run_name;
                let folder = RunFolder::of(workspace, RunKind::Evaluation, name);
                opened.push(ReadRun::open(folder).await?);
            }
            let compared = Comparison::of(opened, false, workspace).await?;
            let first = compared.first.run_name;
            let others = compared.others.into_iter();
            comparisons.extend(others.map(|compared| ModelComparison {
                first: first.clone(),
                compared,
            }));
        }
        Ok(Self { runs, comparisons })
    }
}
