//! `osmosis gateway`: a model behind an OpenAI-compatible address, every call recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use osmosis_core::RolloutId;
use osmosis_core::config::{ModelPath, ToolFormat};
use osmosis_gateway::{
    Dialect, EndpointOptions, Gateway, GatewayOptions, QueueLimits, Sampling, Secret,
    ServerLogprobs, UpstreamOptions,
};
use osmosis_run::chat_choice::ChatChoice;
use osmosis_run::life::SHUTDOWN_GRACE;
use osmosis_run::reports::ServedGateway;
use osmosis_run::stop_signals::OnTerminate;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{RunKind, RunStatus, Store};
use serde_json::json;

use crate::arguments::{GatewayArguments, NamedUpstream};
use crate::error::Exit;
use crate::execution;
use crate::inference_server::InferenceServer;
use crate::output::Output;
use crate::policy::{self, ReadyPolicy, variable};
use crate::run_folder::RunFolder;
use crate::runs::{Opened, Pinned, RunToOpen, fresh_name, given_name};
use crate::stop_signals::StopSignals;
use crate::workspace::{Workspace, WorkspaceChoice, absolute, current_dir};

/// What calls without a rollout of their own are recorded under.
const ROLLOUT: &str = "gateway";
/// What opens `/v1/policy` and `/metrics`.
pub(crate) const CONTROL_KEY_VARIABLE: &str = "OSMOSIS_CONTROL_KEY";

pub(crate) async fn run(
    arguments: GatewayArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = workspace_or_here(workspace)?;
    let name = match given_name(arguments.name.as_deref())? {
        Some(name) => name,
        None => fresh_name("gateway", &workspace, RunKind::Serving)?,
    };
    let folder = match &arguments.folder {
        Some(path) => RunFolder::unlisted(absolute(path)?),
        None => RunFolder::of(&workspace, RunKind::Serving, &name),
    };
    let ready = open_policy(&arguments, &workspace).await?;
    let named = named_policies(&arguments)?;
    let mut config = json!({ "model": {
        "name": ready.policy.describe().model,
        "identity": ready.identity,
    }});
    for (name, policy) in &named {
        config["policies"][name] = json!({
            "name": policy.policy.describe().model,
            "identity": policy.identity,
        });
    }
    let pinned = Pinned::of_config(&config)?;
    let signals = StopSignals::listen(OnTerminate::StopNow)?;
    let opened = RunToOpen {
        folder: &folder,
        name: &name,
        kind: RunKind::Serving,
        config_text: "",
        pinned: &pinned,
        run_again: &[],
        dataset: None,
    }
    .open()
    .await;
    let Opened {
        store,
        was_finished,
        ..
    } = match opened {
        Ok(opened) => opened,
        Err(error) if error.kind() == RunErrorKind::RunPinned => {
            ready.shut_down();
            return Err(error.hint("choose another `--name`: a run records one model"));
        }
        Err(error) => {
            ready.shut_down();
            return Err(error);
        }
    };
    if was_finished {
        store.set_status(RunStatus::Running).await?;
    }
    let options = GatewayOptions {
        control_key: variable(CONTROL_KEY_VARIABLE).map(Secret::new),
        open_metrics: arguments.open_metrics,
        durability: arguments.durable.into(),
        ..execution::gateway_options(arguments.listen, Sampling::default())
    };
    let served = match execution::start_gateway_with(options, &ready.policy, &store).await {
        Ok(gateway) => match register(&gateway, named) {
            Ok(()) => {
                serve(&gateway, &ready, &folder, &signals, output).await;
                Ok(())
            }
            Err(error) => Err(error),
        },
        Err(error) => Err(error.hint("choose another address with `--listen ADDR`")),
    };
    ready.shut_down();
    close(&store).await?;
    served?;
    Ok(Exit::Ok)
}

/// Says where it is, and waits for a signal.
async fn serve(
    gateway: &Gateway,
    ready: &ReadyPolicy,
    folder: &RunFolder,
    signals: &StopSignals,
    output: &Output,
) {
    let rollout = RolloutId::new(ROLLOUT).unwrap_or_else(|_| RolloutId::of(0, 0));
    let session = gateway.open_standing(rollout);
    let described = ready.policy.describe();
    output.line(format_args!("OPENAI_BASE_URL={}", gateway.url()));
    output.line(format_args!("OPENAI_API_KEY={}", session.key()));
    output.line(format_args!(
        "{CONTROL_KEY_VARIABLE}={}",
        gateway.control_key().expose()
    ));
    output.note(format_args!(
        "{} answers; calls are recorded in {}. Ctrl-C stops.",
        described.model, folder.path
    ));
    output.operation(
        "serving",
        &ServedGateway {
            url: gateway.url().to_owned(),
            api_key: session.key().to_owned(),
            control_key: gateway.control_key().expose().to_owned(),
            model: described.model.clone(),
            output_path: folder.path.clone(),
        },
    );
    signals.stop.drain.cancelled().await;
    output.note("stopping: calls under way get a few seconds");
    gateway.shut_down(SHUTDOWN_GRACE).await;
    let calls = session.close().await.summary;
    output.note(format_args!(
        "{} calls, {} prompt + {} completion tokens",
        calls.model_calls, calls.prompt_tokens, calls.completion_tokens
    ));
}

async fn close(store: &Arc<dyn Store>) -> Result<(), RunError> {
    store.set_status(RunStatus::Finished).await?;
    Ok(store.close().await?)
}

async fn open_policy(
    arguments: &GatewayArguments,
    workspace: &Workspace,
) -> Result<ReadyPolicy, RunError> {
    let chat = chat_choice(arguments)?;
    if let Some(model) = &arguments.model {
        let model: ModelPath =
            model
                .parse()
                .map_err(|error: osmosis_core::config::ModelPathError| {
                    RunError::usage(RunErrorKind::Usage, format!("--model: {error}"))
                        .hint(error.hint())
                })?;
        // What is typed is relative to where it is typed.
        let model = match model {
            ModelPath::Local(path) if !path.as_str().starts_with('~') => {
                ModelPath::Local(absolute(&path)?)
            }
            other => other,
        };
        return policy::open(&model, arguments.seed, workspace, &chat).await;
    }
    let urls = arguments.upstream.iter().map(String::as_str);
    let key = variable("OPENAI_API_KEY");
    let model = &arguments.upstream_model;
    let mut options = upstream_options(arguments, urls, key.as_ref(), model);
    let spoken = arguments.upstream_speaks.iter().copied();
    options.dialects.extend(spoken.map(Dialect::from));
    let server = InferenceServer {
        kind: arguments.engine.into(),
        tokenizer: arguments.tokenizer.clone(),
        logprobs: arguments.engine_logprobs.map(ServerLogprobs::from),
    };
    server.open(options, arguments.seed, &chat)
}

/// What the command line chooses; a path there is relative to where it is typed.
fn chat_choice(arguments: &GatewayArguments) -> Result<ChatChoice, RunError> {
    let template = arguments.chat_template.as_deref();
    let path = template.map(absolute).transpose()?;
    let template = template.zip(path.as_deref());
    ChatChoice::read(template, arguments.tool_format.map(ToolFormat::from))
}

/// The servers of one policy, with the limits of the command line.
fn upstream_options<'a>(
    arguments: &GatewayArguments,
    urls: impl Iterator<Item = &'a str>,
    key: Option<&String>,
    model: &str,
) -> UpstreamOptions {
    let endpoints = urls
        .map(|url| EndpointOptions {
            base_url: url.to_owned(),
            api_key: key.map(Secret::new),
            max_in_flight: arguments.max_in_flight,
        })
        .collect();
    UpstreamOptions {
        queue: QueueLimits {
            length: arguments.max_queue,
            wait: Duration::from_secs(arguments.queue_timeout),
        },
        ..UpstreamOptions::of(endpoints, model)
    }
}

/// The policies of `--policy`, each with all its servers.
fn named_policies(arguments: &GatewayArguments) -> Result<BTreeMap<String, ReadyPolicy>, RunError> {
    let mut by_name: BTreeMap<&str, Vec<&NamedUpstream>> = BTreeMap::new();
    for named in &arguments.policy {
        by_name.entry(&named.name).or_default().push(named);
    }
    by_name
        .into_iter()
        .map(|(name, servers)| {
            let models: BTreeSet<&str> = servers.iter().map(|s| s.model.as_str()).collect();
            if models.len() > 1 {
                let models: Vec<&str> = models.into_iter().collect();
                return Err(RunError::usage(
                    RunErrorKind::Usage,
                    format!(
                        "--policy {name}: its servers are sent different models, `{}`",
                        models.join("`, `")
                    ),
                )
                .hint("servers of one policy serve one model; give the other one another name"));
            }
            let model = models.first().copied().unwrap_or(name);
            let key = variable(&key_variable(name));
            let urls = servers.iter().map(|server| server.url.as_str());
            let options = upstream_options(arguments, urls, key.as_ref(), model);
            Ok((name.to_owned(), policy::upstreams(options)?))
        })
        .collect()
}

fn register(gateway: &Gateway, named: BTreeMap<String, ReadyPolicy>) -> Result<(), RunError> {
    for (name, ready) in named {
        gateway.register(&name, ready.policy).map_err(|error| {
            RunError::usage(RunErrorKind::Usage, format!("--policy: {error}"))
                .maybe_hint(error.hint())
        })?;
    }
    Ok(())
}

/// `JUDGE_2_API_KEY` for `judge-2`.
fn key_variable(name: &str) -> String {
    let capitals: String = name
        .chars()
        .map(|c| match c {
            c if c.is_ascii_alphanumeric() => c.to_ascii_uppercase(),
            _ => '_',
        })
        .collect();
    format!("{capitals}_API_KEY")
}

/// The workspace, or the working directory where there is none: serving needs no rollouts.
pub(crate) fn workspace_or_here(chosen: &WorkspaceChoice) -> Result<Workspace, RunError> {
    match chosen.find(None) {
        Err(error) if chosen.named().is_none() => {
            tracing::debug!(
                message = error.message(),
                "no workspace; the working directory is used"
            );
            Ok(chosen.at(current_dir()?))
        }
        found => found,
    }
}
