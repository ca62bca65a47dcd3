use std::collections::BTreeMap;

use serde::Serialize;

use super::group::{GroupId, MemberId};
use super::plan::{GroupCount, RolloutCount};

/// What the driver is to do, or to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// End this rollout, down to its model call. Its slot is free when its end is reported.
    Cancel(MemberId),
    /// One more rollout of this group is to start; `admit` names it when there is a slot.
    TopUp(GroupId),
    /// The group is complete. When its rewards don't differ, tell [`Admission::skip`](super::Admission::skip).
    Ready(GroupId),
    /// Nothing comes of this group.
    Discard {
        group: GroupId,
        reason: DiscardReason,
    },
}

/// Why a group is not trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiscardReason {
    /// Too few of its rollouts were scored, or could still be.
    Incomplete,
    /// Too many of its tokens are too old.
    Stale,
    /// Its rewards don't differ.
    NoVariance,
}

/// What became of the place of a skipped group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It stays in its batch and adds nothing: the synchronous pace.
    Kept,
    /// Another group is admitted for it: the asynchronous pace.
    Freed,
}

/// How many are where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Started and not ended, those told to cancel too.
    pub running: RolloutCount,
    pub open: GroupCount,
    pub ready: GroupCount,
    pub taken: GroupCount,
    /// Those of all steps, of earlier processes too.
    pub trained: GroupCount,
    /// Of this process.
    pub discarded: BTreeMap<DiscardReason, u64>,
}

impl Counts {
    /// Ready, taken or trained.
    pub fn accepted(&self) -> GroupCount {
        GroupCount(self.ready.0 + self.taken.0 + self.trained.0)
    }
}

/// What has to happen next for the run to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// Nothing: all steps are trained.
    End,
    /// The trainer: it has a batch.
    Training,
    /// The trainer: there is a batch for it.
    Taking,
    /// Rollouts: some may start.
    Starting,
    /// Rollouts: they run, and no more may start.
    Rollouts,
    /// The trainer: it trained on all that may come of this version, and has to announce the next one.
    Version,
}

/// A report that contradicts what was reported before. Nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    #[error("rollout `{0}` is reported as finished, and it is not running")]
    NotRunning(MemberId),
    #[error("group `{0}` is to be skipped, and it is not ready")]
    NotReady(GroupId),
    #[error("a batch is reported as trained, and none was taken")]
    NothingTaken,
    #[error("version `{announced}` is announced after version `{current}`")]
    OlderVersion { current: u64, announced: u64 },
}
