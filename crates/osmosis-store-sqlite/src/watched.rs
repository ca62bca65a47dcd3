//! Changes that another process makes. SQLite reports none across processes, so its counter of commits is read
//! several times a second, on a thread that lives while somebody has asked for changes.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use osmosis_store::{ChangeSender, Changes, StoreError};
use rusqlite::Connection;

use crate::reader::Readers;

/// How soon a change is noticed. Reading the counter takes some microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Word of the changes in a run that was opened for reading alone.
#[derive(Debug)]
pub(crate) struct Watched {
    changes: Changes,
    /// Dropped to end the thread.
    _stop: Option<mpsc::Sender<()>>,
}

impl Watched {
    /// Begins to watch; if that can't be done, the changes end at once.
    pub(crate) fn begin(readers: &Readers) -> Self {
        Self::try_begin(readers).unwrap_or_else(|error| {
            tracing::warn!(%error, "changes of the run are not seen");
            Self::ended()
        })
    }

    /// Of a store that is closed.
    pub(crate) fn ended() -> Self {
        let (_, changes) = ChangeSender::new();
        Self {
            changes,
            _stop: None,
        }
    }

    pub(crate) fn changes(&self) -> Changes {
        self.changes.from_now()
    }

    fn try_begin(readers: &Readers) -> Result<Self, StoreError> {
        let connection = readers.another()?;
        let commits = commits(&connection)
            .map_err(|error| crate::sql::sqlite_error(readers.path(), &error))?;
        let (sender, changes) = ChangeSender::new();
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new()
            .name("osmosis-store-watch".to_owned())
            .spawn(move || watch(&connection, commits, &sender, &stopped))
            .map_err(|error| StoreError::io(readers.path(), &error))?;
        Ok(Self {
            changes,
            _stop: Some(stop),
        })
    }
}

/// Until it is stopped, or the database can't be read any more.
fn watch(
    connection: &Connection,
    mut seen: i64,
    sender: &ChangeSender,
    stopped: &mpsc::Receiver<()>,
) {
    while stopped.recv_timeout(LOOK_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
        match commits(connection) {
            Ok(commits) if commits == seen => {}
            Ok(commits) => {
                seen = commits;
                sender.send();
            }
            Err(error) => {
                tracing::debug!(%error, "the run is watched no more");
                return;
            }
        }
    }
}

/// A number that is another one after every commit of another connection.
fn commits(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("PRAGMA data_version")?
        .query_row([], |row| row.get(0))
}
