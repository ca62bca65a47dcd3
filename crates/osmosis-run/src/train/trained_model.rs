//! The model of a run that is trained here, or by processes that the run starts.

use std::sync::Arc;

use osmosis_core::config::{TrainConfig, TrainerKind, Training};
use osmosis_core::learner::LearnerError;
use osmosis_policy::StartModel;
use osmosis_train::{TrainError, checkpoints};

use super::plan::PlannedModel;
use super::torch::TorchModel;
use crate::chat_choice::ChatChoice;
use crate::policy;
use crate::run_folder::RunFolder;
use crate::runs::Pinned;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// What `train submit` trains.
#[derive(Debug)]
pub enum TrainedModel {
    /// In this process.
    Embedded(Arc<StartModel>),
    /// By a torch process, with an inference server.
    Torch(Box<TorchModel>),
}

impl TrainedModel {
    pub fn parameters(&self) -> usize {
        match self {
            Self::Embedded(model) => model.parts().config.parameters(),
            Self::Torch(model) => model.parameters(),
        }
    }

    /// Of the adapters that are trained in this process.
    pub fn adapter_parameters(&self) -> Option<usize> {
        match self {
            Self::Embedded(model) => model.adapter_parameters(),
            Self::Torch(_) => None,
        }
    }

    /// What can be checked of it once processes may be started.
    pub async fn preflight(&self) -> Result<(), RunError> {
        match self {
            Self::Embedded(_) => Ok(()),
            Self::Torch(model) => model.check().await,
        }
    }
}

/// The identity of a model that is trained in this process.
pub(super) fn digest(model: &StartModel) -> Result<&str, RunError> {
    Ok(model.digest().map_err(TrainError::from)?)
}

/// Freezes the weights where adapters are trained; others stay as they are. A base that comes from no model folder is
/// written below the run's folder.
pub(super) async fn freeze(
    model: &Arc<StartModel>,
    seed: u64,
    folder: &RunFolder,
) -> Result<(), RunError> {
    let base = folder.path.join(checkpoints::BASE_FOLDER);
    let model = Arc::clone(model);
    // It writes the base and packs the weights, which takes seconds.
    let freezing = tokio::task::spawn_blocking(move || model.freeze(seed, &base));
    let frozen = freezing
        .await
        .map_err(|error| TrainError::Internal(error.to_string()))?;
    Ok(frozen
        .map_err(LearnerError::from)
        .map_err(TrainError::from)?)
}

/// The logprobs of a batch are compared with the sampler's before an update is made. With dropout the learner would
/// compute those of another network.
fn refuse_dropout(training: &Training) -> Result<(), RunError> {
    let dropout = training.lora.as_ref().map_or(0.0, |lora| lora.dropout);
    if dropout == 0.0 {
        return Ok(());
    }
    Err(RunError::failed(
        RunErrorKind::ConfigInvalid,
        "`dropout` in [training.lora] needs the torch trainer: an embedded model is updated with the logprobs that \
         it sampled with, and with dropout they would be those of another network",
    )
    .hint("write `dropout = 0`, or add `[trainer] kind = \"torch\"`"))
}

impl PlannedModel for TrainedModel {
    async fn open(config: &TrainConfig, workspace: &Workspace) -> Result<Self, RunError> {
        match config.trainer.kind {
            TrainerKind::Torch => {
                let model = TorchModel::open(config, workspace).await?;
                Ok(Self::Torch(Box::new(model)))
            }
            TrainerKind::Embedded => {
                refuse_dropout(&config.training)?;
                let chat = ChatChoice::of_experiment(&config.experiment, workspace)?;
                let model = policy::open_model(&config.experiment.model_path, workspace, &chat);
                let lora = config.training.lora.clone();
                let start = StartModel::new(model.await?, lora);
                Ok(Self::Embedded(Arc::new(start)))
            }
        }
    }

    fn pin(&self, facts: &mut Pinned) -> Result<(), RunError> {
        let digest = match self {
            Self::Embedded(model) => digest(model)?,
            Self::Torch(model) => {
                facts.trainer = Some("torch".to_owned());
                model.digest()
            }
        };
        facts.model_sha256 = Some(digest.to_owned());
        Ok(())
    }

    fn secrets(&self) -> &[String] {
        &[]
    }
}
