//! From `model_path` to something that answers.

use std::sync::Arc;

use camino::Utf8Path;
use osmosis_core::config::ModelPath;
use osmosis_gateway::{Policy, ScriptedPolicy, Secret, UpstreamOptions, UpstreamPolicy};
use serde_json::{Value, json};

use crate::error::{CliError, io};
use crate::workspace::Workspace;

/// A policy that is ready to be asked.
#[derive(Debug)]
pub(crate) struct ReadyPolicy {
    pub(crate) policy: Arc<dyn Policy>,
    /// What a resume must find unchanged.
    pub(crate) identity: Value,
    /// Texts that must never be written down.
    pub(crate) secrets: Vec<String>,
    /// Calls leave this machine and may cost money.
    pub(crate) remote: bool,
}

pub(crate) fn open(model: &ModelPath, workspace: &Workspace) -> Result<ReadyPolicy, CliError> {
    match model {
        ModelPath::Script(path) => script(path, workspace),
        ModelPath::Provider { provider, model } => {
            let base_url = variable(provider.base_url_variable)
                .or_else(|| provider.default_base_url.map(str::to_owned))
                .ok_or_else(|| {
                    unset(
                        provider.base_url_variable,
                        &format!("{}/{model}", provider.name),
                    )
                })?;
            let key = variable(provider.api_key_variable);
            if provider.needs_key && key.is_none() {
                return Err(unset(
                    provider.api_key_variable,
                    &format!("{}/{model}", provider.name),
                ));
            }
            upstream(&base_url, key, model)
        }
        ModelPath::Endpoint(model) => {
            let base_url =
                variable("OPENAI_BASE_URL").ok_or_else(|| unset("OPENAI_BASE_URL", model))?;
            upstream(&base_url, variable("OPENAI_API_KEY"), model)
        }
        ModelPath::Builtin(_) | ModelPath::Run { .. } | ModelPath::Local(_) => {
            Err(CliError::failed(
                "model_unsupported",
                format!("model_path `{model}`: this version has no embedded policy"),
            )
            .hint("use `script:PATH`, `provider/model`, or a model behind OPENAI_BASE_URL"))
        }
    }
}

fn script(name: &Utf8Path, workspace: &Workspace) -> Result<ReadyPolicy, CliError> {
    let path = workspace.root.join(name);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        io(&path, &error)
            .hint("`script:PATH` is relative to the workspace, the folder that holds `rollouts/`")
    })?;
    let policy = ScriptedPolicy::parse(name, &text)
        .map_err(|errors| CliError::failed("script_invalid", errors.to_string()))?;
    Ok(ReadyPolicy {
        policy: Arc::new(policy),
        identity: json!({ "script_sha256": crate::source_digest::text_digest(&text) }),
        secrets: vec![],
        remote: false,
    })
}

fn upstream(base_url: &str, key: Option<String>, model: &str) -> Result<ReadyPolicy, CliError> {
    let secrets = key.iter().cloned().collect();
    let options = UpstreamOptions {
        api_key: key.map(Secret::new),
        ..UpstreamOptions::new(base_url, model)
    };
    let policy = UpstreamPolicy::new(options)
        .map_err(|error| CliError::failed("model_invalid", error.to_string()))?;
    // Not the URL as it was given: it may hold a password.
    let endpoint = policy.describe().endpoint;
    Ok(ReadyPolicy {
        policy: Arc::new(policy),
        identity: json!({ "base_url": endpoint }),
        secrets,
        remote: !is_local(base_url),
    })
}

fn is_local(url: &str) -> bool {
    ["http://127.", "http://localhost", "http://[::1]"]
        .iter()
        .any(|start| url.starts_with(start))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn unset(name: &str, model: &str) -> CliError {
    CliError::failed(
        "model_unconfigured",
        format!("model_path `{model}` needs the environment variable `{name}`"),
    )
    .hint(format!(
        "export {name}=…, or use a scripted policy: model_path = \"script:PATH\""
    ))
}
