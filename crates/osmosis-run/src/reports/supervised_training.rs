//! What a supervised training came to.

use camino::Utf8PathBuf;
use osmosis_core::RunName;
use osmosis_store::Store;
use osmosis_train::checkpoints;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::training::recorded_end;
use super::{BestCheckpoint, SavedCheckpoint, TrainingEnd};
use crate::life::OpenRun;
use crate::run_folder::RunFolder;
use crate::train::supervised_plan::CheckedSupervised;
use crate::{RunError, RunErrorKind};

/// The `resource` of `train sft --json`, and `metrics.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SupervisedTrainingReport {
    pub run_name: RunName,
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
    /// Why it can't be said who wrote the records; left out of a run whose records are authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unauthenticated: Option<String>,
    /// The last step so far.
    pub steps: u64,
    /// How it ended; `null` while it goes on, after a `kill -9`, and for runs of older versions.
    #[serde(default)]
    pub end: Option<TrainingEnd>,
    /// The mean negative logprob of the tokens of each step, before its update.
    pub loss_curve: Vec<LossPoint>,
    /// The same of held-out conversations, where it was measured; step 0 is before training.
    pub held_out_curve: Vec<LossPoint>,
    /// The saved checkpoint with the lowest held-out loss, `run:NAME@best`; `null` without one.
    #[serde(default)]
    pub best: Option<BestCheckpoint>,
    /// Tokens of the assistant that were trained on, once for each time.
    pub tokens: u64,
    pub checkpoints: Vec<SavedCheckpoint>,
    /// Whether this process went on with a run that another began.
    pub resumed: bool,
    /// `true` when the run was complete before, and nothing was run; else left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub already_complete: bool,
    /// How long this process trained.
    pub duration_ms: u64,
}

/// A loss after, or in, a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LossPoint {
    pub step: u64,
    pub loss: f64,
}

/// The `resource` of `train sft --dry-run --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SupervisedDryRun {
    /// Conversations to train on.
    pub rows: u64,
    pub held_out: u64,
    /// Tokens of the assistant in the conversations to train on.
    pub tokens: u64,
    /// Of the model.
    pub parameters: usize,
    /// Of the adapters, when the model's own stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_parameters: Option<usize>,
}

impl SupervisedDryRun {
    pub fn of(plan: &CheckedSupervised) -> Self {
        let (rows, held_out) = plan.row_counts();
        Self {
            rows,
            held_out,
            tokens: plan.tokens(),
            parameters: plan.model.parts().config.parameters(),
            adapter_parameters: plan.model.adapter_parameters(),
        }
    }
}

/// What is read of a step.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StepLosses {
    loss: Option<f64>,
    #[serde(rename = "eval/loss")]
    held_out: Option<f64>,
    #[serde(rename = "tokens/trained")]
    tokens: u64,
}

impl SupervisedTrainingReport {
    pub async fn of(
        store: &dyn Store,
        name: &RunName,
        folder: &RunFolder,
    ) -> Result<Self, RunError> {
        let mut report = Self {
            run_name: name.clone(),
            output_path: folder.path.clone(),
            unauthenticated: store.authenticity().missing(),
            steps: 0,
            end: recorded_end(store).await?.as_ref().map(TrainingEnd::of),
            loss_curve: vec![],
            held_out_curve: vec![],
            best: BestCheckpoint::of(folder),
            tokens: 0,
            checkpoints: checkpoints::list(&folder.path)?
                .into_iter()
                .map(|saved| SavedCheckpoint {
                    step: saved.step,
                    path: saved.folder,
                })
                .collect(),
            resumed: false,
            already_complete: false,
            duration_ms: 0,
        };
        for record in store.steps().await? {
            let numbers: StepLosses = record
                .metrics
                .read()
                .map_err(|error| RunError::failed(RunErrorKind::RunDamaged, error.to_string()))?;
            let step = record.step;
            let point = |loss| LossPoint { step, loss };
            report.steps = report.steps.max(step);
            report.loss_curve.extend(numbers.loss.map(point));
            report.held_out_curve.extend(numbers.held_out.map(point));
            report.tokens += numbers.tokens;
        }
        Ok(report)
    }

    /// The same by the process that trained.
    #[must_use]
    pub fn ran_here(self, run: &OpenRun) -> Self {
        let duration = run.began.elapsed().as_millis();
        Self {
            resumed: run.resumed,
            already_complete: run.was_finished,
            duration_ms: u64::try_from(duration).unwrap_or(u64::MAX),
            ..self
        }
    }
}
