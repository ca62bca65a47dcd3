//! A run that several processes work on: its controller, and nodes that claim beside it.
//!
//! What a node needs to join is kept with the run: the *package* (files by digest, and a manifest that whoever wrote it
//! understands), where the controller can be reached, and whether the run is asked to stop.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::JsonText;

use crate::{Holder, QueueCounts, RolloutRecord, RunStatus, StoreError};

/// How a run is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopRequest {
    /// What is under way is finished.
    Drain,
    /// What is under way is given up, and waits in the queue again.
    Now,
}

impl StopRequest {
    /// The word in a database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Now => "now",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Drain, Self::Now]
            .into_iter()
            .find(|request| request.as_str() == text)
    }
}

/// What a process does for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberKind {
    /// It holds the run: its record, its rows, its end.
    Controller,
    /// It claims from the run beside others.
    Node,
}

impl MemberKind {
    /// The word in a database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Node => "node",
        }
    }
}

/// A process that works on a run, as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub id: i64,
    pub kind: MemberKind,
    /// Whether it is the one that asks.
    pub is_self: bool,
    /// `None` when what it left about itself can't be read.
    pub holder: Option<Holder>,
    /// Since it was last heard of.
    pub seen_ago: Duration,
    /// It was heard of not long ago, so that its leases are worth waiting for.
    pub alive: bool,
    /// Leases that it holds and that have not run out.
    pub leases: u64,
    /// Rollouts that it has finished.
    pub done: u64,
    /// It begins nothing new.
    pub draining: bool,
}

/// Where a run stands, as far as somebody who works on it has to know. Costs little, however many rollouts there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunStanding {
    /// `None` when the run was never begun.
    pub status: Option<RunStatus>,
    pub stop_asked: Option<StopRequest>,
    /// Something can be claimed now: it is queued, or its lease has run out.
    pub claimable: bool,
    /// Somebody holds a lease, which may have run out.
    pub leased: bool,
}

impl RunStanding {
    /// Nothing is queued or leased.
    pub fn is_idle(&self) -> bool {
        !self.claimable && !self.leased
    }
}

/// A file of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageFile {
    /// SHA-256, in hexadecimal digits.
    pub sha256: String,
    pub content: Bytes,
}

/// How far somebody has read who is told of finished rollouts; made by [`SharedRun::watch_finished`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FinishedCursor {
    /// Whatever finished before this, in the backend's own count, was reported.
    pub horizon: i64,
    /// What was reported of what comes after it.
    pub reported: Vec<(String, i64)>,
}

/// What a role of one run logs in with.
#[derive(Clone, PartialEq, Eq)]
pub struct RunCredentials {
    pub role: String,
    /// Never shown.
    pub password: String,
}

impl fmt::Debug for RunCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCredentials")
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// A run that is open, as one that several processes work on. What the controller alone may do is refused to others.
#[async_trait]
pub trait SharedRun: Send + Sync + fmt::Debug {
    /// Puts the run's package in the place of an earlier one. For the controller.
    async fn put_package(
        &self,
        manifest: JsonText,
        files: Vec<PackageFile>,
    ) -> Result<(), StoreError>;

    /// The manifest of the run's package; `None` while there is none.
    async fn package(&self) -> Result<Option<JsonText>, StoreError>;

    /// A file of the package; `None` when there is none of this digest. The content is not compared with the digest.
    async fn package_file(&self, sha256: &str) -> Result<Option<Bytes>, StoreError>;

    /// Says where nodes reach the controller, and the SHA-256 of the key that opens it to them. For the controller.
    async fn set_controller(
        &self,
        url: Option<&str>,
        key_sha256: Option<&str>,
    ) -> Result<(), StoreError>;

    /// Where nodes reach the controller; `None` while there is no such place.
    async fn controller_url(&self) -> Result<Option<String>, StoreError>;

    /// Of the key that opens the controller to nodes.
    async fn node_key_sha256(&self) -> Result<Option<String>, StoreError>;

    /// Asks all who work on the run to stop, or (`None`) takes that back. For whoever may write to the run's record,
    /// also while another process controls it.
    async fn ask_to_stop(&self, request: Option<StopRequest>) -> Result<(), StoreError>;

    /// Where the run stands.
    async fn standing(&self) -> Result<RunStanding, StoreError>;

    /// The processes that work on the run, in the order they joined.
    async fn members(&self) -> Result<Vec<Member>, StoreError>;

    /// Says that this process begins nothing new.
    async fn set_draining(&self) -> Result<(), StoreError>;

    /// From here on [`Self::finished_since`] reports, and how the queue stands at this very moment.
    async fn watch_finished(&self) -> Result<(FinishedCursor, QueueCounts), StoreError>;

    /// The rollouts that other processes have finished since the cursor, each once, and the cursor after them.
    async fn finished_since(
        &self,
        cursor: FinishedCursor,
    ) -> Result<(Vec<RolloutRecord>, FinishedCursor), StoreError>;
}
