//! What `osmosis export` wrote.

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `resource` of `export --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportReport {
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
    pub format: String,
    pub rollouts: u64,
    /// What the file has of them: lines, rows or samples.
    pub records: u64,
    /// Of exports that are trained on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOutReport>,
}

/// Rollouts that gave no rows. An export of conversations counts those of held-out rows only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOutReport {
    /// Of rows that the run never trained on.
    pub held_out: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_reward: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_token_ids: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nothing_to_train_on: Option<u64>,
}
