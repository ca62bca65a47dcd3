//! Opens a damaged database. Its first pages say where every table is: if they are damaged, nothing can be read. But
//! they are the same in every run of a version that was made anew, so a copy of the database is given the pages of
//! such a run. A damaged log is moved into the copy page by page; what is wrong in a page shows in its rows.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::StoreError;
use rusqlite::Connection;

use crate::files::{self, LogEnd};
use crate::sql::sqlite_error;
use crate::{schema, verify};

const PAGE: usize = 4096;

/// A database that can be read, and the copy that it is read from, if it is one.
pub(super) struct Opened {
    pub(super) connection: Connection,
    /// What is known to be lost already.
    pub(super) lost: Option<&'static str>,
    copy: Option<Utf8PathBuf>,
}

impl Opened {
    /// Closes it, and removes the copy.
    pub(super) fn remove(self) {
        let Self {
            connection, copy, ..
        } = self;
        drop(connection);
        if let Some(copy) = copy {
            for path in [
                copy.clone(),
                files::log_of(&copy),
                format!("{copy}-shm").into(),
            ] {
                let _ = fs::remove_file(path);
            }
        }
    }
}

pub(super) fn open(database: &Utf8Path, scratch: &Utf8Path) -> Result<Opened, StoreError> {
    let failed = |error: io::Error| StoreError::io(database, &error);
    let header_is_sound = files::check_header(database).map_err(failed)?.is_ok();
    let log = files::check_log(database).map_err(failed)?;
    let lost = (log == LogEnd::Torn).then_some("the last transaction in run.db-wal");
    let log_is_damaged = matches!(log, LogEnd::Damaged(_));
    if header_is_sound && !log_is_damaged {
        match verify::open(database, false) {
            Ok(connection) if has_tables(&connection) => {
                return Ok(Opened {
                    connection,
                    lost,
                    copy: None,
                });
            }
            Ok(_)
            | Err(
                StoreError::Damaged { .. }
                | StoreError::SchemaVersion { .. }
                | StoreError::Io { .. }
                | StoreError::Database { .. },
            ) => {}
            Err(error) => return Err(error),
        }
    }
    let copy = scratch.join("damaged.db");
    fs::copy(database, &copy).map_err(failed)?;
    let log = files::log_of(database);
    if log_is_damaged {
        files::fold_log(&log, &copy).map_err(failed)?;
    } else if log.exists() {
        fs::copy(&log, files::log_of(&copy)).map_err(failed)?;
    }
    let connection = match verify::open(&copy, false) {
        Ok(connection) if has_tables(&connection) => connection,
        Ok(_) | Err(_) => {
            give_schema_pages(&copy, scratch)?;
            verify::open(&copy, false)?
        }
    };
    Ok(Opened {
        connection,
        lost,
        copy: Some(copy),
    })
}

/// Whether every table of its version is where it should be.
fn has_tables(connection: &Connection) -> bool {
    let expected = schema::version(connection).and_then(schema::expected_layout);
    match (expected, schema::layout(connection)) {
        (Ok(expected), Ok(found)) => expected.iter().all(|part| found.contains(part)),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

fn give_schema_pages(copy: &Utf8Path, scratch: &Utf8Path) -> Result<(), StoreError> {
    let template = scratch.join("template.db");
    let (mut pages, roots) = template_pages(&template)?;
    let _ = fs::remove_file(&template);
    let failed = |error: io::Error| StoreError::io(copy, &error);
    let file = File::options().write(true).open(copy).map_err(failed)?;
    let count = file.metadata().map_err(failed)?.len() / PAGE as u64;
    if let Some(first) = pages.get_mut(..PAGE) {
        // Written by a log, as the run's own was, as long as the file is, and without a list of free pages.
        first[18] = 2;
        first[19] = 2;
        first[28..32].copy_from_slice(&u32::try_from(count).unwrap_or(0).to_be_bytes());
        first[32..40].fill(0);
    }
    for (at, page) in pages.chunks_exact(PAGE).enumerate() {
        if !roots.contains(&(at + 1)) {
            file.write_all_at(page, (at * PAGE) as u64)
                .map_err(failed)?;
        }
    }
    Ok(())
}

/// A new run's database, and which of its pages belong to tables and indexes.
fn template_pages(path: &Utf8Path) -> Result<(Vec<u8>, BTreeSet<usize>), StoreError> {
    let sqlite = |error: rusqlite::Error| sqlite_error(path, &error);
    let mut connection = Connection::open(path).map_err(sqlite)?;
    schema::migrate(&mut connection, path)?;
    let roots = connection
        .prepare("SELECT rootpage FROM sqlite_schema WHERE rootpage > 0")
        .and_then(|mut select| {
            let roots = select.query_map([], |row| row.get::<_, u32>(0))?;
            roots.map(|root| Ok(root? as usize)).collect()
        })
        .map_err(sqlite)?;
    connection.close().map_err(|(_, error)| sqlite(error))?;
    let pages = fs::read(path).map_err(|error| StoreError::io(path, &error))?;
    Ok((pages, roots))
}
