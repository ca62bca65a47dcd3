//! The one task that writes. It takes what is queued, up to a batch, and commits it together, calls before results; only
//! then the answers. When the connection breaks, it connects again, finds out whether the commit was done, and repeats
//! what was not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use osmosis_store::encoding::Conversations;
use osmosis_store::{ChangeSender, Completion, CompletionReceipt, StoreError};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::calls::{CallIds, Calls, EncodedCall};
use crate::completions::Completions;
use crate::connection::{Connection, Connector, Session};
use crate::error::{Consequence, DbError};
use crate::pending::{Answer, Batch, Message, QueuedCall, bytes_of, closes, is_awaited};
use crate::readers::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::transaction::{Failure, Work, Writing, transact, was_committed};

/// Calls that nobody waits for may make a batch so many times as large: a commit costs the same for many.
pub(crate) const CALLS_BEYOND_A_BATCH: usize = 4;

/// A batch that is larger is committed without waiting for more.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// A writer looks up single rows. The planner would rather read a whole table of some thousands of rows and join it, for
/// each heartbeat of some dozens of leases; and since it takes short lists for cheap, it would plan each of them anew.
const BY_INDEX: &str = "
    SET enable_seqscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
    SET plan_cache_mode = force_generic_plan;
";

/// How often a transaction is repeated that got into another's way.
const REPEATS: u32 = 20;

/// A write that was not done.
struct Failed {
    error: StoreError,
    /// Whether it alone is at fault, and others may still succeed: not so when the database can't be reached, is full, or
    /// the run is somebody else's.
    about_one: bool,
}

impl Failed {
    fn one(error: StoreError) -> Self {
        Self {
            error,
            about_one: true,
        }
    }

    fn all(error: StoreError) -> Self {
        Self {
            error,
            about_one: false,
        }
    }
}

pub(crate) struct Writer {
    pub(crate) connector: Connector,
    pub(crate) connection: Option<Connection>,
    /// The session of a connection that broke.
    pub(crate) lost: Option<Session>,
    pub(crate) writing: Writing,
    /// Why nothing is written any more, once somebody else has taken the run over.
    pub(crate) fenced: watch::Sender<Option<StoreError>>,
    /// `true` from a failed commit to the next that succeeds.
    pub(crate) failing: watch::Sender<bool>,
    /// Told after every commit that changed something.
    pub(crate) changes: Arc<ChangeSender>,
    /// The same for other processes.
    pub(crate) to_announce: Arc<Notify>,
    pub(crate) commits: Arc<AtomicU64>,
    pub(crate) batch: usize,
    pub(crate) linger: Duration,
    pub(crate) retry_for: Duration,
    /// Told when lingering must end: somebody waits for a commit, or much has come.
    pub(crate) hurry: Arc<Notify>,
    pub(crate) conversations: Conversations,
    pub(crate) call_ids: CallIds,
    /// The number of the next commit, from 1.
    pub(crate) next_commit: i64,
    /// Calls that were accepted but whose commit failed; they go first in the next one.
    pub(crate) carried: Vec<QueuedCall>,
}

impl Writer {
    /// Works until the store is closed or dropped.
    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut closing = None;
        while let Some(first) = queue.recv().await {
            let mut batch = vec![first];
            self.gather(&mut queue, &mut batch).await;
            if let Some(answer) = self.commit(batch).await {
                // Nothing new comes in; what was sent before is still written.
                queue.close();
                closing = Some(answer);
            }
        }
        let flushed = self.flush_carried().await;
        if let Some(answer) = closing {
            let _ = answer.send(flushed);
        } else if let Err(error) = flushed {
            tracing::error!(%error, "model calls were not recorded");
        }
    }

    /// Takes what is queued. When nobody waits for the commit, gives more calls a moment to come.
    async fn gather(&self, queue: &mut mpsc::Receiver<Message>, batch: &mut Vec<Message>) {
        // Who hurried until now is in the queue.
        let _ = self.hurry.notified().now_or_never();
        take_queued(queue, batch, self.batch);
        if batch.len() >= self.batch
            || batch.iter().any(is_awaited)
            || !self.carried.is_empty()
            || queue.is_closed()
        {
            return;
        }
        // Being told and running out of time come to the same.
        let _ = timeout(self.linger, self.hurry.notified()).await;
        take_queued(queue, batch, self.batch * CALLS_BEYOND_A_BATCH);
    }

    /// Commits a batch and answers it. Returns who asked for the end, if somebody did.
    async fn commit(&mut self, messages: Vec<Message>) -> Option<Answer<()>> {
        let mut closing = None;
        let mut batch = Batch {
            calls: std::mem::take(&mut self.carried),
            ..Batch::default()
        };
        for message in messages {
            match message {
                Message::Write(write) => batch.writes.push(write),
                Message::Complete(completion) => batch.completions.push(*completion),
                Message::Call(call) => batch.calls.push(*call),
                Message::Close(answer) => closing = Some(answer),
            }
        }
        if batch.len() > 0 {
            self.commit_batch(batch).await;
        }
        closing
    }

    /// Together if possible. One that can't be done must not cost the others.
    async fn commit_batch(&mut self, mut batch: Batch) {
        let written = self.write(&mut batch).await;
        match written {
            Err(Failed {
                about_one: true, ..
            }) if batch.len() > 1 => {
                self.conversations.clear();
                for mut one in batch.one_by_one() {
                    let written = self.write(&mut one).await;
                    self.answer(one, written);
                }
            }
            written => self.answer(batch, written),
        }
    }

    fn answer(&mut self, batch: Batch, written: Result<Vec<CompletionReceipt>, Failed>) {
        let (committed, receipts, refused) = match written {
            Ok(receipts) => (Ok(()), receipts, false),
            Err(Failed { error, about_one }) => {
                self.conversations.clear();
                if !about_one {
                    tracing::error!(%error, writes = batch.len(), "commit failed");
                }
                (Err(error), Vec::new(), about_one)
            }
        };
        // Told before the answers: whoever hears of a failure must not find the store still fine.
        let failing = committed.is_err() && !refused;
        self.failing
            .send_if_modified(|was| std::mem::replace(was, failing) != failing);
        for mut call in batch.calls {
            match (call.answer.take(), &committed) {
                (Some(answer), _) => {
                    let _ = answer.send(committed.clone());
                }
                (None, Ok(())) => drop(call.room.take()),
                (None, Err(error)) if refused => {
                    tracing::error!(rollout = %call.call.rollout_id, %error, "a model call can't be recorded");
                }
                (None, Err(_)) => self.carried.push(call),
            }
        }
        let mut receipts = receipts.into_iter();
        for pending in batch.completions {
            let answer = match (&committed, receipts.next()) {
                (Ok(()), Some(receipt)) => {
                    if receipt == CompletionReceipt::Accepted {
                        self.conversations.forget(&pending.completion.id);
                    }
                    Ok(receipt)
                }
                (Ok(()), None) => Err(StoreError::Closed),
                (Err(error), _) => Err(error.clone()),
            };
            let _ = pending.answer.send(answer);
        }
        for write in batch.writes {
            write.answer(committed.clone());
        }
    }

    /// Writes a batch durably, over broken connections and restarts of the server.
    async fn write(&mut self, batch: &mut Batch) -> Result<Vec<CompletionReceipt>, Failed> {
        if let Some(error) = self.fenced.borrow().clone() {
            return Err(Failed::all(error));
        }
        let deadline = Instant::now() + self.retry_for;
        let calls = self.encode(&mut batch.calls, deadline).await?;
        let mut calls = Calls::new(&calls);
        let results: Vec<&Completion> = batch
            .completions
            .iter()
            .map(|one| &one.completion)
            .collect();
        let mut completions = Completions::new(&results).map_err(Failed::one)?;
        let mut work: Vec<&mut dyn Work> = Vec::with_capacity(batch.writes.len() + 2);
        if !calls.is_empty() {
            work.push(&mut calls);
        }
        if !results.is_empty() {
            work.push(&mut completions);
        }
        work.extend(batch.writes.iter_mut().map(|write| write.as_work()));
        self.transact(&mut work, deadline).await?;
        drop(work);
        Ok(completions.receipts())
    }

    async fn encode(
        &mut self,
        calls: &mut [QueuedCall],
        deadline: Instant,
    ) -> Result<Vec<EncodedCall>, Failed> {
        let missing = calls.iter().filter(|call| call.call_id.is_none()).count();
        self.reserve(missing, deadline).await?;
        let mut encoded = Vec::with_capacity(calls.len());
        for queued in calls {
            let id = match queued.call_id {
                Some(id) => id,
                None => *queued
                    .call_id
                    .insert(self.call_ids.take().map_err(Failed::all)?),
            };
            let call = EncodedCall::new(id, &queued.call, &mut self.conversations);
            encoded.push(call.map_err(Failed::one)?);
        }
        Ok(encoded)
    }

    /// Sees to it that there are so many numbers for calls.
    async fn reserve(&mut self, wanted: usize, deadline: Instant) -> Result<(), Failed> {
        let mut pause = FIRST_PAUSE;
        while self.call_ids.left() < wanted {
            self.connected(deadline).await?;
            let Some(connection) = &self.connection else {
                continue;
            };
            match CallIds::reserve(connection, self.writing.run_id, wanted).await {
                Ok(ids) => self.call_ids = ids,
                Err(error) => {
                    self.lose_connection();
                    self.wait_after(error, &mut pause, deadline).await?;
                }
            }
        }
        Ok(())
    }

    /// Connects when there is no connection, as often as it takes.
    async fn connected(&mut self, deadline: Instant) -> Result<(), Failed> {
        let mut pause = FIRST_PAUSE;
        if self.connection.as_ref().is_some_and(Connection::is_closed) {
            self.lose_connection();
        }
        while self.connection.is_none() {
            match self.connect().await {
                Ok(connection) => {
                    self.connection = Some(connection);
                    self.lost = None;
                }
                Err(error) => self.wait_after(error, &mut pause, deadline).await?,
            }
        }
        Ok(())
    }

    /// The server may not have noticed that the connection before is gone: its session must neither commit nor hold locks
    /// from now on.
    async fn connect(&self) -> Result<Connection, DbError> {
        let connection = self.connector.connect().await?;
        connection.batch(BY_INDEX).await?;
        if let Some(lost) = &self.lost {
            connection.end_session(lost).await?;
        }
        Ok(connection)
    }

    fn lose_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.lost = Some(connection.session().clone());
        }
    }

    /// Waits a moment after a failure that may pass.
    async fn wait_after(
        &self,
        error: DbError,
        pause: &mut Duration,
        deadline: Instant,
    ) -> Result<(), Failed> {
        let passes = error.consequence() == Consequence::Reconnect;
        let error = error.into_store_error(self.connector.shown());
        if !passes || Instant::now() + *pause > deadline {
            return Err(Failed::all(error));
        }
        tracing::warn!(%error, "the database can't be reached; trying again");
        sleep(*pause).await;
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    async fn transact(
        &mut self,
        work: &mut [&mut dyn Work],
        deadline: Instant,
    ) -> Result<(), Failed> {
        let mut pause = FIRST_PAUSE;
        let mut repeats = 0;
        loop {
            self.connected(deadline).await?;
            let Some(connection) = &self.connection else {
                continue;
            };
            let number = self.next_commit;
            let error = match transact(connection, &self.writing, number, work).await {
                Ok(changed) => {
                    self.next_commit += 1;
                    self.committed(changed);
                    return Ok(());
                }
                Err(Failure::InDoubt(error)) => {
                    self.lose_connection();
                    self.next_commit += 1;
                    if self.is_committed(number, error, deadline).await? {
                        self.committed(true);
                        return Ok(());
                    }
                    continue;
                }
                Err(Failure::Failed(error)) => error,
            };
            match error.consequence() {
                Consequence::Reconnect => {
                    self.lose_connection();
                    self.wait_after(error, &mut pause, deadline).await?;
                }
                Consequence::Repeat if repeats < REPEATS && Instant::now() < deadline => {
                    repeats += 1;
                    // Nobody else in the way picks the same moment.
                    let spread = 1 + u64::try_from(self.writing.member_id % 7).unwrap_or(0);
                    sleep(Duration::from_millis(spread * u64::from(repeats))).await;
                }
                Consequence::Repeat | Consequence::Aborted | Consequence::Final => {
                    let error = error.into_store_error(self.connector.shown());
                    if matches!(error, StoreError::Fenced { .. } | StoreError::Moved { .. }) {
                        self.fenced.send_replace(Some(error.clone()));
                        return Err(Failed::all(error));
                    }
                    return Err(
                        if matches!(error, StoreError::Database { full: true, .. }) {
                            Failed::all(error)
                        } else {
                            Failed::one(error)
                        },
                    );
                }
            }
        }
    }

    fn committed(&self, changed: bool) {
        if changed {
            self.commits.fetch_add(1, Ordering::Relaxed);
            self.changes.send();
            self.to_announce.notify_one();
        }
    }

    /// Finds out what became of a commit whose answer was lost.
    async fn is_committed(
        &mut self,
        number: i64,
        lost: DbError,
        deadline: Instant,
    ) -> Result<bool, Failed> {
        tracing::warn!(error = %lost, "the connection broke during a commit; looking whether it was done");
        let unknown = |failed: Failed| {
            Failed::all(StoreError::refused(format!(
                "the connection broke during a commit, and whether it was done could not be found out: {}",
                failed.error
            )))
        };
        let mut pause = FIRST_PAUSE;
        loop {
            self.connected(deadline).await.map_err(unknown)?;
            let Some(connection) = &self.connection else {
                continue;
            };
            match was_committed(connection, &self.writing, number).await {
                Ok(committed) => return Ok(committed),
                Err(error) if error.consequence() == Consequence::Repeat => {}
                Err(error) => {
                    self.lose_connection();
                    self.wait_after(error, &mut pause, deadline)
                        .await
                        .map_err(unknown)?;
                }
            }
        }
    }

    async fn flush_carried(&mut self) -> Result<(), StoreError> {
        if self.carried.is_empty() {
            return Ok(());
        }
        let mut batch = Batch {
            calls: std::mem::take(&mut self.carried),
            ..Batch::default()
        };
        let written = self.write(&mut batch).await;
        written.map(drop).map_err(|failed| failed.error)
    }
}

/// Takes what has come, up to `most` in all, to so many bytes, or to where the end was asked for.
fn take_queued(queue: &mut mpsc::Receiver<Message>, batch: &mut Vec<Message>, most: usize) {
    let mut bytes: usize = batch.iter().map(bytes_of).sum();
    while batch.len() < most
        && bytes < BATCH_BYTES
        && !batch.last().is_some_and(closes)
        && let Ok(next) = queue.try_recv()
    {
        bytes += bytes_of(&next);
        batch.push(next);
    }
}
