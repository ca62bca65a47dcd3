//! From what a node knows of its run to something that answers its model calls: the one place that decides it.

use osmosis_core::config::ModelPath;

use super::package::{JUDGE_SCRIPT, MODEL_SCRIPT};
use super::spec::{NodeConfig, NodeSpec};
use crate::chat_choice::ChatChoice;
use crate::judge::ReadyJudge;
use crate::policy::{self, ReadyPolicy};
use crate::{RunError, RunErrorKind};

/// Whether nodes have a way to ask this model.
pub fn can_be_asked_by_nodes(model: &ModelPath) -> bool {
    match model {
        ModelPath::Script(_) | ModelPath::Provider { .. } | ModelPath::Endpoint(_) => true,
        ModelPath::Builtin(_) | ModelPath::Run { .. } | ModelPath::Local(_) => false,
    }
}

/// The policy that this node's gateway asks. Scripts come with the package; servers are those of the config, asked with
/// the keys of this machine's environment; embedded models are asked at the controller's token endpoint.
pub async fn open_policy(spec: &NodeSpec) -> Result<ReadyPolicy, RunError> {
    let model = &spec.config.experiment().model_path;
    let chat = spec.chat_choice()?;
    if matches!(spec.config, NodeConfig::Training(_)) {
        return at_controller(spec, model, &chat).await;
    }
    let known = spec.pinned.model.as_ref();
    open(spec, model, (&chat, MODEL_SCRIPT), known).await
}

/// The judge that this node's graders ask, when there is one.
pub async fn open_judge(
    spec: &NodeSpec,
    policy: &ReadyPolicy,
) -> Result<Option<ReadyJudge>, RunError> {
    let Some(model) = spec.config.judge_model() else {
        return Ok(None);
    };
    // One embedded model may play both: what answers for the one answers for the other.
    if model.runs_here() && *model == spec.config.experiment().model_path {
        return Ok(Some(ReadyJudge::beside(model, policy)));
    }
    let chat = ChatChoice::default();
    let known = spec.pinned.judge.as_ref();
    let own = open(spec, model, (&chat, JUDGE_SCRIPT), known).await?;
    Ok(Some(ReadyJudge::of(model, own)))
}

async fn open(
    spec: &NodeSpec,
    model: &ModelPath,
    (chat, script): (&ChatChoice, &str),
    known: Option<&serde_json::Value>,
) -> Result<ReadyPolicy, RunError> {
    match model {
        ModelPath::Script(name) => policy::script_of_text(name, spec.attached_text(script)?),
        ModelPath::Provider { .. } | ModelPath::Endpoint(_) => {
            // The controller asked there; this machine's variables go before that.
            let base_url = known.and_then(|known| known["base_url"].as_str());
            policy::open_server(model, base_url, spec.package.seed, chat)
        }
        ModelPath::Builtin(_) | ModelPath::Run { .. } | ModelPath::Local(_) => {
            at_controller(spec, model, chat).await
        }
    }
}

/// A model that runs in the controller's process.
#[expect(
    clippy::unused_async,
    reason = "the remote token engine is asked what it serves"
)]
async fn at_controller(
    _spec: &NodeSpec,
    model: &ModelPath,
    _chat: &ChatChoice,
) -> Result<ReadyPolicy, RunError> {
    Err(RunError::failed(
        RunErrorKind::ModelUnconfigured,
        format!("model_path `{model}` runs in the controller's process, which nodes can't ask yet"),
    )
    .hint("use a model server, or run on one machine"))
}
