//! Connections that only read. They see every acknowledged write and never wait for the writer.

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::{KeyFolder, StoreError};
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::Semaphore;

use crate::authentic::{self, Authentication, Ledger};
use crate::schema;
use crate::sql::{SqlError, sqlite_error};

/// Reads that may go on at once.
const READERS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Readers {
    path: Utf8PathBuf,
    access: Access,
    /// The file itself: another one may come to be at its path.
    file: Option<(u64, u64)>,
    slots: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<ReadConnection>>>,
    authentication: Arc<Authentication>,
    /// The seal that the run has reached, as far as this process knows.
    reached: Arc<AtomicU64>,
}

/// A connection whose reads are compared with the MACs of rows, and what it found.
#[derive(Debug)]
struct ReadConnection {
    connection: Connection,
    ledger: Ledger,
}

/// Whether rows that are missing would be noticed: see [`crate::authentic`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// What is read is named one by one.
    Some,
    /// All there is.
    All,
}

/// How a file may be opened that must not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Shared,
    /// Nobody writes to it and nothing can be created beside it.
    Immutable,
}

impl Readers {
    /// Opens a first connection, so that what is wrong with the file is known now.
    pub(crate) fn open(path: Utf8PathBuf, keys: &KeyFolder) -> Result<Self, StoreError> {
        if !path.exists() {
            return Err(StoreError::Io {
                message: "there is no run here".to_owned(),
                path,
                full: false,
            });
        }
        let (access, first) = match connect(&path, Access::Shared) {
            Ok(connection) => (Access::Shared, connection),
            Err(error) if needs_immutable(&error) && has_no_log(&path) => {
                let connection = connect(&path, Access::Immutable)
                    .map_err(|error| sqlite_error(&path, &error))?;
                (Access::Immutable, connection)
            }
            Err(error) => return Err(sqlite_error(&path, &error)),
        };
        schema::check_readable(&first, &path)?;
        let authentication = authentic::identify(&first, &path, keys)?;
        let reached = authentication.least_number();
        let first = prepared(first, &path, &authentication)?;
        Ok(Self {
            file: file_at(&path),
            path,
            access,
            slots: Arc::new(Semaphore::new(READERS as usize)),
            idle: Arc::new(Mutex::new(vec![first])),
            authentication: Arc::new(authentication),
            reached: Arc::new(AtomicU64::new(reached)),
        })
    }

    /// Reads what is named one by one.
    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, SqlError> + Send + 'static,
    {
        self.read_some_or_all(Reading::Some, work).await
    }

    /// Reads all of something: that nothing is missing, and nothing older than it must be, is checked too.
    pub(crate) async fn read_all<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, SqlError> + Send + 'static,
    {
        self.read_some_or_all(Reading::All, work).await
    }

    async fn read_some_or_all<T, F>(&self, reading: Reading, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, SqlError> + Send + 'static,
    {
        let slot = Arc::clone(&self.slots)
            .acquire_owned()
            .await
            .map_err(|_| StoreError::Closed)?;
        let (path, access, idle) = (self.path.clone(), self.access, Arc::clone(&self.idle));
        let file = self.file;
        let authentication = Arc::clone(&self.authentication);
        let reached = self.reached.load(Ordering::Acquire);
        let task = tokio::task::spawn_blocking(move || {
            let idle_one = idle.lock().pop();
            let reader = match idle_one {
                Some(reader) => reader,
                None => prepared(connect_to(&path, access, file)?, &path, &authentication)?,
            };
            let found = match reading {
                Reading::Some => work(&reader.connection),
                Reading::All => whole(&reader.connection, &path, &authentication, reached, work),
            };
            // Before anything else: what was read of rows that somebody else wrote must not be used.
            let altered = reader.ledger.take_altered(&path);
            let found = altered.and(found.map_err(|error| error.into_store_error(&path)));
            idle.lock().push(reader);
            drop(slot);
            found
        });
        task.await
            .map_err(|error| StoreError::refused(format!("a read did not finish: {error}")))?
    }

    /// A connection beside those that read.
    pub(crate) fn another(&self) -> Result<Connection, StoreError> {
        connect_to(&self.path, self.access, self.file)
    }

    pub(crate) fn authentication(&self) -> &Authentication {
        &self.authentication
    }

    /// Where the writer of this process notes how far it has come.
    pub(crate) fn reached(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.reached)
    }

    pub(crate) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Waits for the reads that go on, then closes every connection.
    pub(crate) async fn close(&self) {
        let all = self.slots.acquire_many(READERS).await;
        self.slots.close();
        drop(all);
        self.drop_idle();
    }

    /// Closes the connections that nobody uses.
    pub(crate) fn drop_idle(&self) {
        let connections = std::mem::take(&mut *self.idle.lock());
        drop(connections);
    }
}

/// In one snapshot with the totals.
fn whole<T>(
    connection: &Connection,
    path: &Utf8Path,
    authentication: &Authentication,
    reached: u64,
    work: impl FnOnce(&Connection) -> Result<T, SqlError>,
) -> Result<T, SqlError> {
    if authentication.identity.is_err() {
        return work(connection);
    }
    let _snapshot = connection.unchecked_transaction()?;
    authentic::check_seal(connection, path, authentication, reached)?;
    work(connection)
}

fn prepared(
    connection: Connection,
    path: &Utf8Path,
    authentication: &Authentication,
) -> Result<ReadConnection, StoreError> {
    let ledger = authentic::prepare_to_read(&connection, authentication.key())
        .map_err(|error| sqlite_error(path, &error))?;
    Ok(ReadConnection { connection, ledger })
}

/// A connection to the file that was opened first, and to no other that is at its path now.
fn connect_to(
    path: &Utf8Path,
    access: Access,
    file: Option<(u64, u64)>,
) -> Result<Connection, StoreError> {
    if file_at(path) != file {
        return Err(StoreError::Moved {
            path: path.to_owned(),
        });
    }
    connect(path, access).map_err(|error| sqlite_error(path, &error))
}

fn file_at(path: &Utf8Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

pub(super) fn connect(path: &Utf8Path, access: Access) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match access {
        Access::Shared => Connection::open_with_flags(path, flags)?,
        Access::Immutable => {
            Connection::open_with_flags(immutable_uri(path), flags | OpenFlags::SQLITE_OPEN_URI)?
        }
    };
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(64);
    // Nothing is read from the file before the first query, so errors would show up later.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    schema::read_as_known(&connection)?;
    Ok(connection)
}

fn needs_immutable(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly)
    )
}

/// Whether the file is complete without a write-ahead log beside it.
pub(super) fn has_no_log(path: &Utf8Path) -> bool {
    std::fs::metadata(format!("{path}-wal")).is_ok_and(|log| log.len() == 0)
        || !Utf8PathBuf::from(format!("{path}-wal")).exists()
}

fn immutable_uri(path: &Utf8Path) -> String {
    let mut uri = String::from("file:");
    for character in path.as_str().chars() {
        match character {
            '%' => uri.push_str("%25"),
            '?' => uri.push_str("%3f"),
            '#' => uri.push_str("%23"),
            other => uri.push(other),
        }
    }
    uri.push_str("?immutable=1");
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_nobody_writes_is_read_without_anything_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        // Characters that mean something in a URI.
        let folder = Utf8PathBuf::try_from(folder.path().join("50% a?b#c")).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("run.db");
        let database = Connection::open(&path).unwrap();
        database
            .execute_batch(
                "PRAGMA journal_mode = WAL; CREATE TABLE t (x); INSERT INTO t VALUES (7)",
            )
            .unwrap();
        database.close().unwrap();
        let reader = connect(&path, Access::Immutable).unwrap();
        let x: i64 = reader
            .query_row("SELECT x FROM t", [], |row| row.get(0))
            .unwrap();
        assert_eq!(x, 7);
        let files: Vec<_> = folder
            .read_dir_utf8()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_owned())
            .collect();
        assert_eq!(files, ["run.db"]);
    }
}
