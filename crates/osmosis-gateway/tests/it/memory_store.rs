use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{Attempt, OutcomeKind, RolloutId, Sample, SampleId};
use osmosis_store::{
    BatchRecord, CallBody, CallPurpose, CallQuery, CallRecord, CallSummary, CallVisitor,
    ChangeSender, Changes, Claim, Completion, CompletionReceipt, NewCall, NewRollout, NewRow,
    OutcomeTally, Queue, QueueCounts, Records, Recovery, RequestNote, RequestRecord, RolloutPage,
    RolloutQuery, RolloutRecord, RowRecord, RunRecord, RunStatus, StepRecord, Store, StoreError,
};
use tokio::sync::watch;

/// Keeps recorded calls and does nothing else.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    calls: watch::Sender<Vec<NewCall>>,
    /// Recording waits until this is `true`.
    open: watch::Sender<bool>,
    broken: bool,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            calls: watch::Sender::default(),
            open: watch::Sender::new(true),
            broken: false,
        }
    }
}

impl MemoryStore {
    /// A store whose disk is full.
    pub(crate) fn broken() -> Self {
        Self {
            broken: true,
            ..Self::default()
        }
    }

    /// Makes recording wait until `resume`.
    pub(crate) fn pause(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn resume(&self) {
        self.open.send_replace(true);
    }

    pub(crate) fn calls(&self) -> Vec<NewCall> {
        self.calls.borrow().clone()
    }

    /// Returns the calls once there are `n`.
    pub(crate) async fn wait_for(&self, n: usize) -> Vec<NewCall> {
        let mut calls = self.calls.subscribe();
        calls
            .wait_for(|calls| calls.len() >= n)
            .await
            .unwrap()
            .clone()
    }
}

#[async_trait]
impl Records for MemoryStore {
    async fn record_call(&self, call: NewCall) -> Result<(), StoreError> {
        if self.broken {
            return Err(StoreError::Database {
                message: "no space left".to_owned(),
                full: true,
            });
        }
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        self.calls.send_modify(|calls| calls.push(call));
        Ok(())
    }
    async fn record_call_durably(&self, call: NewCall) -> Result<(), StoreError> {
        self.record_call(call).await
    }
    async fn create_run(&self, _: RunRecord) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn run(&self) -> Result<Option<RunRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn set_status(&self, _: RunStatus) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn request(&self, _: &RolloutId) -> Result<Option<RequestRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn unsettled_requests(&self) -> Result<Vec<RequestRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn note_request(&self, _: &RolloutId, _: RequestNote) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn counts(&self) -> Result<QueueCounts, StoreError> {
        Err(StoreError::Closed)
    }
    async fn tally(&self) -> Result<Vec<OutcomeTally>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn call_totals(&self) -> Result<CallSummary, StoreError> {
        Err(StoreError::Closed)
    }
    async fn rollouts(&self, _: RolloutQuery) -> Result<RolloutPage, StoreError> {
        Err(StoreError::Closed)
    }
    async fn rollout(&self, _: &RolloutId) -> Result<Option<RolloutRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn rollouts_by_id(&self, _: &[RolloutId]) -> Result<Vec<RolloutRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn token_records(&self, _: &RolloutId) -> Result<Vec<(SampleId, Bytes)>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn record_step(&self, _: StepRecord) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn steps(&self) -> Result<Vec<StepRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn record_batch(&self, _: BatchRecord) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn acknowledge_batch(&self, _: u64, _: i64) -> Result<bool, StoreError> {
        Err(StoreError::Closed)
    }
    async fn batches(&self) -> Result<Vec<BatchRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn row(&self, _: u64) -> Result<Option<RowRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn rows(&self, _: &[u64]) -> Result<Vec<RowRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn samples_of(&self, _: &[RolloutId]) -> Result<Vec<Vec<Sample>>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn samples(&self, _: &RolloutId) -> Result<Vec<Sample>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn calls(&self, _: CallQuery) -> Result<Vec<CallRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn call_body(&self, _: u64) -> Result<Option<CallBody>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn visit_calls(
        &self,
        _: &[RolloutId],
        _: CallPurpose,
        _: CallVisitor,
    ) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
}

#[async_trait]
impl Queue for MemoryStore {
    async fn enqueue(&self, _: Vec<NewRow>, _: Vec<NewRollout>) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn enqueue_request(&self, _: NewRow, _: NewRollout, _: Bytes) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn hold_back(&self, _: &[RolloutId]) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn let_go(&self, _: &RolloutId) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn claim(&self, _: &str, _: usize, _: Duration) -> Result<Vec<Claim>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn claim_these(
        &self,
        _: &str,
        _: &[RolloutId],
        _: Duration,
    ) -> Result<Vec<Claim>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn heartbeat(
        &self,
        _: &[(RolloutId, Attempt)],
        _: Duration,
    ) -> Result<Vec<(RolloutId, Attempt)>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn complete(&self, _: Completion) -> Result<CompletionReceipt, StoreError> {
        Err(StoreError::Closed)
    }
    async fn release(&self, _: &RolloutId, _: Attempt, _: bool, _: bool) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn recover(&self, _: Recovery<'_>) -> Result<u64, StoreError> {
        Err(StoreError::Closed)
    }
    async fn requeue(&self, _: &[OutcomeKind]) -> Result<u64, StoreError> {
        Err(StoreError::Closed)
    }
    async fn cancel(&self, _: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn requeue_these(&self, _: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError> {
        Err(StoreError::Closed)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn changes(&self) -> Changes {
        ChangeSender::new().1
    }

    async fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
