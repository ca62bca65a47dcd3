//! What is recorded of a run: the run itself, its rows, rollouts, samples, model calls, steps, batches and requests.

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{RolloutId, Sample, SampleId};

use crate::{
    BatchRecord, CallBody, CallPurpose, CallQuery, CallRecord, CallSummary, NewCall, OutcomeTally,
    PageEnd, QueueCounts, RequestNote, RequestRecord, RolloutPage, RolloutQuery, RolloutRecord,
    RowRecord, RunRecord, RunStatus, StepRecord, StoreError,
};

/// What is shown calls, on a thread that may block.
pub type CallVisitor = Box<dyn FnMut(&CallRecord, &CallBody) + Send>;

/// The records of one run.
///
/// Writes are acknowledged when they would survive a power cut, except [`Records::record_call`],
/// which is acknowledged when it is queued: it becomes durable no later than the next
/// acknowledged write. Reads see every acknowledged write.
#[async_trait]
pub trait Records: Send + Sync + std::fmt::Debug {
    /// Writes the run's own record; a run has exactly one. Creating it twice is `AlreadyExists`.
    async fn create_run(&self, run: RunRecord) -> Result<(), StoreError>;

    /// The run's record, `None` before `create_run`.
    async fn run(&self) -> Result<Option<RunRecord>, StoreError>;

    /// Sets status, and the finish time when the status is final.
    async fn set_status(&self, status: RunStatus) -> Result<(), StoreError>;

    /// What is kept of a request; `None` when it was never one.
    async fn request(&self, rollout: &RolloutId) -> Result<Option<RequestRecord>, StoreError>;

    /// The requests that are not settled, in the order they came.
    async fn unsettled_requests(&self) -> Result<Vec<RequestRecord>, StoreError>;

    /// Records that something happened to a request.
    async fn note_request(&self, rollout: &RolloutId, note: RequestNote) -> Result<(), StoreError>;

    /// How many rollouts are in which state.
    async fn counts(&self) -> Result<QueueCounts, StoreError>;

    /// The finished rollouts by kind of outcome, summed up: what a summary of a large run needs
    /// without reading every rollout. Kinds that did not occur are left out.
    async fn tally(&self) -> Result<Vec<OutcomeTally>, StoreError>;

    /// Rollouts in order of row and run index, a page at a time.
    async fn rollouts(&self, query: RolloutQuery) -> Result<RolloutPage, StoreError>;

    /// Where the page that [`rollouts`](Self::rollouts) would read now ends, found in a small part of the time: the next
    /// page can then be read beside it.
    async fn page_end(&self, _query: &RolloutQuery) -> Result<PageEnd, StoreError> {
        Ok(PageEnd::Unknown)
    }

    async fn rollout(&self, id: &RolloutId) -> Result<Option<RolloutRecord>, StoreError>;

    /// These rollouts, in the order they are asked for; ids that are not in the run are left out.
    async fn rollouts_by_id(&self, ids: &[RolloutId]) -> Result<Vec<RolloutRecord>, StoreError>;

    async fn row(&self, row_index: u64) -> Result<Option<RowRecord>, StoreError>;

    /// The rows of these indices, in that order, read in one go; those that are not there are left out.
    async fn rows(&self, row_indices: &[u64]) -> Result<Vec<RowRecord>, StoreError>;

    async fn samples(&self, id: &RolloutId) -> Result<Vec<Sample>, StoreError>;

    /// The samples of each of these rollouts, read in one go.
    async fn samples_of(&self, ids: &[RolloutId]) -> Result<Vec<Vec<Sample>>, StoreError>;

    /// Queues a model call for recording, in order with other writes. Waits while too many wait.
    /// After a write has failed (a full disk), it is acknowledged when it is durable, until writes
    /// succeed again; calls that were queued before are kept and tried again.
    async fn record_call(&self, call: NewCall) -> Result<(), StoreError>;

    /// Records a model call, in order with other writes, and returns once it is durable. A call that
    /// can't be written is not kept. Calls that come while another commit is under way share the next one.
    async fn record_call_durably(&self, call: NewCall) -> Result<(), StoreError>;

    /// The calls of one rollout in the order they finished; by default of its accepted attempt.
    async fn calls(&self, query: CallQuery) -> Result<Vec<CallRecord>, StoreError>;

    /// The exact bytes of one call.
    async fn call_body(&self, call_id: u64) -> Result<Option<CallBody>, StoreError>;

    /// Shows the calls of a purpose that [`Records::calls`] lists for each of the rollouts to `visit`,
    /// with their bodies, in that order. All are read in one go, and one body is in memory at a time.
    async fn visit_calls(
        &self,
        rollouts: &[RolloutId],
        purpose: CallPurpose,
        visit: CallVisitor,
    ) -> Result<(), StoreError>;

    /// Sums over every recorded call, of every attempt: what was asked of the model, and paid for,
    /// whether it became a result or not.
    async fn call_totals(&self) -> Result<CallSummary, StoreError>;

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
}
