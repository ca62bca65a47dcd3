//! Where a server is and what opens it, as it is reported when the first request can be sent.

use camino::Utf8PathBuf;
use osmosis_core::{PolicyVersion, RunName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `resource` of `serve --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServedRollouts {
    pub url: String,
    /// The key that was made; `null` when one was given, or none is needed.
    pub api_key: Option<String>,
    /// Where the worker of `create_rollout_server()` has to come; `null` for a project of the workspace.
    pub worker_address: Option<String>,
    pub needs_key: bool,
    /// Where the run is recorded.
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
}

/// The `resource` of `gateway --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServedGateway {
    pub url: String,
    pub api_key: String,
    /// Opens `/v1/policy` and `/metrics`.
    pub control_key: String,
    pub model: String,
    /// Where the calls are recorded.
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
}

/// The first `resource` of `train serve --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServedBatches {
    pub run_name: RunName,
    pub url: String,
    pub control_key: String,
    pub model: String,
    /// Of the policy's weights.
    pub version: PolicyVersion,
    pub acknowledged: u64,
    /// All batches of the run.
    pub batches: u64,
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
}
