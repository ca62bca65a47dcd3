//! [`SqliteStore`]: opening a run, handing writes to the writer and reads to the readers.

mod api;
#[cfg(test)]
mod failing_tests;

use std::ops::Deref;
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::encoding::Conversations;
use osmosis_store::{
    ChangeSender, Changes, Clock, Holder, KeyFolder, NewCall, Store, StoreError, SystemClock,
};
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};

use crate::authentic::{self, Sealing};
use crate::bodies::OwnedBodySource;
use crate::lock::{self, RunLock};
use crate::private::{create_private_file, create_private_folder};
use crate::reader::Readers;
use crate::segment::{SEGMENTS_FOLDER, SegmentWriter};
use crate::sql::{SqlError, sqlite_error};
use crate::watched::Watched;
use crate::writer::{CALLS_BEYOND_A_BATCH, Message, QueuedCall, WriteContext, Writer, is_awaited};
use crate::{calls, checksum, fence, schema, segment, verify, writer};

pub(crate) const DATABASE_FILE: &str = "run.db";

/// A database up to this size is read through before it is written to again: some 4 seconds at most, where a run of
/// that size took hours to make.
const CHECKED_WHOLE_BYTES: u64 = 256 * 1024 * 1024;

/// The memory that calls may take while they wait to be written, in kilobytes.
const ROOM_FOR_CALLS_KB: u32 = 64 * 1024;

/// How long dropping a store waits for what was queued.
const DROP_GRACE: Duration = Duration::from_secs(5);

/// How a run's store works; the default is right for a run.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    pub clock: Arc<dyn Clock>,
    /// What this process is, for whoever finds the run held.
    pub command: String,
    /// Writes that are committed together at most.
    pub batch: usize,
    /// Writes that may wait; more wait outside.
    pub queue: usize,
    /// A segment that has this many bytes is followed by another.
    pub segment_bytes: u64,
    /// How long model calls may wait for others when no write waits with them.
    pub linger: Duration,
    /// A database up to this size is checked whole, rows and structure, when it is opened for writing; a larger one
    /// only where that costs nothing.
    pub checked_whole_bytes: u64,
    /// What records are authenticated with; with none, they are not.
    pub keys: KeyFolder,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::new()),
            command: Holder::command_line(),
            batch: 64,
            queue: 1024,
            segment_bytes: 64 * 1024 * 1024,
            linger: Duration::from_millis(50),
            checked_whole_bytes: CHECKED_WHOLE_BYTES,
            keys: KeyFolder::none(),
        }
    }
}

/// A run in a folder of its own, in SQLite and append-only segments.
///
/// One process at a time may write; others may read meanwhile. It is used as the [`Store`] it dereferences to, without
/// an import of each of the traits.
#[derive(Debug)]
pub struct SqliteStore {
    database: Utf8PathBuf,
    segments: Utf8PathBuf,
    /// `None` for a store that only reads.
    writer: Option<WriterHandle>,
    /// Of a store that only reads, once somebody has asked for changes.
    watched: Mutex<Option<Watched>>,
    readers: Readers,
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
    changes: Changes,
    /// Disconnected when the writer has ended.
    ended: Mutex<std_mpsc::Receiver<()>>,
}

impl SqliteStore {
    /// Opens the run for writing, and makes it when it isn't there. `Held` when another process has
    /// it, `Damaged` when its files are not as they were written. What a crash left torn is cut off.
    pub fn open(folder: &Utf8Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let is_run = |folder: &Utf8Path| folder.join(DATABASE_FILE).exists();
        create_private_folder(folder, is_run).map_err(|error| StoreError::io(folder, &error))?;
        let database = folder.join(DATABASE_FILE);
        let segments = folder.join(SEGMENTS_FOLDER);
        let holder = Holder::this_process(options.clock.now_ms(), &options.command);
        let lock = RunLock::take(folder, &holder, || fence::last_holder(&database))?;
        // SQLite makes the files beside it like the database itself.
        create_private_file(&database).map_err(|error| StoreError::io(&database, &error))?;
        verify::before_writing(&database, &options.keys, options.checked_whole_bytes)?;
        let mut connection = connect(&database).map_err(|error| sqlite_error(&database, &error))?;
        schema::migrate(&mut connection, &database)?;
        let authentication = authentic::identify_to_write(&connection, &database, &options.keys)?;
        let sealing = Sealing::open(&connection, &database, authentication)?;
        let epoch = fence::take(&mut connection, &database, &holder)?;
        let referenced = calls::referenced_end(&connection)
            .map_err(|error| error.into_store_error(&database))?;
        let segment_writer =
            SegmentWriter::open(segments.clone(), options.segment_bytes, referenced)?;
        segment::sync_folder(folder)?;
        let readers = Readers::open(database.clone(), &options.keys)?;

        let (queue, queued) = mpsc::channel(options.queue.max(1));
        let (failing_sender, failing) = watch::channel(false);
        let (change_sender, changes) = ChangeSender::new();
        let hurry = Arc::new(Notify::new());
        let worth_writing =
            (options.batch.max(1) * CALLS_BEYOND_A_BATCH).min(options.queue.max(2) / 2);
        let (ended_sender, ended) = std_mpsc::channel();
        let thread_failed = |error: std::io::Error| StoreError::io(folder, &error);
        let writer = Writer {
            path: database.clone(),
            connection,
            segments: segment_writer,
            clock: options.clock,
            lock,
            epoch,
            sealing,
            reached: readers.reached(),
            fenced: None,
            failing: failing_sender,
            changes: change_sender,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .map_err(thread_failed)?,
            batch: options.batch.max(1),
            linger: options.linger,
            hurry: Arc::clone(&hurry),
            conversations: Conversations::default(),
            carried: Vec::new(),
        };
        std::thread::Builder::new()
            .name("osmosis-store".to_owned())
            .spawn(move || {
                writer.run(queued);
                drop(ended_sender);
            })
            .map_err(thread_failed)?;
        Ok(Self {
            database,
            segments,
            writer: Some(WriterHandle {
                queue,
                hurry,
                worth_writing,
                room: Arc::new(Semaphore::new(ROOM_FOR_CALLS_KB as usize)),
                failing,
                changes,
                ended: Mutex::new(ended),
            }),
            watched: Mutex::new(None),
            readers,
        })
    }

    /// Opens the run for reading alone, also while another process writes to it. Takes no lock and
    /// writes nothing; every write fails. With a key, whatever is read is compared with what was written.
    pub fn open_read_only(folder: &Utf8Path, keys: &KeyFolder) -> Result<Self, StoreError> {
        let database = folder.join(DATABASE_FILE);
        Ok(Self {
            readers: Readers::open(database.clone(), keys)?,
            database,
            segments: folder.join(SEGMENTS_FOLDER),
            writer: None,
            watched: Mutex::new(None),
        })
    }

    /// Whether there is a run in `folder`.
    pub fn is_in(folder: &Utf8Path) -> bool {
        folder.join(DATABASE_FILE).is_file()
    }

    /// The living process that writes to the run in `folder`, if there is one. Costs two `open`s.
    pub fn holder(folder: &Utf8Path) -> Option<Holder> {
        let known = || fence::last_holder(&folder.join(DATABASE_FILE));
        lock::holder(folder, known).unwrap_or_else(|error| {
            tracing::debug!(%error, "the holder of a run is unknown");
            None
        })
    }

    /// What reads of bodies need.
    fn bodies(&self) -> OwnedBodySource {
        OwnedBodySource {
            segments: self.segments.clone(),
            key: self.readers.authentication().key().cloned(),
        }
    }

    fn writer(&self) -> Result<&WriterHandle, StoreError> {
        self.writer.as_ref().ok_or_else(|| StoreError::Io {
            path: self.database.clone(),
            message: "the run was opened for reading only".to_owned(),
            full: false,
        })
    }

    /// Queues a write and waits until it is durable. Once queued, it is done even when the caller
    /// stops waiting.
    async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(WriteContext<'_>) -> Result<T, SqlError> + Send + 'static,
    {
        let (message, answered) = writer::job(work);
        self.writer()?.send(message).await?;
        answered.await.map_err(|_| StoreError::Closed)?
    }
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
            room: None,
            answer: Some(answer),
        };
        self.send(Message::Call(Box::new(call))).await?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    async fn record_call(&self, call: NewCall) -> Result<(), StoreError> {
        let tokens: usize = call.tokens.iter().map(Bytes::len).sum();
        let bytes = call.request.len() + call.response.len() + tokens;
        let kilobytes = u32::try_from(bytes / 1024 + 1)
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
                    let call = QueuedCall { call, room: room.ok(), answer: None };
                    return self.send(Message::Call(Box::new(call))).await;
                }
                changed = failing.changed() => changed.map_err(|_| StoreError::Closed)?,
            }
        }
    }
}

impl Deref for SqliteStore {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        self
    }
}

/// Waits a bounded time for what was queued, so that the run can be opened again right away. Nothing
/// acknowledged depends on it.
impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.readers.drop_idle();
        if let Some(writer) = self.writer.take() {
            let WriterHandle {
                queue,
                ended,
                hurry,
                ..
            } = writer;
            drop(queue);
            hurry.notify_one();
            let _ = ended.into_inner().recv_timeout(DROP_GRACE);
        }
    }
}

pub(crate) fn connect(database: &Utf8Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(database)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // Fewer, larger moves of the log into the database: 16 MB each.
    connection.pragma_update(None, "wal_autocheckpoint", 4096)?;
    checksum::register(&connection)?;
    Ok(connection)
}
