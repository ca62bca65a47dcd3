//! The durable truth of a run: its rows, its leased queue of rollouts, their samples and model calls.
//!
//! The API alone: the trait [`Store`], its records, errors and reports, and the conformance suite that every backend
//! passes (feature `conformance`). It contains no database, and knows nothing of HTTP or Python. The backend in
//! SQLite is `osmosis-store-sqlite`.
//!
//! ```
//! # async fn example(store: &dyn osmosis_store::Store) -> Result<(), osmosis_store::StoreError> {
//! use std::time::Duration;
//!
//! store.recover().await?;
//! for claim in store.claim("engine", 8, Duration::from_secs(60)).await? {
//!     println!("{} is ours, attempt {}", claim.id, claim.attempt);
//! }
//! store.close().await
//! # }
//! ```

mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod holder;
mod integrity;
mod model;
mod pages;
mod pieces;
mod requests;

pub use clock::{Clock, SystemClock, whole_ms};
pub use error::{StoreError, StoreErrorKind};
pub use holder::Holder;
pub use integrity::{
    CheckedCounts, Damage, LostRecord, SalvageReport, VerifyProgress, VerifyReport,
};
pub use model::{
    BatchRecord, CallBody, CallPurpose, CallQuery, CallRecord, CallSummary, Claim, Completion,
    CompletionReceipt, JudgeSummary, NewCall, NewRollout, NewRow, OutcomeTally, QueueCounts,
    RolloutPage, RolloutQuery, RolloutRecord, RowRecord, RunKind, RunRecord, RunStatus, StepRecord,
};
pub use pages::RolloutPages;
pub use pieces::Pieces;
pub use requests::{RequestNote, RequestRecord};

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{Attempt, RolloutId, Sample, SampleId};

/// What is shown calls, on a thread that may block.
pub type CallVisitor = Box<dyn FnMut(&CallRecord, &CallBody) + Send>;

/// Everything durable about one run.
///
/// Writes are acknowledged when they would survive a power cut, except [`Store::record_call`],
/// which is acknowledged when it is queued: it becomes durable no later than the next
/// acknowledged write.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Writes the run's own record; a run has exactly one. Creating it twice is `AlreadyExists`.
    async fn create_run(&self, run: RunRecord) -> Result<(), StoreError>;

    /// The run's record, `None` before `create_run`.
    async fn run(&self) -> Result<Option<RunRecord>, StoreError>;

    /// Sets status, and the finish time when the status is final.
    async fn set_status(&self, status: RunStatus) -> Result<(), StoreError>;

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

    /// What is kept of a request; `None` when it was never one.
    async fn request(&self, rollout: &RolloutId) -> Result<Option<RequestRecord>, StoreError>;

    /// The requests that are not settled, in the order they came.
    async fn unsettled_requests(&self) -> Result<Vec<RequestRecord>, StoreError>;

    /// Records that something happened to a request.
    async fn note_request(&self, rollout: &RolloutId, note: RequestNote) -> Result<(), StoreError>;

    /// Takes those of the rollouts that are queued out of reach of `claim`, until [`Store::let_go`] or
    /// [`Store::recover`].
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

    /// Puts everything that is leased back into the queue. For the one process that has just taken
    /// exclusive hold of the run: whoever held the leases is gone.
    async fn recover(&self) -> Result<u64, StoreError>;

    /// Puts finished rollouts of these kinds back into the queue, dropping their samples and
    /// forgetting failures and lost workers. Attempts go on counting, and recorded calls stay.
    async fn requeue(&self, kinds: &[osmosis_core::OutcomeKind]) -> Result<u64, StoreError>;

    /// Queues a model call for recording, in order with other writes. Waits while too many wait.
    /// After a write has failed (a full disk), it is acknowledged when it is durable, until writes
    /// succeed again; calls that were queued before are kept and tried again.
    async fn record_call(&self, call: NewCall) -> Result<(), StoreError>;

    /// Records a model call, in order with other writes, and returns once it is durable. A call that
    /// can't be written is not kept. Calls that come while another commit is under way share the next one.
    async fn record_call_durably(&self, call: NewCall) -> Result<(), StoreError>;

    /// How many rollouts are in which state.
    async fn counts(&self) -> Result<QueueCounts, StoreError>;

    /// The finished rollouts by kind of outcome, summed up: what a summary of a large run needs
    /// without reading every rollout. Kinds that did not occur are left out.
    async fn tally(&self) -> Result<Vec<OutcomeTally>, StoreError>;

    /// Sums over every recorded call, of every attempt: what was asked of the model, and paid for,
    /// whether it became a result or not.
    async fn call_totals(&self) -> Result<CallSummary, StoreError>;

    /// Rollouts in order of row and run index, a page at a time.
    async fn rollouts(&self, query: RolloutQuery) -> Result<RolloutPage, StoreError>;

    async fn rollout(&self, id: &RolloutId) -> Result<Option<RolloutRecord>, StoreError>;

    /// These rollouts, in the order they are asked for; ids that are not in the run are left out.
    async fn rollouts_by_id(&self, ids: &[RolloutId]) -> Result<Vec<RolloutRecord>, StoreError>;

    async fn row(&self, row_index: u64) -> Result<Option<RowRecord>, StoreError>;

    /// The rows of these indices, in that order, read in one go; those that are not there are left out.
    async fn rows(&self, row_indices: &[u64]) -> Result<Vec<RowRecord>, StoreError>;

    async fn samples(&self, id: &RolloutId) -> Result<Vec<Sample>, StoreError>;

    /// The samples of each of these rollouts, read in one go.
    async fn samples_of(&self, ids: &[RolloutId]) -> Result<Vec<Vec<Sample>>, StoreError>;

    /// The calls of one rollout in the order they finished; by default of its accepted attempt.
    async fn calls(&self, query: CallQuery) -> Result<Vec<CallRecord>, StoreError>;

    /// The exact bytes of one call.
    async fn call_body(&self, call_id: u64) -> Result<Option<CallBody>, StoreError>;

    /// Shows the calls of a purpose that [`Store::calls`] lists for each of the rollouts to `visit`,
    /// with their bodies, in that order. All are read in one go, and one body is in memory at a time.
    async fn visit_calls(
        &self,
        rollouts: &[RolloutId],
        purpose: CallPurpose,
        visit: CallVisitor,
    ) -> Result<(), StoreError>;

    /// The token records of the policy's calls in one rollout, with the samples they belong to, in the order the calls
    /// finished; of its accepted attempt, or of the latest while it has no result. Reads no bodies.
    async fn token_records(&self, id: &RolloutId) -> Result<Vec<(SampleId, Bytes)>, StoreError>;

    /// Records a step of training. A step that is there already is replaced: a resume repeats those
    /// that came after the last checkpoint.
    async fn record_step(&self, step: StepRecord) -> Result<(), StoreError>;

    /// The steps of training so far, in order.
    async fn steps(&self) -> Result<Vec<StepRecord>, StoreError>;

    /// Records which rollouts make up a batch, before it is trained on. One that is there already is
    /// replaced, unless it was acknowledged: then this changes nothing.
    async fn record_batch(&self, batch: BatchRecord) -> Result<(), StoreError>;

    /// A trainer from outside has trained on a batch, for good. `false` when it was said before, or when
    /// there is no such batch.
    async fn acknowledge_batch(&self, number: u64, at_ms: i64) -> Result<bool, StoreError>;

    /// The batches so far, in order.
    async fn batches(&self) -> Result<Vec<BatchRecord>, StoreError>;

    /// Makes everything queued durable and closes; later calls fail with `Closed`, except another
    /// `close`, which has nothing to do.
    async fn close(&self) -> Result<(), StoreError>;
}
