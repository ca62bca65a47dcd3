//! What `--dry-run` found: everything was tried out, and nothing was run.

use camino::Utf8PathBuf;
use osmosis_core::RunName;
use osmosis_core::frame::{Found, Manifest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::FactChanges;
use crate::eval::check::{CheckedSide, EvalCheck};
use crate::eval::plan::EvalPlan;
use crate::eval::probe::ProbeResult;
use crate::regrade::plan::RegradePlan;
use crate::regrade::regrading::RegradeCheck;
use crate::train::plan::Plan;
use crate::train::training::TrainCheck;
use crate::withheld::Withheld;

/// The `resource` of `eval submit --dry-run --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EvalDryRun {
    pub rows: u64,
    pub rollouts: u64,
    pub model_server: ProbeResult,
    #[serde(flatten)]
    pub user_side: CheckedUserSide,
    /// The model, where several were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// The user's code, here or at a rollout server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum CheckedUserSide {
    Here(CheckedCode),
    AtServer(CheckedServer),
}

/// A project whose entrypoint was imported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedCode {
    pub workflow: Found,
    /// `null` for workflows whose return value is the grade.
    pub grader: Option<Found>,
    pub warnings: Vec<String>,
    /// The interpreter or binary.
    #[schemars(with = "String")]
    pub program: Utf8PathBuf,
    /// Names of environment variables that look like keys, and that workers don't get.
    pub withheld_variables: Vec<String>,
}

/// A rollout server that answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedServer {
    /// Its URL.
    pub server: String,
    /// What it reports about itself.
    pub health: Value,
}

impl EvalDryRun {
    pub fn of(checked: EvalCheck, plan: &EvalPlan) -> Self {
        Self {
            rows: plan.rows,
            rollouts: plan.rollouts(),
            model_server: checked.model_server,
            user_side: match checked.side {
                CheckedSide::Here {
                    manifest,
                    program,
                    withheld,
                } => CheckedUserSide::Here(CheckedCode::of(*manifest, program, &withheld)),
                CheckedSide::AtServer { url, health } => CheckedUserSide::AtServer(CheckedServer {
                    server: url,
                    health,
                }),
            },
            model: None,
        }
    }
}

impl CheckedCode {
    fn of(manifest: Manifest, program: Utf8PathBuf, withheld: &Withheld) -> Self {
        Self {
            workflow: manifest.workflow,
            grader: manifest.grader,
            warnings: manifest.warnings,
            program,
            withheld_variables: withheld.0.clone(),
        }
    }
}

/// The `resource` of `eval submit --dry-run --json` with several models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelDryRuns {
    /// In the order in which the models were given.
    pub runs: Vec<EvalDryRun>,
    /// `null`: nothing was run that could be compared.
    pub comparisons: Option<()>,
}

/// The `resource` of `train submit --dry-run --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainDryRun {
    /// Rows to train on.
    pub rows: u64,
    pub held_out: u64,
    /// Of the model.
    pub parameters: usize,
    #[serde(flatten)]
    pub code: CheckedCode,
}

impl TrainDryRun {
    pub fn of(checked: TrainCheck, plan: &Plan) -> Self {
        let (rows, held_out) = plan.row_counts();
        Self {
            rows,
            held_out,
            parameters: plan.model.parameters(),
            code: CheckedCode::of(checked.manifest, checked.program, &plan.code.withheld),
        }
    }
}

/// The `resource` of `eval regrade --dry-run --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RegradeDryRun {
    /// The run whose samples would be graded.
    pub regraded_from: RunName,
    pub rollouts: u64,
    pub grader: Option<Found>,
    pub warnings: Vec<String>,
    /// What differs from when the run was graded.
    pub changes: FactChanges,
}

impl RegradeDryRun {
    pub fn of(checked: RegradeCheck, plan: &RegradePlan) -> Self {
        Self {
            regraded_from: plan.source.record.name.clone(),
            rollouts: plan.rollouts,
            grader: checked.manifest.grader,
            warnings: checked.manifest.warnings,
            changes: checked.changes,
        }
    }
}
