//! One row that was run in the foreground.

use camino::Utf8PathBuf;
use osmosis_core::RunName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RolloutDetails;

/// The `resource` of `rollout run --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RowRunReport {
    pub project: String,
    pub model: String,
    /// The run that was recorded; `null` when nothing was.
    pub run_name: Option<RunName>,
    #[schemars(with = "Option<String>")]
    pub output_path: Option<Utf8PathBuf>,
    pub rollout: RolloutDetails,
}
