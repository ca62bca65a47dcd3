//! Whether a run is still what was written.

use camino::Utf8PathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `resource` of `run verify --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedRun {
    pub run_name: String,
    /// `KIND/NAME`.
    pub run: String,
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
    pub whole: bool,
    pub findings: u64,
    /// The first findings.
    pub damage: Vec<DamageReport>,
    pub checked: CheckedCounts,
    /// Models of trainers outside.
    pub checkpoints_without_checksum: u64,
    /// Rows that an older version wrote: only their form was checked.
    pub without_checksum: u64,
    /// Of the database; `null` when it could not be read.
    pub schema_version: Option<i64>,
    /// What a living process writes now was not checked.
    pub running: bool,
}

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DamageReport {
    pub place: String,
    pub message: String,
}

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedCounts {
    pub rows: u64,
    pub rollouts: u64,
    pub samples: u64,
    pub calls: u64,
    pub body_bytes: u64,
    pub steps: u64,
    pub batches: u64,
    pub checkpoints: u64,
}
