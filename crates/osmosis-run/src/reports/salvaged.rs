//! What could be saved of a damaged run.

use camino::Utf8PathBuf;
use osmosis_core::RunName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `resource` of `run salvage --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SalvagedRun {
    /// The new run.
    pub run_name: RunName,
    /// `KIND/NAME` of the damaged one.
    pub from: String,
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
    /// Whether the run's own record is whole.
    pub resumable: bool,
    pub kept: KeptCounts,
    /// Rollouts that have no result and are in the queue.
    pub waiting: u64,
    pub lost: Vec<LostReport>,
    /// The command that goes on; `null` for runs that are not resumed.
    pub resume: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptCounts {
    pub rows: u64,
    pub results: u64,
    pub calls: u64,
    pub steps: u64,
    pub batches: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostReport {
    pub what: String,
    pub why: String,
}
