//! Asks the model server for one token before any rollout: a bad key, model or address is told once.

use osmosis_core::Redactor;
use osmosis_core::config::ModelPath;
use osmosis_gateway::{Finding, ProbeError, ProbeErrorKind, Probed};
use serde_json::json;

use super::plan::Plan;
use crate::error::CliError;
use crate::output::Output;

/// What came of it, for people and programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    Works,
    Doubtful,
    /// There is no server, or it was not to be asked.
    NotAsked,
}

impl ProbeResult {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Doubtful => "doubtful",
            Self::NotAsked => "not_asked",
        }
    }
}

/// Nothing is asked of a policy in this process: it was opened, so it works.
pub(crate) async fn probe(
    plan: &Plan,
    redactor: &Redactor,
    output: &Output,
) -> Result<ProbeResult, CliError> {
    if plan.ready.is_embedded() {
        return Ok(ProbeResult::NotAsked);
    }
    let mut result = ProbeResult::NotAsked;
    for Probed { endpoint, finding } in plan.ready.policy.probe().await {
        match finding {
            Finding::Works if result == ProbeResult::NotAsked => result = ProbeResult::Works,
            Finding::Works => {}
            Finding::Doubtful { why } => {
                result = ProbeResult::Doubtful;
                output.warn(format_args!(
                    "the model server may not work: {}",
                    redactor.clean(&why)
                ));
            }
            Finding::Broken(error) => {
                return Err(broken(&error, &endpoint, plan, redactor));
            }
        }
    }
    Ok(result)
}

fn broken(error: &ProbeError, endpoint: &str, plan: &Plan, redactor: &Redactor) -> CliError {
    let model = &plan.config.experiment.model_path;
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
    let code = match error.kind() {
        ProbeErrorKind::Address => "model_unreachable",
        ProbeErrorKind::Key => "model_key_refused",
        ProbeErrorKind::Model => "model_not_found",
    };
    CliError::failed(
        code,
        redactor.clean(&format!("model_path `{model}`: {error}")),
    )
    .hint(redactor.clean(&format!(
        "{}{from} (`--no-probe` runs without this check)",
        error.hint()
    )))
    .details(json!({ "endpoint": endpoint, "model_path": model.to_string() }))
}
