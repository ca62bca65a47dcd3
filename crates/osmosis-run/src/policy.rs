//! From `model_path` to something that answers.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::PolicyVersion;
use osmosis_core::config::{CheckpointStep, Checkpoints, ModelPath, Training};
use osmosis_core::generation::TokenEngine;
use osmosis_gateway::{
    EndpointOptions, Policy, ScriptedPolicy, Secret, TokenPolicy, TokenPolicyOptions,
    UpstreamOptions, UpstreamPolicy,
};
use osmosis_policy::{EmbeddedModel, PolicyError, Sampler, SamplerOptions};
use osmosis_store::RunKind;
use osmosis_tokens::{ChatFormat, TokensError};
use osmosis_train::checkpoints::{self, Which};
use osmosis_train::delivery::AnnouncedWeights;
use serde_json::{Value, json};

use crate::chat_choice::ChatChoice;
use crate::inference_server::{InferenceServer, ServerKind};
use crate::life::RunningParts;
use crate::run_folder::RunFolder;
use crate::workspace::{Workspace, absolute};
use crate::{RunError, RunErrorKind, io_error as io};

/// Sequences that an embedded policy samples at once.
pub const MAX_BATCH: usize = 256;
/// What the KV caches of an embedded policy may take.
pub const CACHE_BYTES: usize = 2 << 30;

/// A policy that is ready to be asked.
#[derive(Debug)]
pub struct ReadyPolicy {
    pub policy: Arc<dyn Policy>,
    /// What a resume must find unchanged.
    pub identity: Value,
    /// Texts that must never be written down.
    pub secrets: Vec<String>,
    /// Calls leave this machine and may cost money.
    pub remote: bool,
    /// The ids of what it sampled are recorded.
    pub tells_tokens: bool,
    /// What samples, when the policy is embedded.
    embedded: Option<EmbeddedPolicy>,
}

/// A model that runs in this process.
#[derive(Debug, Clone)]
pub struct EmbeddedPolicy {
    pub sampler: Arc<Sampler>,
    /// How it is talked to.
    pub chat: Arc<ChatFormat>,
}

impl ReadyPolicy {
    /// A policy of which nothing runs in this process, and whose token ids are known.
    pub fn outside(
        policy: Arc<dyn Policy>,
        identity: Value,
        secrets: Vec<String>,
        remote: bool,
    ) -> Self {
        Self {
            policy,
            identity,
            secrets,
            remote,
            tells_tokens: true,
            embedded: None,
        }
    }

    /// The same with a policy in front that records token ids.
    #[must_use]
    pub fn behind(self, front: impl FnOnce(Arc<dyn Policy>) -> Arc<dyn Policy>) -> Self {
        Self {
            policy: front(self.policy),
            tells_tokens: true,
            ..self
        }
    }

    /// Whether the model runs in this process.
    pub fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// The model, when it runs in this process.
    pub fn embedded(&self) -> Option<&EmbeddedPolicy> {
        self.embedded.as_ref()
    }

    /// Has what runs for the policy in this process end with a run.
    pub fn end_with(&self, parts: &RunningParts) {
        if let Some(embedded) = &self.embedded {
            parts.add_sampler(&embedded.sampler);
        }
    }

    /// Ends what runs for the policy in this process.
    pub fn shut_down(&self) {
        if let Some(embedded) = &self.embedded {
            embedded.sampler.shut_down();
        }
    }
}

/// A policy for evaluation or serving. `seed` is where the random numbers of an embedded one start.
pub async fn open(
    model: &ModelPath,
    seed: u64,
    workspace: &Workspace,
    chat: &ChatChoice,
) -> Result<ReadyPolicy, RunError> {
    match model {
        ModelPath::Script(path) => {
            chat.refuse_unless_default("a scripted policy renders no prompts")?;
            script(path, workspace)
        }
        ModelPath::Provider { .. } | ModelPath::Endpoint(_) => open_server(model, None, seed, chat),
        ModelPath::Builtin(_) | ModelPath::Run { .. } | ModelPath::Local(_) => {
            let embedded = open_model(model, workspace, chat).await?;
            let mut identity = json!({ "model_sha256": embedded.digest(), "seed": seed });
            chat.pin(&mut identity);
            let sampler = start_sampler(model, &embedded)?;
            let loader = AnnouncedWeights::of(Arc::clone(&sampler), &embedded);
            let policy = TokenPolicy::with_loader(
                Arc::clone(&sampler) as Arc<dyn TokenEngine>,
                Arc::clone(&embedded.chat),
                token_options(model, seed, None, chat.template_name.clone()),
                Arc::new(loader),
            );
            Ok(ReadyPolicy {
                policy: Arc::new(policy),
                identity,
                secrets: vec![],
                remote: false,
                tells_tokens: true,
                embedded: Some(EmbeddedPolicy {
                    sampler,
                    chat: embedded.chat,
                }),
            })
        }
    }
}

/// A policy behind a server of the config. Without the variable that has its address, `known_url` is taken.
pub fn open_server(
    model_path: &ModelPath,
    known_url: Option<&str>,
    seed: u64,
    chat: &ChatChoice,
) -> Result<ReadyPolicy, RunError> {
    let known_url = known_url.map(str::to_owned);
    let (base_url, key, model, usual) = match model_path {
        ModelPath::Provider { provider, model } => {
            let base_url = variable(provider.base_url_variable)
                .or(known_url)
                .or_else(|| provider.default_base_url.map(str::to_owned))
                .ok_or_else(|| unset(provider.base_url_variable, &model_path.to_string()))?;
            let key = variable(provider.api_key_variable);
            if provider.needs_key && key.is_none() {
                return Err(unset(provider.api_key_variable, &model_path.to_string()));
            }
            let usual = match provider.name {
                "hosted_vllm" => ServerKind::Vllm,
                _ => ServerKind::Openai,
            };
            (base_url, key, model, usual)
        }
        ModelPath::Endpoint(model) => {
            let base_url = variable("OPENAI_BASE_URL")
                .or(known_url)
                .ok_or_else(|| unset("OPENAI_BASE_URL", model))?;
            let key = variable("OPENAI_API_KEY");
            (base_url, key, model, ServerKind::Openai)
        }
        ModelPath::Script(_)
        | ModelPath::Builtin(_)
        | ModelPath::Run { .. }
        | ModelPath::Local(_) => {
            return Err(RunError::failed(
                RunErrorKind::Internal,
                format!("model_path `{model_path}` is at no server"),
            ));
        }
    };
    let server = InferenceServer::from_environment(usual)?;
    server.open(one_server(&base_url, key, model), seed, chat)
}

/// Most tokens of a prompt and of a response.
#[derive(Debug, Clone, Copy)]
pub struct TokenLimits {
    pub prompt: usize,
    pub response: usize,
}

impl TokenLimits {
    pub fn of(training: &Training) -> Self {
        Self {
            prompt: training.max_prompt_length as usize,
            response: training.max_response_length as usize,
        }
    }
}

/// A model behind an engine elsewhere, which this process renders for as the engine's own process would.
pub fn asked_elsewhere(
    model_path: &ModelPath,
    engine: Arc<dyn TokenEngine>,
    chat_format: impl Into<Arc<ChatFormat>>,
    seed: u64,
    limits: Option<TokenLimits>,
    chat: &ChatChoice,
) -> TokenPolicy {
    let options = token_options(model_path, seed, limits, chat.template_name.clone());
    TokenPolicy::new(engine, chat_format.into(), options)
}

/// An embedded model behind the gateway's `Policy`, with the sampler that serves it.
pub fn sampled(
    model_path: &ModelPath,
    sampler: Sampler,
    chat: &Arc<ChatFormat>,
    seed: u64,
    limits: Option<TokenLimits>,
    chat_template: Option<String>,
) -> (Arc<dyn Policy>, Arc<Sampler>) {
    let sampler = Arc::new(sampler);
    let engine: Arc<dyn TokenEngine> = Arc::clone(&sampler) as Arc<dyn TokenEngine>;
    let options = token_options(model_path, seed, limits, chat_template);
    let policy = TokenPolicy::new(engine, Arc::clone(chat), options);
    (Arc::new(policy), sampler)
}

/// How an embedded policy samples.
pub fn sampler_options() -> SamplerOptions {
    SamplerOptions {
        max_batch: MAX_BATCH,
        threads: 0,
        cache_bytes: CACHE_BYTES,
    }
}

/// The same for a trainer outside, which announces weights: the run keeps a copy, and goes on with it.
pub fn trained_outside(
    model_path: &ModelPath,
    model: &EmbeddedModel,
    seed: u64,
    limits: TokenLimits,
    chat_template: Option<String>,
    (folder, kept): (Utf8PathBuf, Checkpoints),
) -> Result<(Arc<dyn Policy>, Arc<Sampler>), RunError> {
    let sampler = start_sampler(model_path, model)?;
    let weights = AnnouncedWeights::kept_in(Arc::clone(&sampler), model, folder, kept);
    if let Err(error) = weights.restore(model) {
        sampler.shut_down();
        return Err(error.into());
    }
    let policy = TokenPolicy::with_loader(
        Arc::clone(&sampler) as Arc<dyn TokenEngine>,
        Arc::clone(&model.chat),
        token_options(model_path, seed, Some(limits), chat_template),
        Arc::new(weights),
    );
    Ok((Arc::new(policy), sampler))
}

fn start_sampler(model_path: &ModelPath, model: &EmbeddedModel) -> Result<Arc<Sampler>, RunError> {
    Sampler::start(model, PolicyVersion(0), sampler_options())
        .map(Arc::new)
        .map_err(|error| model_error(model_path, &error))
}

fn token_options(
    model_path: &ModelPath,
    seed: u64,
    limits: Option<TokenLimits>,
    chat_template: Option<String>,
) -> TokenPolicyOptions {
    TokenPolicyOptions {
        model: model_path.to_string(),
        endpoint: format!("embedded:{model_path}"),
        chat_template,
        seed,
        max_prompt_tokens: limits.map(|limits| limits.prompt),
        max_response_tokens: limits.map(|limits| limits.response),
    }
}

/// A model that runs in this process, and can be trained.
pub async fn open_model(
    model: &ModelPath,
    workspace: &Workspace,
    chat: &ChatChoice,
) -> Result<EmbeddedModel, RunError> {
    let settings = &chat.settings;
    let opened = match model {
        ModelPath::Builtin(name) => EmbeddedModel::builtin_with(name, settings),
        ModelPath::Run { name, step } => {
            let folder = checkpoint(name.as_str(), *step, workspace).await?;
            if *step == CheckpointStep::Best {
                tracing::warn!(
                    "`{model}` was chosen by its score on the run's held-out rows: what it scores on \
                     them is optimistic, so measure it on other rows"
                );
            }
            EmbeddedModel::open_with(&folder, settings)
        }
        ModelPath::Local(path) => EmbeddedModel::open_with(&local(path, workspace)?, settings),
        ModelPath::Script(_) | ModelPath::Provider { .. } | ModelPath::Endpoint(_) => {
            return Err(RunError::failed(
                RunErrorKind::ModelNotTrainable,
                format!(
                    "model_path `{model}` can't be trained here: a policy behind an endpoint is \
                     trained by its own trainer"
                ),
            )
            .hint("use `builtin/tiny`, `run:NAME`, or a checkpoint folder like `./models/NAME`"));
        }
    };
    opened.map_err(|error| match &error {
        PolicyError::Tokens(of_template) if chat.blamed_for(of_template).is_some() => {
            template_error(chat, of_template)
        }
        _ => model_error(model, &error),
    })
}

/// The template that was chosen can't be used.
pub fn template_error(chat: &ChatChoice, error: &TokensError) -> RunError {
    let name = chat.template_name.as_deref().unwrap_or_default();
    RunError::failed(
        RunErrorKind::ModelInvalid,
        format!("chat_template `{name}`: {error}"),
    )
    .maybe_hint(error.hint())
}

/// How a built-in model is talked to; `None` for other models.
pub fn builtin_chat(model: &ModelPath) -> Option<Arc<ChatFormat>> {
    match model {
        ModelPath::Builtin(name) => Some(EmbeddedModel::builtin(name).ok()?.chat),
        ModelPath::Script(_)
        | ModelPath::Provider { .. }
        | ModelPath::Endpoint(_)
        | ModelPath::Run { .. }
        | ModelPath::Local(_) => None,
    }
}

/// The tokenizer of a model that runs in this process; `None` when there is none, or it can't be had
/// without the weights.
pub async fn tokenizer(model: &ModelPath, workspace: &Workspace) -> Option<Arc<ChatFormat>> {
    let folder = match model {
        ModelPath::Builtin(name) => return Some(EmbeddedModel::builtin(name).ok()?.chat),
        ModelPath::Run { name, step } => checkpoint(name.as_str(), *step, workspace).await.ok()?,
        ModelPath::Local(path) => local(path, workspace).ok()?,
        ModelPath::Script(_) | ModelPath::Provider { .. } | ModelPath::Endpoint(_) => return None,
    };
    Some(Arc::new(ChatFormat::load(&folder).ok()?))
}

pub fn model_error(model: &ModelPath, error: &PolicyError) -> RunError {
    RunError::failed(
        RunErrorKind::ModelInvalid,
        format!("model_path `{model}`: {error}"),
    )
    .maybe_hint(error.hint().or_else(|| missing_hint(model, error)))
}

fn missing_hint(model: &ModelPath, error: &PolicyError) -> Option<String> {
    let (ModelPath::Local(_), PolicyError::Io { path, .. }) = (model, error) else {
        return None;
    };
    (!path.exists()).then(|| {
        "give a model folder (`config.json`, `tokenizer.json`, `*.safetensors`) or a GGUF file; a relative path is \
         read from the workspace, the folder that holds `rollouts/`"
            .to_owned()
    })
}

/// The folder or file of a model that is one.
pub async fn model_folder(
    model: &ModelPath,
    workspace: &Workspace,
) -> Result<Option<Utf8PathBuf>, RunError> {
    match model {
        ModelPath::Run { name, step } => {
            Ok(Some(checkpoint(name.as_str(), *step, workspace).await?))
        }
        ModelPath::Local(path) => Ok(Some(local(path, workspace)?)),
        ModelPath::Builtin(_)
        | ModelPath::Script(_)
        | ModelPath::Provider { .. }
        | ModelPath::Endpoint(_) => Ok(None),
    }
}

pub(crate) async fn checkpoint(
    run: &str,
    step: CheckpointStep,
    workspace: &Workspace,
) -> Result<Utf8PathBuf, RunError> {
    // A name in a config must not come to mean another run because that one is gone.
    let folder = if run == "latest" {
        RunFolder::existing(workspace, RunKind::Training, run).await?
    } else {
        RunFolder::recorded(workspace, RunKind::Training, run).await?
    };
    let which = match step {
        CheckpointStep::Latest => Which::Latest,
        CheckpointStep::Best => Which::Best,
        CheckpointStep::Step(step) => Which::Step(step),
    };
    Ok(checkpoints::resolve(&folder.path, which)?.folder)
}

/// `~` is the user's home; what is relative is so to the workspace.
pub(crate) fn local(path: &Utf8Path, workspace: &Workspace) -> Result<Utf8PathBuf, RunError> {
    let Some(below_home) = path.as_str().strip_prefix('~') else {
        return absolute(&workspace.root.join(path));
    };
    if !below_home.is_empty() && !below_home.starts_with('/') {
        return Err(RunError::failed(
            RunErrorKind::ModelInvalid,
            format!("model_path `{path}`: the home of another user is not known here"),
        )
        .hint("write the whole path"));
    }
    let home = variable("HOME").ok_or_else(|| {
        RunError::failed(RunErrorKind::ModelInvalid, "`~` needs the variable `HOME`")
    })?;
    Ok(Utf8PathBuf::from(home).join(below_home.trim_start_matches('/')))
}

fn script(name: &Utf8Path, workspace: &Workspace) -> Result<ReadyPolicy, RunError> {
    let path = workspace.root.join(name);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        io(&path, &error)
            .hint("`script:PATH` is relative to the workspace, the folder that holds `rollouts/`")
    })?;
    script_of_text(name, &text)
}

/// A scripted policy. Its name is for messages.
pub fn script_of_text(name: &Utf8Path, text: &str) -> Result<ReadyPolicy, RunError> {
    let policy = ScriptedPolicy::parse(name, text)
        .map_err(|errors| RunError::failed(RunErrorKind::ScriptInvalid, errors.to_string()))?;
    Ok(ReadyPolicy {
        policy: Arc::new(policy),
        identity: json!({ "script_sha256": crate::source_digest::text_digest(text) }),
        secrets: vec![],
        remote: false,
        tells_tokens: false,
        embedded: None,
    })
}

/// A server that speaks the Chat Completions API.
pub fn one_server(base_url: &str, key: Option<String>, model: &str) -> UpstreamOptions {
    let endpoint = EndpointOptions {
        api_key: key.map(Secret::new),
        ..EndpointOptions::new(base_url)
    };
    UpstreamOptions::of(vec![endpoint], model)
}

/// Servers that speak the Chat Completions API and serve the same model.
pub fn upstreams(options: UpstreamOptions) -> Result<ReadyPolicy, RunError> {
    let keys = options.endpoints.iter().filter_map(|e| e.api_key.as_ref());
    let secrets = keys.map(|key| key.expose().to_owned()).collect();
    let remote = options.endpoints.iter().any(|e| !is_local(&e.base_url));
    let policy = UpstreamPolicy::new(options).map_err(|error| {
        RunError::failed(RunErrorKind::ModelInvalid, error.to_string()).maybe_hint(error.hint())
    })?;
    // Not the URLs as they were given: they may hold a password.
    let endpoint = policy.describe().endpoint;
    Ok(ReadyPolicy {
        policy: Arc::new(policy),
        identity: json!({ "base_url": endpoint }),
        secrets,
        remote,
        tells_tokens: false,
        embedded: None,
    })
}

pub fn is_local(url: &str) -> bool {
    ["http://127.", "http://localhost", "http://[::1]"]
        .iter()
        .any(|start| url.starts_with(start))
}

pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn unset(name: &str, model: &str) -> RunError {
    RunError::failed(
        RunErrorKind::ModelUnconfigured,
        format!("model_path `{model}` needs the environment variable `{name}`"),
    )
    .hint(format!(
        "export {name}=…, or use a scripted policy: model_path = \"script:PATH\""
    ))
}
