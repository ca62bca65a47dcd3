//! Whether a run is still what was written.

use camino::Utf8PathBuf;
use osmosis_store::Authenticity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::runs::verify::Verified;

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
    /// So many of the findings are records that something else than osmosis wrote.
    pub altered: u64,
    /// Why it can't be said who wrote the records; left out of a run whose records are authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unauthenticated: Option<String>,
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

impl VerifiedRun {
    pub fn of(verified: &Verified) -> Self {
        let Verified {
            run,
            report,
            checkpoints,
            checkpoints_without_checksum,
        } = verified;
        let checked = &report.checked;
        let damage = report.damage.iter().map(|damage| DamageReport {
            place: damage.place.clone(),
            message: damage.message.clone(),
        });
        Self {
            run_name: run.name.to_string(),
            run: run.to_string(),
            output_path: run.folder.path.clone(),
            whole: report.is_whole(),
            findings: report.findings,
            altered: report.altered,
            unauthenticated: report.authenticity.and_then(Authenticity::missing),
            damage: damage.collect(),
            checked: CheckedCounts {
                rows: checked.rows,
                rollouts: checked.rollouts,
                samples: checked.samples,
                calls: checked.calls,
                body_bytes: checked.body_bytes,
                steps: checked.steps,
                batches: checked.batches,
                checkpoints: *checkpoints,
            },
            checkpoints_without_checksum: *checkpoints_without_checksum,
            without_checksum: report.without_checksum,
            schema_version: report.schema_version,
            running: report.holder.is_some(),
        }
    }
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
