//! The one thread that writes. It takes what is queued, up to a batch, and commits it together:
//! bodies to the segment, sync, rows to the database, commit, and only then the answers.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_store::encoding::Conversations;
use osmosis_store::{ChangeSender, Clock, NewCall, StoreError};
use rusqlite::Connection;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::authentic::{Ledger, Sealing};
use crate::calls::{self, CallFailure};
use crate::fence;
use crate::lock::RunLock;
use crate::segment::SegmentWriter;
use crate::sql::SqlError;

/// Calls that nobody waits for may make a batch so many times as large: a commit costs the same for many.
pub(crate) const CALLS_BEYOND_A_BATCH: usize = 4;

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

pub(crate) enum Message {
    Write(Box<dyn PendingWrite>),
    Call(Box<QueuedCall>),
    Close(Answer<()>),
}

/// A model call on its way.
pub(crate) struct QueuedCall {
    pub(crate) call: NewCall,
    /// Its share of the memory that waiting calls may take.
    pub(crate) room: Option<OwnedSemaphorePermit>,
    /// Somebody who waits for the commit. Without one, the call is tried again after a failed commit.
    pub(crate) answer: Option<Answer<()>>,
}

/// What a write works with.
pub(crate) struct WriteContext<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) conversations: &'a mut Conversations,
    pub(crate) clock: &'a dyn Clock,
}

/// A write that waits for its commit.
pub(crate) trait PendingWrite: Send {
    /// Does it inside the transaction, and keeps the result.
    fn run(&mut self, context: WriteContext<'_>) -> Result<(), SqlError>;
    /// Says that this write, and no other, can't be done.
    fn refuse(&mut self, error: StoreError);
    /// Tells the caller, once it is known what became of the transaction.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Job<T, F> {
    work: Option<F>,
    result: Result<T, StoreError>,
    answer: Answer<T>,
}

/// A write out of a closure, and where its answer will come.
pub(crate) fn job<T, F>(work: F) -> (Message, oneshot::Receiver<Result<T, StoreError>>)
where
    T: Send + 'static,
    F: FnOnce(WriteContext<'_>) -> Result<T, SqlError> + Send + 'static,
{
    let (answer, answered) = oneshot::channel();
    let job = Job {
        work: Some(work),
        result: Err(StoreError::Closed),
        answer,
    };
    (Message::Write(Box::new(job)), answered)
}

impl<T, F> PendingWrite for Job<T, F>
where
    T: Send,
    F: FnOnce(WriteContext<'_>) -> Result<T, SqlError> + Send,
{
    fn run(&mut self, context: WriteContext<'_>) -> Result<(), SqlError> {
        if let Some(work) = self.work.take() {
            self.result = Ok(work(context)?);
        }
        Ok(())
    }

    fn refuse(&mut self, error: StoreError) {
        self.result = Err(error);
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        // A caller that went away does not undo the write.
        let _ = self.answer.send(match committed {
            Ok(()) => self.result,
            Err(error) => Err(error),
        });
    }
}

enum Item {
    Write(Box<dyn PendingWrite>),
    Call(Box<QueuedCall>, Result<(), StoreError>),
}

pub(crate) struct Writer {
    pub(crate) path: Utf8PathBuf,
    pub(crate) connection: Connection,
    pub(crate) segments: SegmentWriter,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lock: RunLock,
    /// See [`fence`].
    pub(crate) epoch: i64,
    /// The totals of the tables, which each commit seals.
    pub(crate) sealing: Sealing,
    /// How far they are, for readers.
    pub(crate) reached: Arc<AtomicU64>,
    /// Why nothing is written any more, once somebody else has taken the run over.
    pub(crate) fenced: Option<StoreError>,
    /// `true` from a failed commit to the next that succeeds.
    pub(crate) failing: watch::Sender<bool>,
    /// Told after every commit that changed something.
    pub(crate) changes: ChangeSender,
    /// Only for waiting with a deadline.
    pub(crate) runtime: Runtime,
    pub(crate) batch: usize,
    pub(crate) linger: Duration,
    /// Told when lingering must end: somebody waits for a commit, or much has come.
    pub(crate) hurry: Arc<Notify>,
    pub(crate) conversations: Conversations,
    /// Calls that were accepted but whose commit failed; they go first in the next one.
    pub(crate) carried: Vec<QueuedCall>,
}

impl Writer {
    /// Works until the store is closed or dropped.
    pub(crate) fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut closing = None;
        while let Some(first) = queue.blocking_recv() {
            let mut batch = vec![first];
            self.gather(&mut queue, &mut batch);
            if let Some(answer) = self.commit(batch) {
                // Nothing new comes in; what was sent before is still written.
                queue.close();
                closing = Some(answer);
            }
        }
        let flushed = self.flush_carried();
        let Self {
            path,
            connection,
            lock,
            sealing,
            ..
        } = self;
        fold_wal(connection, &path);
        sealing.remember();
        drop(lock);
        if let Some(answer) = closing {
            let _ = answer.send(flushed);
        } else if let Err(error) = flushed {
            tracing::error!(%path, %error, "model calls were not recorded");
        }
    }

    /// Takes what is queued. When nobody waits for the commit, gives more calls a moment to come: a
    /// sync per call would only keep the disk busy. Each call wakes nobody meanwhile; waking this thread
    /// for it would cost as much as writing it.
    fn gather(&self, queue: &mut mpsc::Receiver<Message>, batch: &mut Vec<Message>) {
        self.forget_hurry();
        take_queued(queue, batch, self.batch);
        if batch.len() >= self.batch
            || batch.iter().any(is_awaited)
            || !self.carried.is_empty()
            || queue.is_closed()
        {
            return;
        }
        let hurry = self.hurry.notified();
        // Being told and running out of time come to the same.
        let _ = self
            .runtime
            .block_on(async { timeout(self.linger, hurry).await });
        take_queued(queue, batch, self.batch * CALLS_BEYOND_A_BATCH);
    }

    /// Who hurried until now is in the queue. The look ends with this function: a waiter that nobody polls any
    /// more would be given the next hurry in the place of the one that lingers.
    fn forget_hurry(&self) {
        let hurried = std::pin::pin!(self.hurry.notified());
        let _ = hurried.poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Commits a batch and answers it. Returns who asked for the end, if somebody did.
    fn commit(&mut self, batch: Vec<Message>) -> Option<Answer<()>> {
        let mut closing = None;
        let mut items: Vec<Item> = std::mem::take(&mut self.carried)
            .into_iter()
            .map(|call| Item::Call(Box::new(call), Ok(())))
            .collect();
        for message in batch {
            match message {
                Message::Write(write) => items.push(Item::Write(write)),
                Message::Call(call) => items.push(Item::Call(call, Ok(()))),
                Message::Close(answer) => closing = Some(answer),
            }
        }
        if items.is_empty() {
            return closing;
        }
        let changed_before = self.connection.total_changes();
        let committed = self.write_all(&mut items);
        if committed.is_ok() && self.connection.total_changes() != changed_before {
            self.changes.send();
        }
        if let Err(error) = &committed {
            self.undo();
            tracing::error!(path = %self.path, %error, writes = items.len(), "commit failed");
        }
        // Told before the answers: whoever hears of a failure must not find the store still fine.
        self.failing.send_if_modified(|failing| {
            std::mem::replace(failing, committed.is_err()) != committed.is_err()
        });
        for item in items {
            match item {
                Item::Write(write) => write.answer(committed.clone()),
                Item::Call(call, recorded) => self.answer_call(call, recorded, &committed),
            }
        }
        closing
    }

    fn answer_call(
        &mut self,
        mut call: Box<QueuedCall>,
        recorded: Result<(), StoreError>,
        committed: &Result<(), StoreError>,
    ) {
        match (call.answer.take(), committed) {
            (Some(answer), _) => {
                let _ = answer.send(committed.clone().and(recorded));
            }
            (None, Ok(())) => drop(call.room.take()),
            (None, Err(_)) => self.carried.push(*call),
        }
    }

    fn write_all(&mut self, items: &mut [Item]) -> Result<(), StoreError> {
        let Self {
            path,
            connection,
            segments,
            clock,
            conversations,
            lock,
            epoch,
            sealing,
            reached,
            fenced,
            ..
        } = self;
        if let Some(error) = fenced {
            return Err(error.clone());
        }
        let (path, connection) = (&*path, &*connection);
        let failed = |error: SqlError| error.into_store_error(path);
        execute(connection, "BEGIN IMMEDIATE").map_err(failed)?;
        // From here to the commit nobody else can take the run over. Before anything is touched: is it ours?
        lock.check_in_place()?;
        if let Err(error) = fence::check(connection, path, *epoch) {
            if matches!(error, StoreError::Fenced { .. }) {
                *fenced = Some(error.clone());
            }
            return Err(error);
        }
        let mut insertion = None;
        for item in items {
            match item {
                Item::Write(write) => {
                    let context = WriteContext {
                        connection,
                        conversations,
                        clock: clock.as_ref(),
                    };
                    write_one(write.as_mut(), context, &sealing.ledger, path).map_err(failed)?;
                }
                Item::Call(call, recorded) => {
                    let insert = match &mut insertion {
                        Some(insert) => insert,
                        none => none.insert(
                            calls::insertion(connection, sealing.authentication.key())
                                .map_err(failed)?,
                        ),
                    };
                    let outcome = calls::record(insert, segments, conversations, &call.call);
                    match outcome {
                        Ok(()) => {}
                        Err(CallFailure::Segments(error)) => return Err(error),
                        Err(CallFailure::Sql(error)) if error.concerns_one_write() => {
                            let error = failed(error);
                            tracing::error!(rollout = %call.call.rollout_id, %error, "a model call can't be recorded");
                            *recorded = Err(error);
                        }
                        Err(CallFailure::Sql(error)) => return Err(failed(error)),
                    }
                }
            }
        }
        drop(insertion);
        segments.sync()?;
        let seal = sealing.seal(connection).map_err(failed)?;
        execute(connection, "COMMIT").map_err(failed)?;
        sealing.committed(seal);
        reached.store(sealing.number(), Ordering::Release);
        Ok(())
    }

    /// Back to how it was before the batch.
    fn undo(&mut self) {
        // Some errors, a full disk among them, make SQLite roll back on its own.
        if !self.connection.is_autocommit()
            && let Err(error) = execute(&self.connection, "ROLLBACK")
        {
            tracing::error!(path = %self.path, %error, "rollback failed");
        }
        self.segments.discard_unsynced();
        self.sealing.undo();
        self.conversations.clear();
    }

    fn flush_carried(&mut self) -> Result<(), StoreError> {
        let mut items: Vec<Item> = std::mem::take(&mut self.carried)
            .into_iter()
            .map(|call| Item::Call(Box::new(call), Ok(())))
            .collect();
        if items.is_empty() {
            return Ok(());
        }
        let written = self.write_all(&mut items);
        if written.is_err() {
            self.undo();
        }
        written
    }
}

fn execute(connection: &Connection, sql: &'static str) -> Result<(), SqlError> {
    connection.prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// One write of the batch; what it did is undone alone when it alone is at fault.
fn write_one(
    write: &mut dyn PendingWrite,
    context: WriteContext<'_>,
    ledger: &Ledger,
    path: &Utf8PathBuf,
) -> Result<(), SqlError> {
    let connection = context.connection;
    execute(connection, "SAVEPOINT one")?;
    let before = ledger.totals();
    // What was read or replaced must be what was written.
    let written = write
        .run(context)
        .and_then(|()| Ok(ledger.take_altered(path)?));
    match written {
        Ok(()) => {}
        Err(error) if error.concerns_one_write() => {
            execute(connection, "ROLLBACK TO one")?;
            ledger.set_totals(before);
            // Of a write that failed before it was looked at.
            let _ = ledger.take_altered(path);
            write.refuse(error.into_store_error(path));
        }
        Err(error) => return Err(error),
    }
    execute(connection, "RELEASE one")
}

/// Takes what has come, up to `most` in all or to where the end was asked for.
fn take_queued(queue: &mut mpsc::Receiver<Message>, batch: &mut Vec<Message>, most: usize) {
    while batch.len() < most
        && !batch.last().is_some_and(closes)
        && let Ok(next) = queue.try_recv()
    {
        batch.push(next);
    }
}

fn closes(message: &Message) -> bool {
    matches!(message, Message::Close(_))
}

/// Whether somebody waits for its commit.
pub(crate) fn is_awaited(message: &Message) -> bool {
    match message {
        Message::Write(_) | Message::Close(_) => true,
        Message::Call(call) => call.answer.is_some(),
    }
}

/// Moves the log into the database, so that `run.db` alone is complete. A failure loses nothing: the
/// log stays, and is read with the database.
fn fold_wal(connection: Connection, path: &Utf8PathBuf) {
    let folded = connection
        .busy_timeout(Duration::from_secs(1))
        .and_then(|()| {
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
                row.get::<_, bool>(0)
            })
        });
    match folded {
        Ok(false) => {}
        Ok(true) => tracing::info!(%path, "somebody reads the run; its log stays beside it"),
        Err(error) => tracing::warn!(%path, %error, "the log could not be moved into the database"),
    }
    if let Err((_, error)) = connection.close() {
        tracing::warn!(%path, %error, "the database did not close");
    }
}
