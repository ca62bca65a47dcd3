//! What `osmosis node` did.

use osmosis_engine::NodeEnd;
use osmosis_store::RunKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RunKindWord;

/// The `resource` of `osmosis node --json`. The status of the operation is `completed`, `run_over` or `drained`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeReport {
    pub run_name: String,
    pub kind: RunKindWord,
    pub end: NodeEndWord,
    /// Rollouts that this node finished.
    pub finished: u64,
}

/// Why a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeEndWord {
    /// Nothing is left to be run.
    Completed,
    /// The run is finished, or was stopped.
    RunOver,
    /// The node was asked to leave.
    Drained,
}

impl NodeEndWord {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::RunOver => "run_over",
            Self::Drained => "drained",
        }
    }
}

impl NodeReport {
    pub(crate) fn new(run: &RunKey, end: NodeEnd, finished: u64) -> Self {
        Self {
            run_name: run.name.to_string(),
            kind: run.kind.into(),
            end: match end {
                NodeEnd::NothingLeft => NodeEndWord::Completed,
                NodeEnd::RunOver => NodeEndWord::RunOver,
                NodeEnd::Stopped => NodeEndWord::Drained,
            },
            finished,
        }
    }
}

/// How more machines work on a run: what `eval submit --json` prints on standard error when it takes nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodesWelcome {
    pub run_name: String,
    pub kind: RunKindWord,
    /// The database, without user and password.
    pub store: String,
    /// What `--join` takes; left out where no role could be made. Whoever has it can work on the run: keep it secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<String>,
    /// The whole command.
    pub command: String,
}
