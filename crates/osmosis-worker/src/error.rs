use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::frame::Problem;

use crate::Intrusion;
use crate::seal::Unsealed;
use crate::user::UserError;

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("the entrypoint `{entrypoint}` can't be used")]
    LoadFailed {
        entrypoint: String,
        problems: Vec<Problem>,
    },
    #[error("worker process could not be started: {message}")]
    Spawn {
        program: Utf8PathBuf,
        message: String,
    },
    #[error("worker process ended before it was ready: {detail}")]
    DiedAtStart {
        detail: String,
        output: Vec<String>,
        /// A signal that somebody else may have sent ended it.
        killed: bool,
    },
    #[error("worker process was not ready after {} s", limit.as_secs())]
    NotReady {
        limit: Duration,
        output: Vec<String>,
    },
    #[error("worker speaks protocol {found}, this program speaks {expected}")]
    Protocol { found: u32, expected: u32 },
    #[error("the code that workers run is not what it was: {0}")]
    CodeChanged(#[from] Unsealed),
    #[error(transparent)]
    User(#[from] UserError),
    #[error("{message}")]
    Socket { message: String },
    #[error(transparent)]
    Intrusion(#[from] Intrusion),
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerErrorKind {
    /// The user's code is at fault.
    Entrypoint,
    /// The process, its environment or this machine is at fault.
    Process,
    /// The SDK in the environment does not fit this program.
    Version,
    /// Somebody wrote to the files that workers import.
    Code,
}

impl WorkerError {
    pub fn kind(&self) -> WorkerErrorKind {
        match self {
            Self::LoadFailed { .. } => WorkerErrorKind::Entrypoint,
            Self::Spawn { .. }
            | Self::DiedAtStart { .. }
            | Self::NotReady { .. }
            | Self::User(_)
            | Self::Socket { .. }
            | Self::Intrusion(_) => WorkerErrorKind::Process,
            Self::Protocol { .. } => WorkerErrorKind::Version,
            Self::CodeChanged(_) => WorkerErrorKind::Code,
        }
    }

    /// The remedy, when one is known. The problems of `LoadFailed` carry hints of their own.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::LoadFailed { .. } | Self::Socket { .. } | Self::CodeChanged(_) => None,
            Self::Intrusion(_) => Some(INTRUSION_HINT.to_owned()),
            Self::User(error) => Some(error.hint()),
            Self::Spawn { program, .. } => Some(format!(
                "check that `{program}` exists and can be executed, or name another interpreter with `--python`"
            )),
            Self::DiedAtStart { killed: true, .. } => Some(
                "it was started again, and ended again: see what ends processes here, such as a lack of memory"
                    .to_owned(),
            ),
            Self::DiedAtStart { output, .. } => Some(if output.is_empty() {
                "it printed nothing; run it by hand to see why".to_owned()
            } else {
                "its last lines of output say why".to_owned()
            }),
            Self::NotReady { .. } => Some(
                "something at import time takes too long: move slow work out of the module's top level"
                    .to_owned(),
            ),
            Self::Protocol { .. } => Some(
                "another version of the SDK is installed in this environment; remove it, this program brings its own"
                    .to_owned(),
            ),
        }
    }
}

/// What to do about an [`Intrusion`].
pub const INTRUSION_HINT: &str =
    "find out what that process is and what started it; rewards that were recorded before stand";
