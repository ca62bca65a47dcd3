//! What `--dry-run` found: everything was tried out, and nothing was run.

use camino::Utf8PathBuf;
use osmosis_core::RunName;
use osmosis_core::config::RecipeReport;
use osmosis_core::frame::{Found, Manifest};
use osmosis_core::learner::LearnerError;
use osmosis_policy::{Footprint, Pace, TrainingSize};
use osmosis_train::TrainError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::FactChanges;
use crate::RunError;
use crate::eval::check::{CheckedSide, EvalCheck};
use crate::eval::plan::EvalPlan;
use crate::eval::probe::ProbeResult;
use crate::policy::{CACHE_BYTES, TokenLimits};
use crate::regrade::plan::RegradePlan;
use crate::regrade::regrading::RegradeCheck;
use crate::train::TrainedModel;
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
    /// Of the adapters, when the model's own stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_parameters: Option<usize>,
    pub steps: u64,
    /// `[training] recipe`, with the keys that the config sets otherwise; left out without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<RecipeReport>,
    /// `null` with the torch trainer, which decides by itself.
    pub disk: Option<TrainDisk>,
    /// `null` with the torch trainer.
    pub memory: Option<TrainMemory>,
    /// `null` with the torch trainer.
    pub time: Option<TrainTime>,
    #[serde(flatten)]
    pub code: CheckedCode,
}

/// What a training writes, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainDisk {
    /// Of one checkpoint: weights, optimizer and tokenizer.
    pub checkpoint_bytes: u64,
    /// Checkpoints that are there at the end, by `[checkpoints]`. One more is there while it is written.
    pub checkpoints_kept: u64,
    pub kept_bytes: u64,
}

/// What a training takes, in bytes. The engine and the user's workers come on top.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(
    clippy::struct_field_names,
    reason = "keys of `--json` end in their unit"
)]
pub struct TrainMemory {
    /// Weights, optimizer, gradients and sampler, as long as training goes on.
    pub fixed_bytes: u64,
    /// With the longest rows that the config allows.
    pub activations_at_most_bytes: u64,
    pub kv_cache_at_most_bytes: u64,
}

/// How long a step takes on this machine, from rates that were measured with the model. What agents and graders do
/// besides calling the model comes on top.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainTime {
    pub sampled_tokens_per_second: f64,
    pub trained_tokens_per_second: f64,
    /// If every rollout is one answer as long as the config allows.
    pub longest_step_s: f64,
}

impl TrainTime {
    fn of(pace: Pace, plan: &Plan) -> Self {
        let training = &plan.config.training;
        let limits = TokenLimits::of(training);
        let rollouts =
            f64::from(training.rollout_batch_size) * f64::from(training.n_samples_per_prompt);
        let answers = rollouts * limits.response as f64;
        let rows = rollouts * limits.prompt.saturating_add(limits.response) as f64;
        let updates = f64::from(training.updates_per_batch);
        Self {
            sampled_tokens_per_second: pace.sampled,
            trained_tokens_per_second: pace.trained,
            longest_step_s: answers / pace.sampled + updates * rows / pace.trained,
        }
    }
}

impl TrainDryRun {
    pub fn of(checked: TrainCheck, plan: &Plan) -> Result<Self, RunError> {
        let (rows, held_out) = plan.row_counts();
        let (steps, checkpoints_kept) = plan.steps()?;
        let footprint = footprint(plan)?;
        Ok(Self {
            rows,
            held_out,
            parameters: plan.model.parameters(),
            adapter_parameters: plan.model.adapter_parameters(),
            steps,
            recipe: plan.config.training.recipe_report(),
            disk: footprint.as_ref().map(|footprint| TrainDisk {
                checkpoint_bytes: footprint.checkpoint,
                checkpoints_kept,
                kept_bytes: footprint.checkpoint * checkpoints_kept,
            }),
            memory: footprint.map(|footprint| TrainMemory {
                fixed_bytes: footprint.fixed(),
                activations_at_most_bytes: footprint.activations_at_most,
                kv_cache_at_most_bytes: footprint.cache_at_most,
            }),
            time: checked.pace.map(|pace| TrainTime::of(pace, plan)),
            code: CheckedCode::of(checked.manifest, checked.program, &plan.code.withheld),
        })
    }
}

/// What an embedded model takes.
fn footprint(plan: &Plan) -> Result<Option<Footprint>, RunError> {
    let TrainedModel::Embedded(model) = &plan.model else {
        return Ok(None);
    };
    let limits = TokenLimits::of(&plan.config.training);
    let size = TrainingSize {
        longest_row: limits.prompt.saturating_add(limits.response),
        longest_response: limits.response,
        sequences_at_once: plan.sequences_at_once(),
        cache_bytes: CACHE_BYTES,
    };
    let estimated = match model.lora() {
        Some(lora) => Footprint::adapted(model.parts(), lora, size),
        None => Footprint::full(model.parts(), size),
    };
    let estimated = estimated.map_err(LearnerError::from);
    Ok(Some(estimated.map_err(TrainError::from)?))
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
