//! The store as one node has it: a writer that commits together what waits, as the real one does.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use osmosis_core::{Attempt, JsonText, OutcomeKind, RolloutId};
use osmosis_store::{
    Claim, Completion, CompletionReceipt, NewRollout, NewRow, Queue, Recovery, RowRecord,
    StoreError,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::database::{ANNOUNCE_EVERY, Database, State};

/// Rollouts and writes that one commit may hold, as in `osmosis-store-postgres`.
const BATCH: usize = 64;

const LINGER: Duration = Duration::from_millis(50);

type Answer<T> = oneshot::Sender<T>;

enum Write {
    Claim(usize, Duration, Answer<Vec<Claim>>),
    Heartbeat(
        Vec<(RolloutId, Attempt)>,
        Duration,
        Answer<Vec<(RolloutId, Attempt)>>,
    ),
    Complete(RolloutId, Attempt, Answer<CompletionReceipt>),
    Release(RolloutId, Attempt, bool, bool, Answer<()>),
    Call,
}

#[derive(Debug)]
pub(crate) struct NodeStore {
    pub(crate) database: Arc<Database>,
    writes: mpsc::Sender<Write>,
    body: JsonText,
    messages: JsonText,
    tasks: Mutex<JoinSet<()>>,
}

impl NodeStore {
    pub(crate) fn join(database: Arc<Database>, node: usize, body: JsonText) -> Option<Self> {
        let (writes, waiting) = mpsc::channel(4096);
        let to_announce = Arc::new(Notify::new());
        let writer = Writer {
            database: Arc::clone(&database),
            node,
            to_announce: Arc::clone(&to_announce),
            body: body.clone(),
        };
        let announcing = Arc::clone(&database);
        let mut tasks = JoinSet::new();
        tasks.spawn(writer.write(waiting));
        tasks.spawn(async move {
            loop {
                to_announce.notified().await;
                announcing.announce().await;
                tokio::time::sleep(ANNOUNCE_EVERY).await;
            }
        });
        Some(Self {
            database,
            writes,
            body,
            messages: JsonText::parse("[]").ok()?,
            tasks: Mutex::new(tasks),
        })
    }

    /// The machine is gone, with all that it had not committed.
    pub(crate) fn vanish(&self) {
        self.tasks.lock().abort_all();
    }

    /// A model call was made; nobody waits for its record.
    pub(crate) fn note_call(&self) {
        let _ = self.writes.try_send(Write::Call);
    }

    pub(crate) fn no_messages(&self) -> JsonText {
        self.messages.clone()
    }

    pub(crate) fn row_record(&self, row_index: u64) -> RowRecord {
        row(row_index, &self.body)
    }

    async fn ask<T>(&self, write: impl FnOnce(Answer<T>) -> Write) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let sent = self.writes.send(write(answer)).await;
        sent.map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)
    }
}

fn row(row_index: u64, body: &JsonText) -> RowRecord {
    RowRecord {
        row_index,
        line: row_index + 1,
        body: body.clone(),
    }
}

/// Calls that nobody waits for give others a moment to come, as in `osmosis-store-postgres`.
async fn linger(waiting: &mut mpsc::Receiver<Write>, batch: &mut Vec<Write>) {
    let more = async {
        while batch.len() < BATCH && batch.iter().all(|write| matches!(write, Write::Call)) {
            match waiting.recv().await {
                Some(write) => batch.push(write),
                None => break,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, more).await;
}

struct Writer {
    database: Arc<Database>,
    node: usize,
    to_announce: Arc<Notify>,
    body: JsonText,
}

impl Writer {
    async fn write(self, mut waiting: mpsc::Receiver<Write>) {
        let mut batch = vec![];
        while waiting.recv_many(&mut batch, BATCH).await > 0 {
            linger(&mut waiting, &mut batch).await;
            let cost = self.cost(&batch);
            // The server works through it; what it reads and writes counts from the end of that.
            self.database.work(cost, true).await;
            if self.apply(&mut batch) {
                self.to_announce.notify_one();
            }
        }
    }

    fn cost(&self, batch: &[Write]) -> f64 {
        let costs = &self.database.costs;
        let each = batch.iter().map(|write| match write {
            // What it finds is known later; an engine asks for as many as it needs.
            Write::Claim(n, ..) => costs.rollout * (*n).min(16) as f64,
            Write::Complete(..) | Write::Release(..) => costs.rollout,
            Write::Heartbeat(held, ..) => costs.lease * held.len() as f64,
            Write::Call => costs.call,
        });
        costs.commit + each.sum::<f64>()
    }

    /// Whether anything changed that others look at.
    fn apply(&self, batch: &mut Vec<Write>) -> bool {
        let mut table = self.database.table.lock();
        let mut operations = self.database.operations.lock();
        operations.commits += 1;
        let mut changed = false;
        for write in batch.drain(..) {
            match write {
                Write::Claim(n, lease, answer) => {
                    let taken = table.claim(self.node, n, lease);
                    operations.claims += 1;
                    operations.empty_claims += u64::from(taken.is_empty());
                    changed |= !taken.is_empty();
                    let claims = taken.into_iter().map(|at| {
                        let found = &table.rows[at];
                        Claim {
                            id: found.id.clone(),
                            row_index: at as u64,
                            run_index: 0,
                            attempt: Attempt(found.attempt),
                            losses: found.losses,
                            failures: found.failures,
                            row: row(at as u64, &self.body),
                        }
                    });
                    let _ = answer.send(claims.collect());
                }
                Write::Heartbeat(held, lease, answer) => {
                    operations.heartbeats += 1;
                    let mut lost = vec![];
                    for (id, attempt) in held {
                        match table.holds(&id, attempt.0) {
                            Some(at) => table.extend(at, lease),
                            None => lost.push((id, attempt)),
                        }
                    }
                    let _ = answer.send(lost);
                }
                Write::Complete(id, attempt, answer) => {
                    let receipt = if let Some(at) = table.holds(&id, attempt.0) {
                        table.end(at, State::Done);
                        operations.completions += 1;
                        self.database.per_node.lock()[self.node] += 1;
                        changed = true;
                        CompletionReceipt::Accepted
                    } else {
                        operations.fenced += 1;
                        CompletionReceipt::Fenced
                    };
                    let _ = answer.send(receipt);
                }
                Write::Release(id, attempt, lost, failed, answer) => {
                    if let Some(at) = table.holds(&id, attempt.0) {
                        table.rows[at].losses += u32::from(lost);
                        table.rows[at].failures += u32::from(failed);
                        table.end(at, State::Queued);
                        changed = true;
                    }
                    let _ = answer.send(());
                }
                Write::Call => operations.calls += 1,
            }
        }
        changed
    }
}

#[async_trait]
impl Queue for NodeStore {
    async fn claim(&self, _: &str, n: usize, lease: Duration) -> Result<Vec<Claim>, StoreError> {
        self.ask(|answer| Write::Claim(n, lease, answer)).await
    }

    async fn heartbeat(
        &self,
        held: &[(RolloutId, Attempt)],
        lease: Duration,
    ) -> Result<Vec<(RolloutId, Attempt)>, StoreError> {
        if held.is_empty() {
            return Ok(vec![]);
        }
        self.ask(|answer| Write::Heartbeat(held.to_vec(), lease, answer))
            .await
    }

    async fn complete(&self, completion: Completion) -> Result<CompletionReceipt, StoreError> {
        let Completion { id, attempt, .. } = completion;
        self.ask(|answer| Write::Complete(id, attempt, answer))
            .await
    }

    async fn release(
        &self,
        rollout: &RolloutId,
        attempt: Attempt,
        lost: bool,
        failed: bool,
    ) -> Result<(), StoreError> {
        let id = rollout.clone();
        self.ask(|answer| Write::Release(id, attempt, lost, failed, answer))
            .await
    }

    // What an engine of a node never asks.
    async fn claim_these(
        &self,
        _: &str,
        _: &[RolloutId],
        _: Duration,
    ) -> Result<Vec<Claim>, StoreError> {
        Err(StoreError::Closed)
    }
    async fn cancel(&self, _: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError> {
        Err(StoreError::Closed)
    }
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
    async fn recover(&self, _: Recovery<'_>) -> Result<u64, StoreError> {
        Err(StoreError::Closed)
    }
    async fn requeue(&self, _: &[OutcomeKind]) -> Result<u64, StoreError> {
        Err(StoreError::Closed)
    }
    async fn requeue_these(&self, _: &[RolloutId]) -> Result<Vec<RolloutId>, StoreError> {
        Err(StoreError::Closed)
    }
}
