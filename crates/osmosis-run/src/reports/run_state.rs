//! Where a run stands, as people call it.

use std::fmt;

use osmosis_store::RunStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A run whose record says that it is running, but which no process holds, was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Running,
    Finished,
    Interrupted,
}

impl RunState {
    /// `held`: whether a living process writes to the run.
    pub fn of(status: RunStatus, held: bool) -> Self {
        match (status, held) {
            (_, true) => Self::Running,
            (RunStatus::Finished, false) => Self::Finished,
            (RunStatus::Interrupted | RunStatus::Running, false) => Self::Interrupted,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Interrupted => "interrupted",
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
