//! What the user is told when something goes wrong, and the exit code that goes with it.

use std::process::ExitCode;

use osmosis_core::config::ConfigErrors;
use osmosis_engine::EngineError;
use osmosis_store::StoreError;
use osmosis_train::TrainError;
use osmosis_worker::WorkerError;
use osmosis_worker::environment::EnvironmentError;
use serde_json::{Value, json};

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok,
    Failed,
    Usage,
    /// Infrastructure failures or unrun rows remain.
    Incomplete,
    /// The run is complete and below a `--fail-under`.
    Gate,
    Interrupted,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Incomplete => 3,
            Self::Gate => 4,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// An error for people (message, hint) and programs (code, details).
#[derive(Debug, Clone)]
pub(crate) struct CliError {
    /// A stable name.
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) details: Box<Value>,
    pub(crate) exit: Exit,
}

impl CliError {
    pub(crate) fn failed(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            details: Box::new(json!({})),
            exit: Exit::Failed,
        }
    }

    pub(crate) fn usage(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Usage,
            ..Self::failed(code, message)
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    pub(crate) fn details(mut self, details: Value) -> Self {
        self.details = Box::new(details);
        self
    }
}

/// An I/O error with the path it happened at.
pub(crate) fn io(path: &camino::Utf8Path, error: &std::io::Error) -> CliError {
    let hint = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            Some("check the permissions of the folder".to_owned())
        }
        std::io::ErrorKind::StorageFull => Some("free some disk space".to_owned()),
        _ => None,
    };
    CliError::failed("io", format!("`{path}`: {error}")).maybe_hint(hint)
}

impl From<ConfigErrors> for CliError {
    fn from(errors: ConfigErrors) -> Self {
        let problems: Vec<Value> = errors
            .0
            .iter()
            .map(|error| json!({"message": error.to_string(), "hint": error.hint()}))
            .collect();
        Self::failed("config_invalid", errors.render().trim_end())
            .details(json!({ "problems": problems }))
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let hint = error.hint();
        let code = match error {
            StoreError::Damaged { .. } => "run_damaged",
            _ => "store",
        };
        Self::failed(code, error.to_string()).maybe_hint(hint)
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        let hint = error.hint();
        Self::failed("engine", error.to_string()).maybe_hint(hint)
    }
}

impl From<TrainError> for CliError {
    fn from(error: TrainError) -> Self {
        let hint = error.hint();
        Self::failed("training", error.to_string()).maybe_hint(hint)
    }
}

impl From<WorkerError> for CliError {
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
                let details = json!({ "problems": problems });
                Self::failed("entrypoint_invalid", message).details(details)
            }
            WorkerError::DiedAtStart { output, .. } | WorkerError::NotReady { output, .. } => {
                let mut message = headline;
                for line in output {
                    message.push_str("\n    ");
                    message.push_str(&line);
                }
                Self::failed("worker_start", message)
            }
            WorkerError::Spawn { program, .. } => Self::failed("worker_start", headline)
                .hint(format!("is `{program}` a program that can be run?")),
            WorkerError::Protocol { .. } => Self::failed("worker_protocol", headline).hint(
                "the rollout's environment holds another version of this SDK; remove its `.venv`",
            ),
            WorkerError::Socket { .. } => Self::failed("worker_socket", headline),
        }
    }
}

impl From<EnvironmentError> for CliError {
    fn from(error: EnvironmentError) -> Self {
        let hint = error.hint();
        Self::failed("environment", error.to_string()).maybe_hint(hint)
    }
}
