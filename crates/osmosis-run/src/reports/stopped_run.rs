//! What `eval stop` and `train stop` did.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `resource` of `eval stop --json` and `train stop --json`. The status of the operation is `stopped`, `finished` or
/// `not_running`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoppedRun {
    pub run_name: String,
    /// The process that was asked to stop; left out when none held the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The command that goes on with it; left out when there is nothing to resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
}
