//! Is the run as it was written? Everything is read, nothing is changed.
//!
//! What is checked, and what each finds: the header and the write-ahead log as bytes (`files`), SQLite's own check
//! of its pages and indexes, the layout of the tables against the version they claim, the checksum and the MAC of every row
//! (`database`), the totals that were sealed, counts that two tables must agree on (`counts`), and the checksum of every body that a call
//! refers to (`call_bodies`).

mod call_bodies;
pub(super) mod counts;
pub(super) mod database;

use camino::Utf8Path;
use osmosis_store::{Damage, KeyFolder, StoreError, VerifyProgress, VerifyReport};
use rusqlite::Connection;

use crate::authentic::{self, Authentication};
use crate::bodies::BodySource;
use crate::files::{self, LogEnd};
use crate::reader::{self, Access};
use crate::schema;
use crate::segment::SEGMENTS_FOLDER;
use crate::sql::sqlite_error;
use crate::store::{DATABASE_FILE, SqliteStore};

/// Counts bytes and tells.
struct Progress<'p> {
    tell: &'p mut dyn FnMut(VerifyProgress),
    done: u64,
    total: u64,
}

impl Progress<'_> {
    fn add(&mut self, bytes: u64) {
        self.done = self.done.saturating_add(bytes).min(self.total);
        (self.tell)(VerifyProgress {
            done: self.done,
            total: self.total,
        });
    }
}

impl SqliteStore {
    /// Checks everything in the folder of a run. Blocks; large runs take as long as reading them. An error only
    /// where there is no run, or it can't be read at all by this program; damage is in the report.
    pub fn verify(
        folder: &Utf8Path,
        keys: &KeyFolder,
        mut progress: impl FnMut(VerifyProgress),
    ) -> Result<VerifyReport, StoreError> {
        let report = Self::verify_once(folder, keys, &mut progress)?;
        if report.holder.is_none() && !report.is_whole() && Self::holder(folder).is_some() {
            // Somebody began to write meanwhile, and may have been taken for damage.
            return Self::verify_once(folder, keys, &mut progress);
        }
        Ok(report)
    }

    fn verify_once(
        folder: &Utf8Path,
        keys: &KeyFolder,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<VerifyReport, StoreError> {
        let path = folder.join(DATABASE_FILE);
        let database_bytes = match std::fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) => return Err(StoreError::io(&path, &error)),
        };
        let segments = folder.join(SEGMENTS_FOLDER);
        let mut progress = Progress {
            tell: progress,
            done: 0,
            total: 2 * database_bytes + call_bodies::bytes_in(&segments),
        };
        let mut report = VerifyReport {
            holder: Self::holder(folder),
            ..VerifyReport::default()
        };
        check_files(&path, &mut report)?;
        let connection = match open(&path, report.holder.is_some()) {
            Ok(connection) => connection,
            Err(error @ StoreError::SchemaVersion { .. }) if report.is_whole() => {
                return Err(error);
            }
            Err(error) => {
                report.add("database", error.to_string());
                return Ok(report);
            }
        };
        let authentication = identify(&connection, &path, keys, &mut report)?;
        let read = check_all(
            &connection,
            (&segments, authentication.as_ref()),
            database_bytes,
            &mut report,
            &mut progress,
        );
        if let Err(error) = read {
            report.add("database", error.to_string());
        }
        Ok(report)
    }
}

/// How the rows are authenticated; `None` where they must be and are not, which is a finding.
fn identify(
    connection: &Connection,
    path: &Utf8Path,
    keys: &KeyFolder,
    report: &mut VerifyReport,
) -> Result<Option<Authentication>, StoreError> {
    match authentic::identify(connection, path, keys) {
        Ok(found) => {
            report.authenticity = Some(found.state());
            Ok(Some(found))
        }
        Err(StoreError::Altered { records, .. }) => {
            for message in records {
                report.add_altered("database", message);
            }
            Ok(None)
        }
        Err(StoreError::Database { .. } | StoreError::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn check_all(
    connection: &Connection,
    (segments, authentication): (&Utf8Path, Option<&Authentication>),
    database_bytes: u64,
    report: &mut VerifyReport,
    progress: &mut Progress<'_>,
) -> rusqlite::Result<()> {
    // One state of the database, whatever is written meanwhile.
    let _snapshot = connection.unchecked_transaction()?;
    report.schema_version = Some(schema::version(connection)?);
    database::check_layout(connection, report)?;
    database::check_structure(connection, report);
    progress.add(database_bytes);
    let key = authentication.and_then(Authentication::key);
    database::check_rows(connection, key, report);
    progress.add(database_bytes);
    counts::check(connection, report);
    if let Some(authentication) = authentication {
        let least = authentication.least_number();
        for difference in authentic::seal_differences(connection, authentication, least)? {
            report.add_altered("database", difference);
        }
    }
    call_bodies::check(connection, BodySource { segments, key }, report, progress);
    Ok(())
}

/// A connection that only reads.
pub(super) fn open(path: &Utf8Path, held: bool) -> Result<Connection, StoreError> {
    let access = if !held && reader::has_no_log(path) {
        // Leaves nothing beside the database.
        Access::Immutable
    } else {
        Access::Shared
    };
    let connection = reader::connect(path, access).map_err(|error| sqlite_error(path, &error))?;
    schema::check_readable(&connection, path)?;
    Ok(connection)
}

fn check_files(path: &Utf8Path, report: &mut VerifyReport) -> Result<(), StoreError> {
    let failed = |error: std::io::Error| StoreError::io(path, &error);
    if let Err(fault) = files::check_header(path).map_err(failed)? {
        report.add("run.db", fault);
    }
    if report.holder.is_some() {
        return Ok(());
    }
    match files::check_log(path).map_err(failed)? {
        LogEnd::Whole => {}
        LogEnd::Torn => report.add(
            "run.db-wal",
            "the last transaction is not whole: a power cut before it was acknowledged, or damage",
        ),
        LogEnd::Damaged(fault) => report.add("run.db-wal", fault),
    }
    Ok(())
}

/// Refuses a run that is damaged, before anything is written to it. A database of at most `whole` bytes is read
/// through; of a larger one, what costs nothing is checked.
pub(super) fn before_writing(
    path: &Utf8Path,
    keys: &KeyFolder,
    whole: u64,
) -> Result<(), StoreError> {
    let failed = |error: std::io::Error| StoreError::io(path, &error);
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length == 0 {
        return Ok(());
    }
    let mut report = VerifyReport::default();
    if let Err(fault) = files::check_header(path).map_err(failed)? {
        report.add("run.db", fault);
    }
    match files::check_log(path).map_err(failed)? {
        LogEnd::Whole => {}
        LogEnd::Torn => {
            tracing::warn!(%path, "the last write was not finished; it was never acknowledged");
        }
        LogEnd::Damaged(fault) => report.add("run.db-wal", fault),
    }
    refuse(path, &report)?;
    let connection = match open(path, false) {
        Ok(connection) => connection,
        // A run that is only being made; a version we don't know is told by the migration.
        Err(StoreError::Io { .. } | StoreError::SchemaVersion { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    database::check_layout(&connection, &mut report).map_err(|error| sqlite_error(path, &error))?;
    if length <= whole {
        database::check_structure(&connection, &mut report);
        // Whether it may be without a key is decided by whoever opens it.
        let authentication = authentic::identify(&connection, path, keys).ok();
        let key = authentication.as_ref().and_then(Authentication::key);
        database::check_rows(&connection, key, &mut report);
    }
    refuse(path, &report)
}

fn refuse(path: &Utf8Path, report: &VerifyReport) -> Result<(), StoreError> {
    let Some(Damage { place, message }) = report.damage.first() else {
        return Ok(());
    };
    if report.altered == report.findings {
        let named = report.damage.iter().take(authentic::NAMED);
        let records: Vec<String> = named
            .map(|Damage { place, message }| format!("{place}: {message}"))
            .collect();
        return Err(StoreError::Altered {
            path: path.to_owned(),
            more: report.findings - records.len() as u64,
            records,
        });
    }
    let more = match report.findings {
        1 => String::new(),
        findings => format!(", and {} more", findings - 1),
    };
    Err(StoreError::damaged(
        path,
        format!("{place}: {message}{more}"),
    ))
}
