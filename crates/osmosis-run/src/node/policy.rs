//! From what a node knows of its run to something that answers its model calls: the one place that decides it.

use std::sync::Arc;

use osmosis_core::config::ModelPath;
use osmosis_core::generation::{GenerationError, RemoteFault, TokenEngine};
use osmosis_gateway::{EndpointEngine, EndpointEngineOptions, EndpointError};
use serde_json::Value;

use super::offered_models::{ModelRole, attached_chat};
use super::package::{JUDGE_SCRIPT, MODEL_SCRIPT};
use super::spec::{NodeConfig, NodeSpec};
use crate::chat_choice::ChatChoice;
use crate::judge::ReadyJudge;
use crate::policy::{self, ReadyPolicy};
use crate::{RunError, RunErrorKind};

/// The policy that this node's gateway asks. Scripts come with the package; servers are those of the config, asked with
/// the keys of this machine's environment; embedded models are asked at the controller's token endpoint.
pub async fn open_policy(spec: &NodeSpec) -> Result<ReadyPolicy, RunError> {
    let model = &spec.config.experiment().model_path;
    let asked = ConfiguredModel {
        role: ModelRole::Policy,
        model,
        chat: spec.chat_choice()?,
        known: spec.pinned.model.as_ref(),
    };
    asked.open(spec).await
}

/// The judge that this node's graders ask, when there is one.
pub async fn open_judge(
    spec: &NodeSpec,
    policy: &ReadyPolicy,
) -> Result<Option<ReadyJudge>, RunError> {
    let Some(model) = spec.config.judge_model() else {
        return Ok(None);
    };
    // One embedded model may play both: what answers for the one answers for the other. A model in training does
    // not: its judge stays as it was.
    if let NodeConfig::Evaluation(config) = &spec.config
        && model.runs_here()
        && *model == config.experiment.model_path
    {
        return Ok(Some(ReadyJudge::beside(model, policy)));
    }
    let asked = ConfiguredModel {
        role: ModelRole::Judge,
        model,
        chat: ChatChoice::default(),
        known: spec.pinned.judge.as_ref(),
    };
    let own = asked.open(spec).await?;
    Ok(Some(ReadyJudge::of(model, own)))
}

/// A model of the run's config.
struct ConfiguredModel<'a> {
    role: ModelRole,
    model: &'a ModelPath,
    chat: ChatChoice,
    /// What the controller found out about it.
    known: Option<&'a Value>,
}

impl ConfiguredModel<'_> {
    async fn open(&self, spec: &NodeSpec) -> Result<ReadyPolicy, RunError> {
        match self.model {
            ModelPath::Script(name) => {
                let script = match self.role {
                    ModelRole::Policy => MODEL_SCRIPT,
                    ModelRole::Judge => JUDGE_SCRIPT,
                };
                policy::script_of_text(name, spec.attached_text(script)?)
            }
            ModelPath::Provider { .. } | ModelPath::Endpoint(_) => {
                // The controller asked there; this machine's variables go before that.
                let base_url = self.known.and_then(|known| known["base_url"].as_str());
                policy::open_server(self.model, base_url, spec.package.seed, &self.chat)
            }
            ModelPath::Builtin(_) | ModelPath::Run { .. } | ModelPath::Local(_) => {
                self.at_controller(spec).await
            }
        }
    }

    /// A model that runs in the controller's process.
    async fn at_controller(&self, spec: &NodeSpec) -> Result<ReadyPolicy, RunError> {
        let model = self.model;
        let access = spec.controller.clone().ok_or_else(|| {
            RunError::failed(
                RunErrorKind::ModelUnconfigured,
                format!("model_path `{model}` runs in the controller's process, and this node has no key for it"),
            )
            .hint("join with the token that the controller prints: `--join TOKEN`")
        })?;
        let chat_format = attached_chat(spec, self.role)?;
        let key = access.key.expose().to_owned();
        let options = EndpointEngineOptions::new(access.key, self.role.engine());
        let engine = EndpointEngine::connect(access.address, options)
            .await
            .map_err(|error| not_reached(model, &error))?;
        let limits = match self.role {
            ModelRole::Policy => spec.config.token_limits(),
            ModelRole::Judge => None,
        };
        let engine: Arc<dyn TokenEngine> = Arc::new(engine);
        let seed = spec.package.seed;
        let policy = policy::asked_elsewhere(model, engine, chat_format, seed, limits, &self.chat);
        let identity = self.known.cloned().unwrap_or(Value::Null);
        Ok(ReadyPolicy::outside(
            Arc::new(policy),
            identity,
            vec![key],
            false,
        ))
    }
}

fn not_reached(model: &ModelPath, error: &EndpointError) -> RunError {
    let failed = RunError::failed(
        RunErrorKind::ModelUnconfigured,
        format!("model_path `{model}` runs in the controller's process: {error}"),
    );
    match error {
        EndpointError::Away(GenerationError::Remote {
            kind: RemoteFault::Unreachable | RemoteFault::TimedOut,
            ..
        }) => failed.hint(
            "the controller must be reachable from here: start it with `--node-listen ADDR`, and with \
             `--node-url URL` where nodes see another address",
        ),
        EndpointError::Away(_) | EndpointError::Settings(_) => failed,
    }
}
