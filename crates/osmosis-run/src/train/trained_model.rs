//! The model of a run that is trained here, or by processes that the run starts.

use std::sync::Arc;

use osmosis_core::config::{TrainConfig, TrainerKind, Training};
use osmosis_policy::StartModel;
use osmosis_train::TrainError;

use super::plan::PlannedModel;
use super::torch::TorchModel;
use crate::chat_choice::ChatChoice;
use crate::policy;
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
                Ok(Self::Embedded(Arc::new(StartModel::new(
                    model.await?,
                    lora,
                ))))
            }
        }
    }

    fn pin(&self, facts: &mut Pinned) -> Result<(), RunError> {
        let digest = match self {
            Self::Embedded(model) => model.digest().map_err(TrainError::from)?,
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
