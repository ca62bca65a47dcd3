//! The model of a run whose trainer is another process.

use osmosis_core::config::{ModelPath, RowStrategy, TrainConfig, TrainerKind, Training};
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
        refuse_chosen_rows(&config.training)?;
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

    fn pin(&self, facts: &mut Pinned) -> Result<(), RunError> {
        facts.trainer = Some("outside".to_owned());
        match self {
            Self::Embedded(model) => facts.model_sha256 = Some(model.digest()),
            Self::Servers(ready) => facts.model = Some(ready.identity.clone()),
        }
        Ok(())
    }

    fn secrets(&self) -> &[String] {
        match self {
            Self::Embedded(_) => &[],
            Self::Servers(ready) => &ready.secrets,
        }
    }
}

/// Batches for others are made of whatever is complete first: rollouts begin before the results are there that rows would
/// be chosen by.
fn refuse_chosen_rows(training: &Training) -> Result<(), RunError> {
    let refused = |message: &str, hint: &str| {
        Err(RunError::failed(RunErrorKind::ConfigInvalid, message).hint(hint))
    };
    if training.rows.strategy == RowStrategy::Frontier {
        return refused(
            "`strategy = \"frontier\"` in [training.rows] works with `train submit` only",
            "write `strategy = \"uniform\"`",
        );
    }
    if training.max_extra_rows > 0 {
        return refused(
            "`max_extra_rows` in [training] works with `train submit` only",
            "leave it out, or write `max_extra_rows = 0` beside the recipe that sets it: `train serve` replaces \
             groups with equal rewards without a bound (`flat_groups`)",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use osmosis_core::config::RowChoice;

    use super::*;

    #[test]
    fn rows_can_not_be_chosen_for_a_trainer_elsewhere() {
        refuse_chosen_rows(&Training::default()).unwrap();
        let frontier = Training {
            rows: RowChoice {
                strategy: RowStrategy::Frontier,
            },
            ..Training::default()
        };
        let extra = Training {
            max_extra_rows: 3,
            ..Training::default()
        };
        for (training, key) in [(frontier, "frontier"), (extra, "max_extra_rows")] {
            let error = refuse_chosen_rows(&training).unwrap_err();
            assert!(error.message().contains(key), "{error}");
            assert!(error.hint_text().is_some());
        }
    }
}
