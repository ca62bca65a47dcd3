//! What a node reads of the run, and what it sees of others.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{JsonText, RolloutId, Sample, SampleId};
use osmosis_store::{
    BatchRecord, CallBody, CallPurpose, CallQuery, CallRecord, CallSummary, CallVisitor, Changes,
    FinishedCursor, Member, NewCall, OutcomeTally, PackageFile, QueueCounts, Records, RequestNote,
    RequestRecord, RolloutPage, RolloutQuery, RolloutRecord, RowRecord, RunRecord, RunStanding,
    RunStatus, SharedRun, StepRecord, StopRequest, Store, StoreError,
};

use crate::node_store::NodeStore;

impl NodeStore {
    /// Waits as long as a small question takes.
    async fn look(&self) {
        self.database.operations.lock().looks += 1;
        let cost = self.database.costs.look;
        self.database.work(cost, false).await;
    }
}

#[async_trait]
impl Store for NodeStore {
    fn changes(&self) -> Changes {
        self.database.changes()
    }

    fn shared(&self) -> Option<&dyn SharedRun> {
        Some(self)
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.database.listeners.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

#[async_trait]
impl SharedRun for NodeStore {
    async fn standing(&self) -> Result<RunStanding, StoreError> {
        self.look().await;
        let now = tokio::time::Instant::now();
        let table = self.database.table.lock();
        let run_out = table
            .leases
            .peek()
            .is_some_and(|std::cmp::Reverse((until, _))| *until <= now);
        Ok(RunStanding {
            status: Some(RunStatus::Running),
            stop_asked: None,
            claimable: !table.queued.is_empty() || run_out,
            leased: table.leased > 0,
        })
    }

    async fn watch_finished(&self) -> Result<(FinishedCursor, QueueCounts), StoreError> {
        Ok((FinishedCursor::default(), self.counts().await?))
    }

    async fn set_draining(&self) -> Result<(), StoreError> {
        Ok(())
    }

    // What the engine of a node never asks.
    async fn finished_since(
        &self,
        _: FinishedCursor,
    ) -> Result<(Vec<RolloutRecord>, FinishedCursor), StoreError> {
        Err(StoreError::Closed)
    }
    async fn members(&self) -> Result<Vec<Member>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn put_package(&self, _: JsonText, _: Vec<PackageFile>) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn package(&self) -> Result<Option<JsonText>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn package_file(&self, _: &str) -> Result<Option<Bytes>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn set_controller(&self, _: Option<&str>, _: Option<&str>) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn controller_url(&self) -> Result<Option<String>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn node_key_sha256(&self) -> Result<Option<String>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn ask_to_stop(&self, _: Option<StopRequest>) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
}

#[async_trait]
impl Records for NodeStore {
    async fn counts(&self) -> Result<QueueCounts, StoreError> {
        self.look().await;
        let table = self.database.table.lock();
        Ok(QueueCounts {
            queued: table.queued.len() as u64,
            leased: table.leased as u64,
            done: table.done as u64,
        })
    }

    async fn row(&self, row_index: u64) -> Result<Option<RowRecord>, StoreError> {
        Ok(Some(self.row_record(row_index)))
    }

    async fn rollout(&self, _: &RolloutId) -> Result<Option<RolloutRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn samples(&self, _: &RolloutId) -> Result<Vec<Sample>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn rollouts_by_id(&self, _: &[RolloutId]) -> Result<Vec<RolloutRecord>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn samples_of(&self, _: &[RolloutId]) -> Result<Vec<Vec<Sample>>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn record_call(&self, _: NewCall) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
    async fn record_call_durably(&self, _: NewCall) -> Result<(), StoreError> {
        Err(StoreError::Closed)
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
    async fn tally(&self) -> Result<Vec<OutcomeTally>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn call_totals(&self) -> Result<CallSummary, StoreError> {
        Err(StoreError::Closed)
    }
    async fn rollouts(&self, _: RolloutQuery) -> Result<RolloutPage, StoreError> {
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
    async fn rows(&self, _: &[u64]) -> Result<Vec<RowRecord>, StoreError> {
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
