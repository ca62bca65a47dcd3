//! Why something about a run could not be done: a kind for programs, a message and a hint for people.

use osmosis_core::config::ConfigErrors;
use osmosis_engine::{EngineError, RunFaultKind};
use osmosis_store::{StoreError, StoreErrorKind};
use osmosis_train::TrainError;
use osmosis_worker::environment::EnvironmentError;
use osmosis_worker::{INTRUSION_HINT, WorkerError};
use serde_json::Value;

use crate::RunErrorKind;
use crate::reports::{ConfigProblem, ErrorDetails};

/// An error for people (message, hint) and programs (kind, details).
#[derive(Debug, Clone)]
pub struct RunError {
    kind: RunErrorKind,
    message: String,
    hint: Option<String>,
    details: Option<Box<ErrorDetails>>,
    is_usage: bool,
}

impl RunError {
    pub fn failed(kind: RunErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
            details: None,
            is_usage: false,
        }
    }

    /// What was asked for makes no sense, whatever the state of the world.
    pub fn usage(kind: RunErrorKind, message: impl Into<String>) -> Self {
        Self {
            is_usage: true,
            ..Self::failed(kind, message)
        }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    #[must_use]
    pub fn details(mut self, details: ErrorDetails) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// The same, as the fault of whoever asked.
    #[must_use]
    pub fn into_usage(self) -> Self {
        Self {
            is_usage: true,
            ..self
        }
    }

    /// The same with another message.
    #[must_use]
    pub fn with_message(self, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            ..self
        }
    }

    pub fn kind(&self) -> RunErrorKind {
        self.kind
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// As they are shown with `--json`: an object, which is empty when there are none.
    pub fn detail_values(&self) -> Value {
        let none = || Value::Object(serde_json::Map::new());
        let details = self.details.as_ref();
        details.map_or_else(none, |details| {
            serde_json::to_value(details).unwrap_or_else(|_| none())
        })
    }

    pub fn is_usage(&self) -> bool {
        self.is_usage
    }
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RunError {}

/// An I/O error with the path it happened at.
pub fn io_error(path: &camino::Utf8Path, error: &std::io::Error) -> RunError {
    let hint = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            Some("check the permissions of the folder".to_owned())
        }
        std::io::ErrorKind::StorageFull => Some("free some disk space".to_owned()),
        _ => None,
    };
    RunError::failed(RunErrorKind::Io, format!("`{path}`: {error}")).maybe_hint(hint)
}

impl From<ConfigErrors> for RunError {
    fn from(errors: ConfigErrors) -> Self {
        let problems = errors.0.iter().map(|error| ConfigProblem {
            message: error.to_string(),
            hint: error.hint(),
        });
        let problems = problems.collect();
        Self::failed(RunErrorKind::ConfigInvalid, errors.render().trim_end())
            .details(ErrorDetails::Config { problems })
    }
}

impl From<StoreError> for RunError {
    fn from(error: StoreError) -> Self {
        let hint = error.hint();
        let kind = match (error.kind(), &error) {
            (_, StoreError::Damaged { .. }) => RunErrorKind::RunDamaged,
            (StoreErrorKind::Altered, _) => RunErrorKind::RunAltered,
            (StoreErrorKind::Held, _) => RunErrorKind::RunHeld,
            (StoreErrorKind::Denied, _) => RunErrorKind::StoreDenied,
            (StoreErrorKind::Unreachable, _) => RunErrorKind::StoreUnreachable,
            (
                StoreErrorKind::AlreadyExists
                | StoreErrorKind::NotFound
                | StoreErrorKind::InvalidUrl
                | StoreErrorKind::Closed
                | StoreErrorKind::DiskFull
                | StoreErrorKind::Unreadable,
                _,
            ) => RunErrorKind::Store,
        };
        Self::failed(kind, error.to_string()).maybe_hint(hint)
    }
}

impl From<EngineError> for RunError {
    fn from(error: EngineError) -> Self {
        let hint = error.hint();
        Self::failed(engine_error_kind(&error), error.to_string()).maybe_hint(hint)
    }
}

fn engine_error_kind(error: &EngineError) -> RunErrorKind {
    match error {
        EngineError::PolicyUnusable(fault) => match fault.kind {
            RunFaultKind::ToolsIgnored => RunErrorKind::ToolsIgnored,
            RunFaultKind::OutOfDescriptors => RunErrorKind::Gateway,
        },
        _ => RunErrorKind::Engine,
    }
}

impl From<TrainError> for RunError {
    fn from(error: TrainError) -> Self {
        let hint = error.hint();
        let kind = match &error {
            TrainError::Engine(error @ EngineError::PolicyUnusable(_)) => engine_error_kind(error),
            _ => RunErrorKind::Training,
        };
        Self::failed(kind, error.to_string()).maybe_hint(hint)
    }
}

impl From<WorkerError> for RunError {
    fn from(error: WorkerError) -> Self {
        let headline = error.to_string();
        match error {
            WorkerError::LoadFailed { problems, .. } => {
                let mut message = headline;
                for problem in &problems {
                    message.push_str("\n\n  ");
                    message.push_str(&problem.message.replace('\n', "\n  "));
                    if let Some(traceback) = &problem.traceback {
                        for line in traceback.trim_end().lines() {
                            message.push_str("\n    ");
                            message.push_str(line);
                        }
                    }
                    if let Some(hint) = &problem.hint {
                        message.push_str("\n  hint: ");
                        message.push_str(hint);
                    }
                }
                let details = ErrorDetails::Entrypoint { problems };
                Self::failed(RunErrorKind::EntrypointInvalid, message).details(details)
            }
            WorkerError::DiedAtStart { output, .. } | WorkerError::NotReady { output, .. } => {
                let mut message = headline;
                for line in output {
                    message.push_str("\n    ");
                    message.push_str(&line);
                }
                Self::failed(RunErrorKind::WorkerStart, message)
            }
            WorkerError::Spawn { program, .. } => Self::failed(RunErrorKind::WorkerStart, headline)
                .hint(format!("is `{program}` a program that can be run?")),
            WorkerError::Protocol { .. } => Self::failed(RunErrorKind::WorkerProtocol, headline).hint(
                "the rollout's environment holds another version of this SDK; remove its `.venv`",
            ),
            WorkerError::User(error) => {
                Self::failed(RunErrorKind::WorkerStart, headline).hint(error.hint())
            }
            WorkerError::Socket { .. } => Self::failed(RunErrorKind::WorkerSocket, headline),
            WorkerError::CodeChanged(changed) => changed.into(),
            WorkerError::Intrusion(_) => {
                Self::failed(RunErrorKind::WorkerIntrusion, headline).hint(INTRUSION_HINT)
            }
        }
    }
}

impl From<EnvironmentError> for RunError {
    fn from(error: EnvironmentError) -> Self {
        let hint = error.hint();
        Self::failed(RunErrorKind::Environment, error.to_string()).maybe_hint(hint)
    }
}
