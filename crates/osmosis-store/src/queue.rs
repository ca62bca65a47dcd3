//! The leased queue of a run's rollouts: who may run what, and whose result counts.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{Attempt, OutcomeKind, RolloutId};

use crate::{Claim, Completion, CompletionReceipt, NewRollout, NewRow, StoreError};

/// Which leases [`Queue::recover`] puts back into the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery<'a> {
    /// Those of this owner, and of nobody else: an engine that starts again under its name, or that gives up all
    /// it holds. Rollouts that are held back stay so.
    OwnedBy(&'a str),
    /// All of them, and whatever is held back. For a process that has just taken exclusive hold of the run: whoever
    /// held the leases is dead or fenced off, and nobody knows the name it had. A backend that several processes
    /// write to at once must refuse it to a process that doesn't hold the run alone.
    AfterTakeover,
}

/// The rollouts of one run as a leased queue.
///
/// A rollout is *queued*, *leased* (claimed, or held back) or *finished*. Each claim is a new attempt; a result is
/// accepted from the current attempt alone, once.
///
/// Writes are acknowledged when they would survive a power cut.
#[async_trait]
pub trait Queue: Send + Sync + std::fmt::Debug {
    /// Adds dataset rows and their rollouts to the queue, all or nothing. Rows and rollouts that are
    /// there already are left as they are, so that planning can be repeated after a crash.
    async fn enqueue(&self, rows: Vec<NewRow>, rollouts: Vec<NewRollout>)
    -> Result<(), StoreError>;

    /// Adds a request of a rollout server to the queue, with what it needs after a restart, all or nothing.
    async fn enqueue_request(
        &self,
        row: NewRow,
        rollout: NewRollout,
        sealed: Bytes,
    ) -> Result<(), StoreError>;

    /// Takes those of the rollouts that are queued out of reach of `claim`, until [`Queue::let_go`] or
    /// a recovery [`AfterTakeover`](Recovery::AfterTakeover).
    async fn hold_back(&self, rollouts: &[RolloutId]) -> Result<(), StoreError>;

    /// Puts a rollout that was held back into the queue again.
    async fn let_go(&self, rollout: &RolloutId) -> Result<(), StoreError>;

    /// Hands out up to `n` queued rollouts (or ones whose lease has run out), in order of row and run
    /// index, each with a new attempt number, for `lease`.
    async fn claim(&self, owner: &str, n: usize, lease: Duration)
    -> Result<Vec<Claim>, StoreError>;

    /// Hands out those of the rollouts that are queued, as `claim` does.
    async fn claim_these(
        &self,
        owner: &str,
        rollouts: &[RolloutId],
        lease: Duration,
    ) -> Result<Vec<Claim>, StoreError>;

    /// Extends leases. Returns those that are no longer held with that attempt.
    async fn heartbeat(
        &self,
        held: &[(RolloutId, Attempt)],
        lease: Duration,
    ) -> Result<Vec<(RolloutId, Attempt)>, StoreError>;

    /// Records the result of an attempt with its samples, once. A stale attempt changes nothing and
    /// is told so.
    async fn complete(&self, completion: Completion) -> Result<CompletionReceipt, StoreError>;

    /// Puts a claimed rollout back into the queue. `lost` counts one lost worker, and `failed` one
    /// infrastructure failure; both counts stay until it has a result. A stale attempt changes nothing.
    async fn release(
        &self,
        rollout: &RolloutId,
        attempt: Attempt,
        lost: bool,
        failed: bool,
    ) -> Result<(), StoreError>;

    /// Gives those of the rollouts that are queued the outcome `Cancelled`, as an attempt that ended at once, and
    /// returns them in the order asked for. Leased (also held back) and finished rollouts are not touched, ids that
    /// are not in the run are ignored. The controller of a run cancels what its nodes hold, too: they lose their leases.
    async fn cancel(&self, rollouts: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError>;

    /// Puts leased rollouts back into the queue, and returns how many. No loss and no failure is counted, and a
    /// result that comes from an attempt that was recovered is fenced.
    async fn recover(&self, which: Recovery<'_>) -> Result<u64, StoreError>;

    /// Puts finished rollouts of these kinds back into the queue, dropping their samples and
    /// forgetting failures and lost workers. Attempts go on counting, and recorded calls stay.
    async fn requeue(&self, kinds: &[OutcomeKind]) -> Result<u64, StoreError>;

    /// Does the same with those of the rollouts that are finished, whatever their outcome, and returns them in the
    /// order asked for.
    async fn requeue_these(&self, rollouts: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError>;
}
