//! One rollout in the viewer: its details, and what to type to go on with it.

use osmosis_core::JsonText;
use osmosis_store::{RolloutRecord, RunRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{EarlierAttempt, RolloutDetails, Wanted};
use super::run_page::RolloutCommands;
use crate::RunError;
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;

/// The `data` of `GET /api/v1/runs/{run}/rollouts/{rollout}`. `conversations` and `contexts` are empty: the transcript is a
/// document of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RolloutPage {
    #[serde(flatten)]
    pub details: RolloutDetails,
    pub commands: RolloutCommands,
    /// Milliseconds since 1970, as is the next.
    pub started_at_ms: Option<i64>,
    pub finished_at_ms: Option<i64>,
    /// What the workflow measured.
    pub metrics: Option<JsonText>,
    /// Attempts before the one whose result and calls these are.
    pub earlier_attempts: Vec<EarlierAttempt>,
}

impl RolloutPage {
    pub async fn of(
        store: &dyn Store,
        folder: &RunFolder,
        record: &RunRecord,
        rollout: &RolloutRecord,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        let wanted = Wanted {
            ground_truth: true,
            logs: true,
            without_conversations: true,
            ..Wanted::default()
        };
        let (row, run) = (rollout.row_index, rollout.run_index);
        Ok(Self {
            details: RolloutDetails::of(store, folder, &rollout.id, wanted).await?,
            commands: RolloutCommands::of(record, row, run, workspace)?,
            started_at_ms: rollout.started_at_ms,
            finished_at_ms: rollout.finished_at_ms,
            metrics: rollout.metrics.clone(),
            earlier_attempts: EarlierAttempt::all_of(store, folder, rollout).await?,
        })
    }
}
