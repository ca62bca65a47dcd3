//! A run that was copied into another store.

use osmosis_core::RunName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::runs::copy::CopiedRun;

/// The `resource` of `run copy --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CopiedRunReport {
    pub run_name: RunName,
    /// `KIND/NAME`.
    pub run: String,
    /// Where the copy is, without a password.
    pub to: String,
    pub rows: u64,
    pub rollouts: u64,
    /// Rollouts with a result.
    pub results: u64,
    pub samples: u64,
    pub calls: u64,
    pub steps: u64,
    pub batches: u64,
}

impl CopiedRunReport {
    pub fn of(copied: &CopiedRun) -> Self {
        let counts = &copied.counts;
        Self {
            run_name: copied.from.name.clone(),
            run: copied.from.to_string(),
            to: copied.to.to_string(),
            rows: counts.rows,
            rollouts: counts.rollouts,
            results: counts.results,
            samples: counts.samples,
            calls: counts.calls,
            steps: counts.steps,
            batches: counts.batches,
        }
    }
}
