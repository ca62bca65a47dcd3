//! What `osmosis node` did.

use osmosis_engine::NodeEnd;
use osmosis_store::{Holder, Member, MemberKind, RunKey, Store};
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

/// A node of a run, as `eval info` shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeState {
    pub host: String,
    pub pid: u32,
    pub state: NodeStateWord,
    /// Rollouts that it holds.
    pub under_way: u64,
    /// Rollouts that it has finished.
    pub finished: u64,
    /// Seconds since it was last heard of.
    pub seen_s: f64,
}

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeStateWord {
    Working,
    /// It begins nothing new.
    Draining,
    /// It has not been heard of for half a lease; what it holds goes to others when its leases run out.
    Silent,
}

impl NodeStateWord {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Draining => "draining",
            Self::Silent => "silent",
        }
    }
}

impl NodeState {
    /// The nodes of a run; none where it has none, or its store knows no nodes.
    pub async fn all(store: &dyn Store) -> Vec<Self> {
        let Some(shared) = store.shared() else {
            return vec![];
        };
        // Tables of an earlier version have none.
        let members = shared.members().await.unwrap_or_default();
        let nodes = members
            .into_iter()
            .filter(|member| member.kind == MemberKind::Node);
        nodes.map(Self::of).collect()
    }

    fn of(member: Member) -> Self {
        let holder = member.holder.unwrap_or_else(Holder::unknown);
        Self {
            host: holder.host,
            pid: holder.pid,
            state: match (member.alive, member.draining) {
                (false, _) => NodeStateWord::Silent,
                (true, true) => NodeStateWord::Draining,
                (true, false) => NodeStateWord::Working,
            },
            under_way: member.leases,
            finished: member.done,
            seen_s: (member.seen_ago.as_secs_f64() * 10.0).round() / 10.0,
        }
    }
}
