//! [`PostgresStore`]: opening a run, handing writes to the writer and reads to the readers.

mod api;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::future::BoxFuture;
use osmosis_store::encoding::Conversations;
use osmosis_store::{ChangeSender, Changes, Clock, Holder, NewCall, Store, StoreError};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::calls::CallIds;
use crate::connection::{Connection, Connector};
use crate::error::DbError;
use crate::pending::{self, Message, QueuedCall, call_bytes, is_awaited};
use crate::presence::{self, Part, Presence, Takeover, holder_text};
use crate::readers::{Readers, ReadersOf};
use crate::transaction::{Transaction, Writing};
use crate::writer::{CALLS_BEYOND_A_BATCH, Writer};

/// The memory that calls may take while they wait to be written, in kilobytes.
const ROOM_FOR_CALLS_KB: u32 = 64 * 1024;

/// How a run's store works; the default is right for a run.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// What counts leases, in tests. `None`, the default: the clock of the database, which all members of a run share.
    pub clock: Option<Arc<dyn Clock>>,
    /// What this process is, for whoever finds the run held.
    pub command: String,
    /// Writes that are committed together at most.
    pub batch: usize,
    /// Writes that may wait; more wait outside.
    pub queue: usize,
    /// How long model calls may wait for others when no write waits with them.
    pub linger: Duration,
    /// How long reads and writes wait for a database that can't be reached, before they fail.
    pub retry_for: Duration,
    /// Between two signs of life.
    pub presence_every: Duration,
    /// A member that was silent for so long is taken for dead: a controller can be taken over, and the leases of a node
    /// are not waited for.
    pub silent_after: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            clock: None,
            command: Holder::command_line(),
            batch: 64,
            queue: 1024,
            linger: Duration::from_millis(50),
            retry_for: Duration::from_mins(1),
            presence_every: Duration::from_secs(5),
            silent_after: Duration::from_secs(30),
        }
    }
}

/// A run in a database, open.
///
/// One process at a time may control it; others may join it as nodes, or read. It is used as the [`Store`] it
/// dereferences to, without an import of each of the traits.
#[derive(Debug)]
pub struct PostgresStore {
    pub(crate) run_id: i32,
    pub(crate) member_id: i64,
    pub(crate) part: Part,
    pub(crate) readers: Readers,
    /// For tests; otherwise the database's clock counts.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) silent_after: Duration,
    /// `None` for a store that only reads.
    writer: Option<WriterHandle>,
    changes: Mutex<Option<Changes>>,
    /// To begin to listen when a reader is asked for changes.
    runtime: Handle,
    every: Duration,
    /// Ends the session of the run.
    stop: CancellationToken,
    session: Mutex<Option<JoinHandle<Option<Connection>>>>,
}

#[derive(Debug)]
struct WriterHandle {
    queue: mpsc::Sender<Message>,
    /// Ends the writer's lingering.
    hurry: Arc<Notify>,
    /// So much in the queue is worth writing at once.
    worth_writing: usize,
    room: Arc<Semaphore>,
    failing: watch::Receiver<bool>,
    ended: Mutex<Option<JoinHandle<()>>>,
}

impl PostgresStore {
    /// Takes control of a run. `Held` when another process has it.
    pub(crate) async fn control(
        connector: Connector,
        options: &PostgresOptions,
        run_id: i32,
    ) -> Result<Self, StoreError> {
        let shown = connector.shown().to_owned();
        let failed = |error: DbError| error.into_store_error(&shown);
        let holder = Holder::this_process(osmosis_core::clock::now_ms(), &options.command);
        let holder = holder_text(&holder)?;
        let (connection, notifications) = connector.connect_and_listen().await.map_err(failed)?;
        let silent = options.silent_after.as_secs_f64();
        let taken = presence::take_over(&connection, run_id, &holder, silent)
            .await
            .map_err(failed)?;
        let epoch = match taken {
            Takeover::Taken(epoch) => epoch,
            Takeover::Held => {
                let by = holder_of(&connection, run_id).await.map_err(failed)?;
                return Err(StoreError::Held {
                    path: shown.clone().into(),
                    holder: by.unwrap_or_else(Holder::unknown).to_string(),
                });
            }
            Takeover::Missing => {
                return Err(StoreError::Moved {
                    path: shown.clone().into(),
                });
            }
        };
        let part = Part::Controller { epoch };
        let session = (connection, notifications);
        Self::begin(connector, options, run_id, part, &holder, session).await
    }

    /// Joins a run as one of its nodes.
    pub(crate) async fn join(
        connector: Connector,
        options: &PostgresOptions,
        run_id: i32,
    ) -> Result<Self, StoreError> {
        let holder = Holder::this_process(osmosis_core::clock::now_ms(), &options.command);
        let holder = holder_text(&holder)?;
        let session = connector.connect_and_listen().await;
        let session = session.map_err(|error| error.into_store_error(connector.shown()))?;
        Self::begin(connector, options, run_id, Part::Node, &holder, session).await
    }

    async fn begin(
        connector: Connector,
        options: &PostgresOptions,
        run_id: i32,
        part: Part,
        holder: &str,
        (connection, notifications): (Connection, mpsc::Receiver<tokio_postgres::Notification>),
    ) -> Result<Self, StoreError> {
        let shown = connector.shown().to_owned();
        let failed = |error: DbError| error.into_store_error(&shown);
        let (kind, epoch) = match part {
            Part::Controller { epoch } => ("controller", Some(epoch)),
            Part::Node | Part::Reader => ("node", None),
        };
        let member_id = presence::join(&connection, run_id, kind, holder)
            .await
            .map_err(failed)?;
        presence::listen(&connection, run_id)
            .await
            .map_err(failed)?;

        let (queue, queued) = mpsc::channel(options.queue.max(1));
        let (failing_sender, failing) = watch::channel(false);
        let (fenced, _) = watch::channel(None);
        let (change_sender, changes) = ChangeSender::new();
        let change_sender = Arc::new(change_sender);
        let hurry = Arc::new(Notify::new());
        let to_announce = Arc::new(Notify::new());
        let commits = Arc::new(AtomicU64::new(0));
        let stop = CancellationToken::new();
        let worth_writing =
            (options.batch.max(1) * CALLS_BEYOND_A_BATCH).min(options.queue.max(2) / 2);
        let writer = Writer {
            connector: connector.clone(),
            connection: None,
            lost: None,
            writing: Writing {
                run_id,
                member_id,
                epoch,
                clock: options.clock.clone(),
                silent_seconds: options.silent_after.as_secs_f64(),
                shown: shown.clone(),
            },
            fenced: fenced.clone(),
            failing: failing_sender,
            changes: Arc::clone(&change_sender),
            to_announce: Arc::clone(&to_announce),
            commits: Arc::clone(&commits),
            batch: options.batch.max(1),
            linger: options.linger,
            retry_for: options.retry_for,
            hurry: Arc::clone(&hurry),
            conversations: Conversations::default(),
            call_ids: CallIds::default(),
            next_commit: 1,
            carried: Vec::new(),
        };
        let presence = Presence {
            connector: connector.clone(),
            run_id,
            member_id,
            part,
            changes: change_sender,
            commits,
            fenced,
            to_announce,
            every: options.presence_every,
            stop: stop.clone(),
        };
        let tasks = connector.tasks().clone();
        let ended = tasks.spawn(writer.run(queued));
        let session = tasks.spawn(presence.run(connection, notifications));
        Ok(Self {
            run_id,
            member_id,
            part,
            readers: Readers::new(connector, readers_of(part), options.retry_for),
            clock: options.clock.clone(),
            silent_after: options.silent_after,
            writer: Some(WriterHandle {
                queue,
                hurry,
                worth_writing,
                room: Arc::new(Semaphore::new(ROOM_FOR_CALLS_KB as usize)),
                failing,
                ended: Mutex::new(Some(ended)),
            }),
            changes: Mutex::new(Some(changes)),
            runtime: Handle::current(),
            every: options.presence_every,
            stop,
            session: Mutex::new(Some(session)),
        })
    }

    /// Opens a run for reading alone.
    pub(crate) fn read_only(connector: Connector, options: &PostgresOptions, run_id: i32) -> Self {
        Self {
            run_id,
            member_id: 0,
            part: Part::Reader,
            readers: Readers::new(connector, ReadersOf::Few, options.retry_for),
            clock: options.clock.clone(),
            silent_after: options.silent_after,
            writer: None,
            changes: Mutex::new(None),
            runtime: Handle::current(),
            every: options.presence_every,
            stop: CancellationToken::new(),
            session: Mutex::new(None),
        }
    }

    /// Begins to listen. Where that takes several tries, whoever waits is told to look when it has succeeded.
    fn watch(&self) -> Changes {
        let (sender, changes) = ChangeSender::new();
        if self.stop.is_cancelled() {
            return changes;
        }
        let (fenced, _) = watch::channel(None);
        let mut presence = Presence {
            connector: self.readers.connector().clone(),
            run_id: self.run_id,
            member_id: self.member_id,
            part: self.part,
            changes: Arc::new(sender),
            commits: Arc::new(AtomicU64::new(0)),
            fenced,
            to_announce: Arc::new(Notify::new()),
            every: self.every,
            stop: self.stop.clone(),
        };
        let stop = self.stop.clone();
        let tasks = self.readers.connector().tasks();
        let session = tasks.spawn_on(
            async move {
                let session = tokio::select! {
                    session = presence.connect_again() => session?,
                    () = stop.cancelled() => return None,
                };
                presence.run(session.0, session.1).await
            },
            &self.runtime,
        );
        *self.session.lock() = Some(session);
        changes
    }

    fn writer(&self) -> Result<&WriterHandle, StoreError> {
        self.writer.as_ref().ok_or_else(|| {
            StoreError::refused(format!(
                "`{}`: the run was opened for reading only",
                self.readers.connector().shown()
            ))
        })
    }

    /// Queues a write and waits until it is durable. Once queued, it is done even when the caller
    /// stops waiting.
    pub(crate) async fn write<D, T, F>(&self, data: D, work: F) -> Result<T, StoreError>
    where
        D: Send + Sync + 'static,
        T: Send + Sync + 'static,
        F: for<'a> Fn(&'a Transaction<'_>, &'a D) -> BoxFuture<'a, Result<T, DbError>>
            + Send
            + Sync
            + 'static,
    {
        let (message, answered) = pending::job(data, work);
        self.writer()?.send(message).await?;
        answered.await.map_err(|_| StoreError::Closed)?
    }
}

fn readers_of(part: Part) -> ReadersOf {
    match part {
        Part::Node => ReadersOf::One,
        Part::Controller { .. } | Part::Reader => ReadersOf::Few,
    }
}

/// The process that controls a run, as it said.
pub(crate) async fn holder_of(
    connection: &Connection,
    run_id: i32,
) -> Result<Option<Holder>, DbError> {
    let row = connection
        .query_optional(
            "SELECT holder FROM osmosis.runs WHERE run_id = $1",
            &[&run_id],
        )
        .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let holder: Option<String> = row.try_get(0)?;
    Ok(holder.and_then(|text| serde_json::from_str(&text).ok()))
}

impl WriterHandle {
    async fn send(&self, message: Message) -> Result<(), StoreError> {
        let awaited = is_awaited(&message);
        self.queue
            .send(message)
            .await
            .map_err(|_| StoreError::Closed)?;
        let queued = self.queue.max_capacity() - self.queue.capacity();
        if awaited || queued >= self.worth_writing {
            self.hurry.notify_one();
        }
        Ok(())
    }

    /// Takes no room: whoever waits for the commit holds the call's memory in any case.
    async fn record_call_durably(&self, call: NewCall) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        let call = QueuedCall {
            call,
            call_id: None,
            room: None,
            answer: Some(answer),
        };
        self.send(Message::Call(Box::new(call))).await?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    async fn record_call(&self, call: NewCall) -> Result<(), StoreError> {
        let kilobytes = u32::try_from(call_bytes(&call) / 1024 + 1)
            .unwrap_or(u32::MAX)
            .min(ROOM_FOR_CALLS_KB);
        let mut failing = self.failing.clone();
        loop {
            if *failing.borrow_and_update() {
                // Calls that can't be written must not pile up unseen: this one waits for the commit.
                return self.record_call_durably(call).await;
            }
            tokio::select! {
                room = Arc::clone(&self.room).acquire_many_owned(kilobytes) => {
                    let call = QueuedCall { call, call_id: None, room: room.ok(), answer: None };
                    return self.send(Message::Call(Box::new(call))).await;
                }
                changed = failing.changed() => changed.map_err(|_| StoreError::Closed)?,
            }
        }
    }
}

impl Deref for PostgresStore {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        self
    }
}

/// What was queued is still written while the runtime lives; then the session ends, and with it the hold of the run.
impl Drop for PostgresStore {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            let ended = writer.ended.lock().take();
            drop(writer);
            let stop = self.stop.clone();
            if let Some(ended) = ended {
                let tasks = self.readers.connector().tasks();
                tasks.spawn_on(
                    async move {
                        let _ = ended.await;
                        stop.cancel();
                    },
                    &self.runtime,
                );
                return;
            }
        }
        self.stop.cancel();
    }
}
