//! `osmosis gateway`: a model behind an OpenAI-compatible address, every call recorded.

use std::sync::Arc;

use camino::Utf8Path;
use osmosis_core::RolloutId;
use osmosis_core::config::ModelPath;
use osmosis_gateway::{Gateway, Sampling};
use osmosis_store::{RunKind, RunStatus, Store};
use serde_json::json;

use crate::arguments::GatewayArguments;
use crate::error::{CliError, Exit};
use crate::execution::{self, SHUTDOWN_GRACE};
use crate::output::Output;
use crate::policy::{self, ReadyPolicy};
use crate::run_folder::RunFolder;
use crate::runs::{Opened, Pinned, RunToOpen, fresh_name, given_name};
use crate::stop_signals::StopSignals;
use crate::workspace::{Workspace, absolute, current_dir};

/// What calls without a rollout of their own are recorded under.
const ROLLOUT: &str = "gateway";

pub(crate) async fn run(
    arguments: GatewayArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, CliError> {
    let workspace = workspace_or_here(workspace)?;
    let name = match given_name(arguments.name.as_deref())? {
        Some(name) => name,
        None => fresh_name("gateway", &workspace, RunKind::Serving)?,
    };
    let folder = match &arguments.store {
        Some(path) => RunFolder {
            path: absolute(path)?,
        },
        None => RunFolder::of(&workspace, RunKind::Serving, &name),
    };
    let ready = open_policy(&arguments, &workspace)?;
    let pinned = Pinned::of_config(&json!({ "model": {
        "name": ready.policy.describe().model,
        "identity": ready.identity,
    }}))?;
    let signals = StopSignals::listen()?;
    let opened = RunToOpen {
        folder: &folder,
        name: &name,
        kind: RunKind::Serving,
        config_text: "",
        pinned: &pinned,
        run_again: &[],
    }
    .open()
    .await;
    let Opened { store, .. } = match opened {
        Ok(opened) => opened,
        Err(error) if error.code == "run_pinned" => {
            ready.shut_down();
            return Err(error.hint("choose another `--name`: a run records one model"));
        }
        Err(error) => {
            ready.shut_down();
            return Err(error);
        }
    };
    let started =
        execution::start_gateway(arguments.listen, Sampling::default(), &ready.policy, &store)
            .await;
    let served = match started {
        Ok(gateway) => {
            serve(&gateway, &ready, &folder, &signals, output).await;
            Ok(())
        }
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
    let door = gateway.open_standing(rollout);
    let described = ready.policy.describe();
    output.line(format_args!("OPENAI_BASE_URL={}", gateway.url()));
    output.line(format_args!("OPENAI_API_KEY={}", door.key()));
    output.note(format_args!(
        "{} answers; calls are recorded in {}. Ctrl-C stops.",
        described.model, folder.path
    ));
    output.operation(
        "serving",
        &json!({
            "url": gateway.url(),
            "api_key": door.key(),
            "model": described.model,
            "output_path": folder.path,
        }),
    );
    signals.drain.cancelled().await;
    output.note("stopping: calls under way get a few seconds");
    gateway.shut_down(SHUTDOWN_GRACE).await;
    let calls = door.close().await.summary;
    output.note(format_args!(
        "{} calls, {} prompt + {} completion tokens",
        calls.model_calls, calls.prompt_tokens, calls.completion_tokens
    ));
}

async fn close(store: &Arc<dyn Store>) -> Result<(), CliError> {
    store.set_status(RunStatus::Finished).await?;
    Ok(store.close().await?)
}

fn open_policy(
    arguments: &GatewayArguments,
    workspace: &Workspace,
) -> Result<ReadyPolicy, CliError> {
    if let Some(model) = &arguments.model {
        let model: ModelPath =
            model
                .parse()
                .map_err(|error: osmosis_core::config::ModelPathError| {
                    CliError::usage("usage", format!("--model: {error}")).hint(error.hint())
                })?;
        // What is typed is relative to where it is typed.
        let model = match model {
            ModelPath::Local(path) if !path.as_str().starts_with('~') => {
                ModelPath::Local(absolute(&path)?)
            }
            other => other,
        };
        return policy::open(&model, arguments.seed, workspace);
    }
    match arguments.upstream.as_slice() {
        [url] => {
            let key = std::env::var("OPENAI_API_KEY")
                .ok()
                .filter(|key| !key.is_empty());
            policy::upstream(url, key, &arguments.upstream_model)
        }
        several => Err(CliError::usage(
            "usage",
            format!(
                "{} upstreams were given, and this version routes to one",
                several.len()
            ),
        )
        .hint("give `--upstream` once; run one gateway for each of the others")),
    }
}

/// The workspace, or the working directory where there is none: serving needs no rollouts.
pub(crate) fn workspace_or_here(named: Option<&Utf8Path>) -> Result<Workspace, CliError> {
    match Workspace::find(named, None) {
        Err(error) if named.is_none() => {
            tracing::debug!(
                message = error.message,
                "no workspace; the working directory is used"
            );
            Ok(Workspace {
                root: current_dir()?,
            })
        }
        found => found,
    }
}
