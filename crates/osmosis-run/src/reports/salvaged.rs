//! What could be saved of a damaged run.

use camino::Utf8PathBuf;
use osmosis_core::RunName;
use osmosis_store::RunKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::suggested_command;
use crate::run_folder::command_word;
use crate::runs::salvage::Salvaged;
use crate::workspace::Workspace;

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

impl SalvagedRun {
    pub fn of(salvaged: &Salvaged, workspace: &Workspace) -> Self {
        let Salvaged {
            from,
            name,
            folder,
            report,
        } = salvaged;
        let resume = match from.kind {
            RunKind::Evaluation | RunKind::Training => Some(suggested_command(
                &[command_word(from.kind), "resume", name.as_str()],
                workspace,
            )),
            RunKind::Serving => None,
        };
        let lost = report.lost.iter().map(|lost| LostReport {
            what: lost.what.clone(),
            why: lost.why.clone(),
        });
        Self {
            run_name: name.clone(),
            from: from.to_string(),
            output_path: folder.path.clone(),
            resumable: report.has_record,
            kept: KeptCounts {
                rows: report.rows,
                results: report.results,
                calls: report.calls,
                steps: report.steps,
                batches: report.batches,
            },
            waiting: report.waiting,
            lost: lost.collect(),
            resume,
        }
    }
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
