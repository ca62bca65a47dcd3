//! One run in a list of runs.

use camino::Utf8PathBuf;
use osmosis_core::RunTag;
use osmosis_store::RunKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RunState;
use crate::RunError;
use crate::figures::time_text;
use crate::runs::{ReadRun, kept};

/// An item of `eval list --json` and `train list --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    pub run_name: String,
    pub status: RunState,
    /// Rollouts with a result.
    pub done: u64,
    /// All of its rollouts.
    pub total: u64,
    /// In UTC: `2026-01-31 12:00:00Z`.
    pub created_at: String,
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
    /// The last step of a training run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// What people marked it with.
    #[serde(default)]
    pub tags: Vec<RunTag>,
    /// The id that `run restore` takes, of a run that is archived; left out for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_id: Option<String>,
}

impl RunSummary {
    /// `None` for a run that was never begun.
    pub async fn of(run: &ReadRun) -> Result<Option<Self>, RunError> {
        let ReadRun {
            folder,
            store,
            held,
        } = run;
        let Some(run) = store.run().await? else {
            return Ok(None);
        };
        let counts = store.counts().await?;
        let steps = match run.kind {
            RunKind::Training => Some(store.steps().await?.last().map_or(0, |step| step.step)),
            RunKind::Evaluation | RunKind::Serving => None,
        };
        Ok(Some(Self {
            run_name: folder.name().to_owned(),
            status: RunState::of(run.status, *held),
            done: counts.done,
            total: counts.total(),
            created_at: time_text(run.created_at_ms),
            output_path: folder.path.clone(),
            steps,
            tags: kept::tags_in(&folder.path),
            archive_id: None,
        }))
    }
}
