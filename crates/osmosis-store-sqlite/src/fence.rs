//! Who writes: one row in the database with a number, the epoch, that goes up with every opening for writing.
//! Every transaction of a writer begins with a look at it. One that finds another epoch than its own is no
//! longer the writer, whatever locks it holds, and stops before it has touched a byte.

use camino::Utf8Path;
use osmosis_store::{Holder, StoreError};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior, params};

use crate::sql::{SqlError, sqlite_error};

/// Takes the run over; the epoch that is ours from now on.
pub(crate) fn take(
    connection: &mut Connection,
    path: &Utf8Path,
    holder: &Holder,
) -> Result<i64, StoreError> {
    let failed = |error: &rusqlite::Error| sqlite_error(path, error);
    let holder =
        serde_json::to_string(holder).map_err(|error| StoreError::refused(error.to_string()))?;
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|error| failed(&error))?;
    let epoch = transaction
        .query_row(
            "UPDATE writer SET epoch = epoch + 1, holder = ?1 RETURNING epoch",
            params![holder],
            |row| row.get(0),
        )
        .map_err(|error| failed(&error))?;
    transaction.commit().map_err(|error| failed(&error))?;
    Ok(epoch)
}

/// Fails when somebody else has taken the run over. Inside a transaction that writes, so that nobody can do
/// that before it ends.
pub(crate) fn check(connection: &Connection, path: &Utf8Path, ours: i64) -> Result<(), StoreError> {
    let found = || -> Result<(i64, String), SqlError> {
        Ok(connection
            .prepare_cached("SELECT epoch, holder FROM writer")?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?)
    };
    let (epoch, holder) = found().map_err(|error| error.into_store_error(path))?;
    if epoch == ours {
        return Ok(());
    }
    let by = serde_json::from_str::<Holder>(&holder).map_or_else(
        |_| "another process".to_owned(),
        |holder| holder.to_string(),
    );
    Err(StoreError::Fenced {
        path: path.to_owned(),
        by,
    })
}

/// The last process that opened the run for writing, as far as the database tells.
pub(crate) fn last_holder(database: &Utf8Path) -> Option<Holder> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(database, flags).ok()?;
    let holder: String = connection
        .query_row("SELECT holder FROM writer", [], |row| row.get(0))
        .optional()
        .ok()??;
    serde_json::from_str(&holder).ok()
}
