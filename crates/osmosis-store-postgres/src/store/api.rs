//! The traits of the API: writes go to the writer, reads to the readers.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{Attempt, OutcomeKind, RolloutId, Sample, SampleId};
use osmosis_store::{
    BatchRecord, CallBody, CallPurpose, CallQuery, CallRecord, CallSummary, CallVisitor,
    ChangeSender, Changes, Claim, Completion, CompletionReceipt, NewCall, NewRollout, NewRow,
    OutcomeTally, Queue, QueueCounts, Records, Recovery, RequestNote, RequestRecord, RolloutPage,
    RolloutQuery, RolloutRecord, RowRecord, RunRecord, RunStatus, SharedRun, StepRecord, Store,
    StoreError,
};
use tokio::sync::{mpsc, oneshot};

use super::PostgresStore;
use crate::pending::{Message, PendingCompletion};
use crate::presence::{Part, leave};
use crate::queue::{Claiming, Enqueued, Released};
use crate::readers::read;
use crate::{bodies, calls, queue, records, requests, rollouts};

/// Bodies that wait for a visitor.
const WAITING_BODIES: usize = 4;

#[async_trait]
impl Queue for PostgresStore {
    async fn enqueue(
        &self,
        rows: Vec<NewRow>,
        rollouts: Vec<NewRollout>,
    ) -> Result<(), StoreError> {
        let given = Enqueued {
            rows,
            rollouts,
            sealed: None,
        };
        self.write(given, |tx, given| Box::pin(queue::enqueue(tx, given)))
            .await
    }

    async fn enqueue_request(
        &self,
        row: NewRow,
        rollout: NewRollout,
        sealed: Bytes,
    ) -> Result<(), StoreError> {
        let given = Enqueued {
            sealed: Some((rollout.id.clone(), sealed)),
            rows: vec![row],
            rollouts: vec![rollout],
        };
        self.write(given, |tx, given| Box::pin(queue::enqueue(tx, given)))
            .await
    }

    async fn hold_back(&self, rollouts: &[RolloutId]) -> Result<(), StoreError> {
        self.write(rollouts.to_vec(), |tx, rollouts| {
            Box::pin(queue::hold_back(tx, rollouts))
        })
        .await
    }

    async fn let_go(&self, rollout: &RolloutId) -> Result<(), StoreError> {
        self.write(rollout.clone(), |tx, rollout| {
            Box::pin(queue::let_go(tx, rollout))
        })
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
        let claiming = Claiming {
            owner: owner.to_owned(),
            n,
            lease,
            chosen: Vec::new(),
        };
        self.write(claiming, |tx, claiming| {
            Box::pin(queue::claim(tx, claiming))
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
        let claiming = Claiming {
            owner: owner.to_owned(),
            n: rollouts.len(),
            lease,
            chosen: rollouts.to_vec(),
        };
        self.write(claiming, |tx, claiming| {
            Box::pin(queue::claim(tx, claiming))
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
        self.write((held.to_vec(), lease), |tx, held| {
            Box::pin(queue::heartbeat(tx, held))
        })
        .await
    }

    async fn complete(&self, completion: Completion) -> Result<CompletionReceipt, StoreError> {
        let (answer, answered) = oneshot::channel();
        let pending = PendingCompletion { completion, answer };
        self.writer()?
            .send(Message::Complete(Box::new(pending)))
            .await?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    async fn release(
        &self,
        rollout: &RolloutId,
        attempt: Attempt,
        lost: bool,
        failed: bool,
    ) -> Result<(), StoreError> {
        let released = Released {
            rollout: rollout.clone(),
            attempt,
            lost,
            failed,
        };
        self.write(released, |tx, released| {
            Box::pin(queue::release(tx, released))
        })
        .await
    }

    async fn cancel(&self, rollouts: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError> {
        if rollouts.is_empty() {
            return Ok(Vec::new());
        }
        self.write(rollouts.to_vec(), |tx, rollouts| {
            Box::pin(queue::cancel(tx, rollouts))
        })
        .await
    }

    /// Only who controls the run may take over leases; those of nodes that are alive stay theirs.
    async fn recover(&self, which: Recovery<'_>) -> Result<u64, StoreError> {
        match (which, self.part) {
            (Recovery::OwnedBy(owner), _) => {
                self.write(owner.to_owned(), |tx, owner| {
                    Box::pin(queue::recover_of(tx, owner))
                })
                .await
            }
            (Recovery::AfterTakeover, Part::Node) => Err(StoreError::refused(
                "a node does not hold the run alone; only its controller may take over leases",
            )),
            (Recovery::AfterTakeover, Part::Controller { .. } | Part::Reader) => {
                self.write((), |tx, ()| Box::pin(queue::recover_all(tx)))
                    .await
            }
        }
    }

    async fn requeue(&self, kinds: &[OutcomeKind]) -> Result<u64, StoreError> {
        self.write(kinds.to_vec(), |tx, kinds| {
            Box::pin(queue::requeue(tx, kinds))
        })
        .await
    }

    async fn requeue_these(&self, rollouts: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError> {
        if rollouts.is_empty() {
            return Ok(Vec::new());
        }
        self.write(rollouts.to_vec(), |tx, rollouts| {
            Box::pin(queue::requeue_these(tx, rollouts))
        })
        .await
    }
}

#[async_trait]
impl Records for PostgresStore {
    async fn create_run(&self, run: RunRecord) -> Result<(), StoreError> {
        self.write(run, |tx, run| Box::pin(records::create_run(tx, run)))
            .await
    }

    async fn run(&self) -> Result<Option<RunRecord>, StoreError> {
        read!(self.readers, |c| records::run(c, self.run_id))
    }

    async fn set_status(&self, status: RunStatus) -> Result<(), StoreError> {
        self.write(status, |tx, status| {
            Box::pin(records::set_status(tx, *status))
        })
        .await
    }

    async fn request(&self, rollout: &RolloutId) -> Result<Option<RequestRecord>, StoreError> {
        read!(self.readers, |c| requests::request(c, self.run_id, rollout))
    }

    async fn unsettled_requests(&self) -> Result<Vec<RequestRecord>, StoreError> {
        read!(self.readers, |c| requests::unsettled(c, self.run_id))
    }

    async fn note_request(&self, rollout: &RolloutId, note: RequestNote) -> Result<(), StoreError> {
        self.write((rollout.clone(), note), |tx, note| {
            Box::pin(requests::note(tx, note))
        })
        .await
    }

    async fn counts(&self) -> Result<QueueCounts, StoreError> {
        read!(self.readers, |c| rollouts::counts(c, self.run_id))
    }

    async fn tally(&self) -> Result<Vec<OutcomeTally>, StoreError> {
        read!(self.readers, |c| rollouts::tally(c, self.run_id))
    }

    async fn rollouts(&self, query: RolloutQuery) -> Result<RolloutPage, StoreError> {
        read!(self.readers, |c| rollouts::rollouts(c, self.run_id, &query))
    }

    async fn rollout(&self, id: &RolloutId) -> Result<Option<RolloutRecord>, StoreError> {
        let mut found = self.rollouts_by_id(std::slice::from_ref(id)).await?;
        Ok(found.pop())
    }

    async fn rollouts_by_id(&self, ids: &[RolloutId]) -> Result<Vec<RolloutRecord>, StoreError> {
        read!(self.readers, |c| rollouts::rollouts_by_id(
            c,
            self.run_id,
            ids
        ))
    }

    async fn row(&self, row_index: u64) -> Result<Option<RowRecord>, StoreError> {
        Ok(self.rows(&[row_index]).await?.pop())
    }

    async fn rows(&self, row_indices: &[u64]) -> Result<Vec<RowRecord>, StoreError> {
        read!(self.readers, |c| rollouts::rows(
            c,
            self.run_id,
            row_indices
        ))
    }

    async fn samples(&self, id: &RolloutId) -> Result<Vec<Sample>, StoreError> {
        let mut found = self.samples_of(std::slice::from_ref(id)).await?;
        Ok(found.pop().unwrap_or_default())
    }

    async fn samples_of(&self, ids: &[RolloutId]) -> Result<Vec<Vec<Sample>>, StoreError> {
        read!(self.readers, |c| rollouts::samples_of(c, self.run_id, ids))
    }

    async fn record_call(&self, call: NewCall) -> Result<(), StoreError> {
        self.writer()?.record_call(call).await
    }

    async fn record_call_durably(&self, call: NewCall) -> Result<(), StoreError> {
        self.writer()?.record_call_durably(call).await
    }

    async fn calls(&self, query: CallQuery) -> Result<Vec<CallRecord>, StoreError> {
        read!(self.readers, |c| calls::calls(c, self.run_id, &query))
    }

    async fn call_body(&self, call_id: u64) -> Result<Option<CallBody>, StoreError> {
        read!(self.readers, |c| bodies::body(c, self.run_id, call_id))
    }

    /// Is not tried again when the connection breaks: nothing may be shown twice.
    async fn visit_calls(
        &self,
        rollouts: &[RolloutId],
        purpose: CallPurpose,
        mut visit: CallVisitor,
    ) -> Result<(), StoreError> {
        let (sender, mut receiver) = mpsc::channel::<(CallRecord, CallBody)>(WAITING_BODIES);
        let visiting = tokio::task::spawn_blocking(move || {
            while let Some((call, body)) = receiver.blocking_recv() {
                visit(&call, &body);
            }
        });
        let mut reading = self.readers.begin().await?;
        let shown = self.readers.connector().shown().to_owned();
        let held = reading.connection().await?;
        for id in rollouts {
            bodies::visit(&held, self.run_id, id, purpose, &sender)
                .await
                .map_err(|error| error.into_store_error(&shown))?;
        }
        reading.done(held);
        drop(sender);
        visiting
            .await
            .map_err(|error| StoreError::refused(format!("a visit did not finish: {error}")))
    }

    async fn call_totals(&self) -> Result<CallSummary, StoreError> {
        read!(self.readers, |c| calls::totals(c, self.run_id))
    }

    async fn token_records(&self, id: &RolloutId) -> Result<Vec<(SampleId, Bytes)>, StoreError> {
        read!(self.readers, |c| bodies::token_records(c, self.run_id, id))
    }

    async fn record_step(&self, step: StepRecord) -> Result<(), StoreError> {
        self.write(step, |tx, step| Box::pin(records::record_step(tx, step)))
            .await
    }

    async fn steps(&self) -> Result<Vec<StepRecord>, StoreError> {
        read!(self.readers, |c| records::steps(c, self.run_id))
    }

    async fn record_batch(&self, batch: BatchRecord) -> Result<(), StoreError> {
        self.write(batch, |tx, batch| {
            Box::pin(records::record_batch(tx, batch))
        })
        .await
    }

    async fn acknowledge_batch(&self, number: u64, at_ms: i64) -> Result<bool, StoreError> {
        self.write((number, at_ms), |tx, given| {
            Box::pin(records::acknowledge_batch(tx, given))
        })
        .await
    }

    async fn batches(&self) -> Result<Vec<BatchRecord>, StoreError> {
        read!(self.readers, |c| records::batches(c, self.run_id))
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn changes(&self) -> Changes {
        self.changes
            .lock()
            .get_or_insert_with(|| self.watch())
            .from_now()
    }

    fn shared(&self) -> Option<&dyn SharedRun> {
        Some(self)
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.readers.close().await;
        let mut flushed = Ok(());
        if let Some(writer) = &self.writer {
            let (answer, answered) = oneshot::channel();
            if writer.send(Message::Close(answer)).await.is_ok() {
                flushed = answered.await.map_err(|_| StoreError::Closed)?;
            }
            let ended = writer.ended.lock().take();
            if let Some(ended) = ended {
                let _ = ended.await;
            }
        }
        self.stop.cancel();
        let session = self.session.lock().take();
        if let Some(session) = session
            && let Ok(Some(connection)) = session.await
            && self.part != Part::Reader
            && let Err(error) = leave(&connection, self.run_id, self.member_id, self.part).await
        {
            // The end of the session gives the run back all the same.
            tracing::debug!(%error, "the run was not left in order");
        }
        if self.part == Part::Reader {
            let (_, ended) = ChangeSender::new();
            *self.changes.lock() = Some(ended);
        }
        flushed
    }
}
