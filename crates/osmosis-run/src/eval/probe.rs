//! Asks the model server for one token before any rollout: a bad key, model or address is told once.

use osmosis_core::Redactor;
use osmosis_core::config::ModelPath;
use osmosis_gateway::{Finding, Policy, ProbeError, ProbeErrorKind, Probed};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::notices::Notices;
use crate::reports::ErrorDetails;
use crate::{RunError, RunErrorKind};

/// What came of it, for people and programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProbeResult {
    Works,
    Doubtful,
    /// There is no server, or it was not to be asked.
    NotAsked,
}

/// What a model is to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerRole {
    Policy,
    Judge,
}

impl ServerRole {
    /// What names it in the config.
    fn key(self) -> &'static str {
        match self {
            Self::Policy => "model_path",
            Self::Judge => "judge_model",
        }
    }
}

/// A model behind an endpoint.
#[derive(Debug)]
pub struct Server<'a> {
    pub role: ServerRole,
    pub model: &'a ModelPath,
    pub policy: &'a dyn Policy,
}

pub async fn probe(
    server: &Server<'_>,
    redactor: &Redactor,
    notices: &dyn Notices,
) -> Result<ProbeResult, RunError> {
    let mut result = ProbeResult::NotAsked;
    if server.policy.describe().endpoint.starts_with("http") {
        notices.step(format_args!(
            "Probing {} at {}",
            server.model,
            server.policy.describe().endpoint
        ));
    }
    for Probed { endpoint, finding } in server.policy.probe().await {
        match finding {
            Finding::Works if result == ProbeResult::NotAsked => result = ProbeResult::Works,
            Finding::Works => {}
            Finding::Doubtful { why } => {
                result = ProbeResult::Doubtful;
                notices.warn(format_args!(
                    "the server of {} may not work: {}",
                    server.role.key(),
                    redactor.clean(&why)
                ));
            }
            Finding::Broken(error) => {
                return Err(broken(&error, &endpoint, server, redactor));
            }
        }
    }
    Ok(result)
}

fn broken(
    error: &ProbeError,
    endpoint: &str,
    server: &Server<'_>,
    redactor: &Redactor,
) -> RunError {
    let Server { role, model, .. } = server;
    let variables = match model {
        ModelPath::Provider { provider, .. } => {
            Some((provider.base_url_variable, provider.api_key_variable))
        }
        ModelPath::Endpoint(_) => Some(("OPENAI_BASE_URL", "OPENAI_API_KEY")),
        ModelPath::Builtin(_)
        | ModelPath::Script(_)
        | ModelPath::Run { .. }
        | ModelPath::Local(_) => None,
    };
    let from = match (error.kind(), variables) {
        (ProbeErrorKind::Address, Some((base_url, _))) => format!("; it is read from `{base_url}`"),
        (ProbeErrorKind::Key, Some((_, key))) => format!("; it is read from `{key}`"),
        (ProbeErrorKind::Model, _) | (_, None) => String::new(),
    };
    let failed = match error.kind() {
        ProbeErrorKind::Address => RunErrorKind::ModelUnreachable,
        ProbeErrorKind::Key => RunErrorKind::ModelKeyRefused,
        ProbeErrorKind::Model => RunErrorKind::ModelNotFound,
    };
    let (endpoint, model_path) = (endpoint.to_owned(), model.to_string());
    let details = match role {
        ServerRole::Policy => ErrorDetails::Model {
            endpoint,
            model_path,
        },
        ServerRole::Judge => ErrorDetails::Judge {
            endpoint,
            judge_model: model_path,
        },
    };
    let key = role.key();
    RunError::failed(failed, redactor.clean(&format!("{key} `{model}`: {error}")))
        .hint(redactor.clean(&format!(
            "{}{from} (`--no-probe` runs without this check)",
            error.hint()
        )))
        .details(details)
}
