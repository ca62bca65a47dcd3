//! The traits of the API: writes go to the writer, reads to the readers.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{Attempt, OutcomeKind, RolloutId, Sample, SampleId};
use osmosis_store::{
    Authenticity, BatchRecord, CallBody, CallPurpose, CallQuery, CallRecord, CallSummary,
    CallVisitor, Changes, Claim, Completion, CompletionReceipt, NewCall, NewRollout, NewRow,
    OutcomeTally, PageEnd, Queue, QueueCounts, Records, Recovery, RequestNote, RequestRecord,
    RolloutPage, RolloutQuery, RolloutRecord, RowRecord, RunRecord, RunStatus, StepRecord, Store,
    StoreError,
};
use tokio::sync::oneshot;

use super::SqliteStore;
use crate::catalogue::name_in_workspace;
use crate::watched::Watched;
use crate::writer::Message;
use crate::{batches, bodies, calls, queue, requests, rollouts, steps};

#[async_trait]
impl Queue for SqliteStore {
    async fn enqueue(
        &self,
        rows: Vec<NewRow>,
        rollouts: Vec<NewRollout>,
    ) -> Result<(), StoreError> {
        self.write(move |context| queue::enqueue(context.connection, &rows, &rollouts))
            .await
    }

    async fn enqueue_request(
        &self,
        row: NewRow,
        rollout: NewRollout,
        sealed: Bytes,
    ) -> Result<(), StoreError> {
        self.write(move |context| {
            let id = rollout.id.clone();
            queue::enqueue(context.connection, &[row], &[rollout])?;
            requests::keep(context.connection, &id, &sealed)
        })
        .await
    }

    async fn hold_back(&self, rollouts: &[RolloutId]) -> Result<(), StoreError> {
        let rollouts = rollouts.to_vec();
        self.write(move |context| queue::hold_back(context.connection, &rollouts))
            .await
    }

    async fn let_go(&self, rollout: &RolloutId) -> Result<(), StoreError> {
        let rollout = rollout.clone();
        self.write(move |context| queue::let_go(context.connection, &rollout))
            .await
    }

    async fn claim(
        &self,
        owner: &str,
        n: usize,
        lease: Duration,
    ) -> Result<Vec<Claim>, StoreError> {
        if n == 0 {
            return Ok(Vec::new());
        }
        let owner = owner.to_owned();
        self.write(move |context| {
            queue::claim(
                context.connection,
                context.clock.lease_ms(),
                &owner,
                n,
                lease,
            )
        })
        .await
    }

    async fn claim_these(
        &self,
        owner: &str,
        rollouts: &[RolloutId],
        lease: Duration,
    ) -> Result<Vec<Claim>, StoreError> {
        if rollouts.is_empty() {
            return Ok(Vec::new());
        }
        let (owner, rollouts) = (owner.to_owned(), rollouts.to_vec());
        self.write(move |context| {
            let now = context.clock.lease_ms();
            queue::claim_these(context.connection, now, &owner, &rollouts, lease)
        })
        .await
    }

    async fn heartbeat(
        &self,
        held: &[(RolloutId, Attempt)],
        lease: Duration,
    ) -> Result<Vec<(RolloutId, Attempt)>, StoreError> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let held = held.to_vec();
        self.write(move |context| {
            queue::heartbeat(context.connection, context.clock.lease_ms(), held, lease)
        })
        .await
    }

    async fn complete(&self, completion: Completion) -> Result<CompletionReceipt, StoreError> {
        self.write(move |context| {
            let receipt = queue::complete(context.connection, &completion)?;
            if receipt == CompletionReceipt::Accepted {
                context.conversations.forget(&completion.id);
            }
            Ok(receipt)
        })
        .await
    }

    async fn release(
        &self,
        rollout: &RolloutId,
        attempt: Attempt,
        lost: bool,
        failed: bool,
    ) -> Result<(), StoreError> {
        let rollout = rollout.clone();
        self.write(move |context| {
            queue::release(context.connection, &rollout, attempt, lost, failed)
        })
        .await
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError> {
        if rollouts.is_empty() {
            return Ok(Vec::new());
        }
        let rollouts = rollouts.to_vec();
        self.write(move |context| {
            let cancelled = queue::cancel(context.connection, context.clock.now_ms(), &rollouts)?;
            for rollout in &cancelled {
                context.conversations.forget(rollout);
            }
            Ok(cancelled)
        })
        .await
    }

    /// A store that is open for writing holds the run alone, so every recovery is open to it.
    async fn recover(&self, which: Recovery<'_>) -> Result<u64, StoreError> {
        match which {
            Recovery::OwnedBy(owner) => {
                let owner = owner.to_owned();
                self.write(move |context| queue::recover_of(context.connection, &owner))
                    .await
            }
            Recovery::AfterTakeover => {
                self.write(|context| queue::recover_all(context.connection))
                    .await
            }
        }
    }

    async fn requeue(&self, kinds: &[OutcomeKind]) -> Result<u64, StoreError> {
        let kinds = kinds.to_vec();
        self.write(move |context| queue::requeue(context.connection, &kinds))
            .await
    }

    async fn requeue_these(&self, rollouts: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError> {
        if rollouts.is_empty() {
            return Ok(Vec::new());
        }
        let rollouts = rollouts.to_vec();
        self.write(move |context| queue::requeue_these(context.connection, rollouts))
            .await
    }
}

#[async_trait]
impl Records for SqliteStore {
    async fn create_run(&self, run: RunRecord) -> Result<(), StoreError> {
        self.write(move |context| rollouts::create_run(context.connection, &run))
            .await
    }

    async fn run(&self) -> Result<Option<RunRecord>, StoreError> {
        let record = self.readers.read(rollouts::run).await?;
        let name = name_in_workspace(&self.database);
        Ok(record.map(|record| RunRecord {
            name: name.unwrap_or_else(|| record.name.clone()),
            ..record
        }))
    }

    async fn set_status(&self, status: RunStatus) -> Result<(), StoreError> {
        self.write(move |context| {
            rollouts::set_status(context.connection, context.clock.now_ms(), status)
        })
        .await
    }

    async fn request(&self, rollout: &RolloutId) -> Result<Option<RequestRecord>, StoreError> {
        let rollout = rollout.clone();
        self.readers
            .read(move |connection| requests::request(connection, &rollout))
            .await
    }

    async fn unsettled_requests(&self) -> Result<Vec<RequestRecord>, StoreError> {
        self.readers.read(requests::unsettled).await
    }

    async fn note_request(&self, rollout: &RolloutId, note: RequestNote) -> Result<(), StoreError> {
        let rollout = rollout.clone();
        self.write(move |context| {
            requests::note(context.connection, context.clock.now_ms(), &rollout, &note)
        })
        .await
    }

    async fn counts(&self) -> Result<QueueCounts, StoreError> {
        self.readers.read(rollouts::counts).await
    }

    async fn tally(&self) -> Result<Vec<OutcomeTally>, StoreError> {
        self.readers.read_all(rollouts::tally).await
    }

    async fn rollouts(&self, query: RolloutQuery) -> Result<RolloutPage, StoreError> {
        // Whoever reads all of them begins at the beginning.
        let is_first = query.after.is_none();
        let work = move |connection: &_| rollouts::rollouts(connection, &query);
        if is_first {
            self.readers.read_all(work).await
        } else {
            self.readers.read(work).await
        }
    }

    async fn page_end(&self, query: &RolloutQuery) -> Result<PageEnd, StoreError> {
        let query = query.clone();
        self.readers
            .read(move |connection| rollouts::page_end(connection, &query))
            .await
    }

    async fn rollout(&self, id: &RolloutId) -> Result<Option<RolloutRecord>, StoreError> {
        let id = id.clone();
        self.readers
            .read(move |connection| rollouts::rollout(connection, &id))
            .await
    }

    async fn rollouts_by_id(&self, ids: &[RolloutId]) -> Result<Vec<RolloutRecord>, StoreError> {
        let ids = ids.to_vec();
        self.readers
            .read(move |connection| rollouts::rollouts_by_id(connection, &ids))
            .await
    }

    async fn row(&self, row_index: u64) -> Result<Option<RowRecord>, StoreError> {
        self.readers
            .read(move |connection| rollouts::row(connection, row_index))
            .await
    }

    async fn rows(&self, row_indices: &[u64]) -> Result<Vec<RowRecord>, StoreError> {
        let row_indices = row_indices.to_vec();
        self.readers
            .read(move |connection| rollouts::rows(connection, &row_indices))
            .await
    }

    async fn samples(&self, id: &RolloutId) -> Result<Vec<Sample>, StoreError> {
        let id = id.clone();
        self.readers
            .read(move |connection| rollouts::samples(connection, &id))
            .await
    }

    async fn samples_of(&self, ids: &[RolloutId]) -> Result<Vec<Vec<Sample>>, StoreError> {
        let ids = ids.to_vec();
        self.readers
            .read(move |connection| rollouts::samples_of(connection, &ids))
            .await
    }

    async fn record_call(&self, call: NewCall) -> Result<(), StoreError> {
        self.writer()?.record_call(call).await
    }

    async fn record_call_durably(&self, call: NewCall) -> Result<(), StoreError> {
        self.writer()?.record_call_durably(call).await
    }

    async fn calls(&self, query: CallQuery) -> Result<Vec<CallRecord>, StoreError> {
        self.readers
            .read(move |connection| calls::calls(connection, &query))
            .await
    }

    async fn call_body(&self, call_id: u64) -> Result<Option<CallBody>, StoreError> {
        let bodies = self.bodies();
        self.readers
            .read(move |connection| bodies::body(connection, bodies.source(), call_id))
            .await
    }

    async fn visit_calls(
        &self,
        rollouts: &[RolloutId],
        purpose: CallPurpose,
        visit: CallVisitor,
    ) -> Result<(), StoreError> {
        let (bodies, ids) = (self.bodies(), rollouts.to_vec());
        self.readers
            .read(move |connection| {
                bodies::visit(connection, bodies.source(), &ids, purpose, visit)
            })
            .await
    }

    async fn call_totals(&self) -> Result<CallSummary, StoreError> {
        self.readers.read_all(calls::totals).await
    }

    async fn token_records(&self, id: &RolloutId) -> Result<Vec<(SampleId, Bytes)>, StoreError> {
        let (bodies, id) = (self.bodies(), id.clone());
        self.readers
            .read(move |connection| bodies::token_records(connection, bodies.source(), &id))
            .await
    }

    async fn record_step(&self, step: StepRecord) -> Result<(), StoreError> {
        self.write(move |context| steps::record(context.connection, &step))
            .await
    }

    async fn steps(&self) -> Result<Vec<StepRecord>, StoreError> {
        self.readers.read_all(steps::steps).await
    }

    async fn record_batch(&self, batch: BatchRecord) -> Result<(), StoreError> {
        self.write(move |context| batches::record(context.connection, &batch))
            .await
    }

    async fn acknowledge_batch(&self, number: u64, at_ms: i64) -> Result<bool, StoreError> {
        self.write(move |context| batches::acknowledge(context.connection, number, at_ms))
            .await
    }

    async fn batches(&self) -> Result<Vec<BatchRecord>, StoreError> {
        self.readers.read_all(batches::batches).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn changes(&self) -> Changes {
        match &self.writer {
            Some(writer) => writer.changes.from_now(),
            None => self
                .watched
                .lock()
                .get_or_insert_with(|| Watched::begin(&self.readers))
                .changes(),
        }
    }

    fn authenticity(&self) -> Authenticity {
        self.readers.authentication().state()
    }

    async fn close(&self) -> Result<(), StoreError> {
        // Readers first: the last connection to go takes the log's files with it.
        self.readers.close().await;
        let Some(writer) = &self.writer else {
            *self.watched.lock() = Some(Watched::ended());
            return Ok(());
        };
        let (answer, answered) = oneshot::channel();
        match writer.send(Message::Close(answer)).await {
            Ok(()) => answered.await.map_err(|_| StoreError::Closed)?,
            // Closed before.
            Err(_) => Ok(()),
        }
    }
}
