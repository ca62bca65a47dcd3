//! The model of a run whose trainer is another process.

use osmosis_core::config::{ModelPath, TrainConfig, TrainerKind};
use osmosis_policy::EmbeddedModel;

use super::plan::PlannedModel;
use crate::chat_choice::ChatChoice;
use crate::policy::{self, ReadyPolicy};
use crate::runs::Pinned;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// A policy that is trained by somebody else.
#[derive(Debug)]
pub enum OutsideModel {
    /// It samples here, with weights that the trainer announces.
    Embedded(Box<EmbeddedModel>),
    /// Servers of the trainer's sample.
    Servers(ReadyPolicy),
}

impl PlannedModel for OutsideModel {
    async fn open(config: &TrainConfig, workspace: &Workspace) -> Result<Self, RunError> {
        if config.trainer.kind == TrainerKind::Torch {
            return Err(RunError::failed(
                RunErrorKind::ConfigInvalid,
                "`[trainer] kind = \"torch\"` starts a trainer, and `train serve` is for one of your own",
            )
            .hint("use `osmosis train submit`, or leave `[trainer]` out"));
        }
        let model = &config.experiment.model_path;
        let chat = ChatChoice::of_experiment(&config.experiment, workspace)?;
        if matches!(
            model,
            ModelPath::Builtin(_) | ModelPath::Run { .. } | ModelPath::Local(_)
        ) {
            let embedded = policy::open_model(model, workspace, &chat).await?;
            return Ok(Self::Embedded(Box::new(embedded)));
        }
        let seed = config.training.seed.unwrap_or(0);
        let ready = policy::open(model, seed, workspace, &chat).await?;
        if ready.tells_tokens {
            return Ok(Self::Servers(ready));
        }
        Err(RunError::failed(
            RunErrorKind::ModelNotTrainable,
            format!("model_path `{model}` tells no token ids, and a trainer needs them"),
        )
        .hint(
            "say which engine answers: OSMOSIS_ENGINE=vllm, or sglang with OSMOSIS_TOKENIZER \
             (docs/gateway-tokens.md)",
        ))
    }

    fn pin(&self, facts: &mut Pinned) {
        facts.trainer = Some("outside".to_owned());
        match self {
            Self::Embedded(model) => facts.model_sha256 = Some(model.digest()),
            Self::Servers(ready) => facts.model = Some(ready.identity.clone()),
        }
    }

    fn secrets(&self) -> &[String] {
        match self {
            Self::Embedded(_) => &[],
            Self::Servers(ready) => &ready.secrets,
        }
    }
}
