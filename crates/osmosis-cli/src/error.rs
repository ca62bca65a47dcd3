//! The exit codes, and which of them an error ends with.

use std::process::ExitCode;

use osmosis_run::{RunError, RunErrorKind};

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Ok,
    Failed,
    Usage,
    /// Infrastructure failures or unrun rows remain, or a training made no update.
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

impl From<&RunError> for Exit {
    fn from(error: &RunError) -> Self {
        match error.kind() {
            RunErrorKind::Interrupted => Self::Interrupted,
            _ if error.is_usage() => Self::Usage,
            _ => Self::Failed,
        }
    }
}
