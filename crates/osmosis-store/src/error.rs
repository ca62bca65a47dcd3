use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RunName;

/// Why the store could not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("run `{0}` is there already")]
    AlreadyExists(RunName),
    #[error("there is no run `{name}` at `{at}`")]
    NotFound { name: RunName, at: String },
    #[error("`{url}` is no place for runs: {message}")]
    InvalidUrl { url: String, message: String },
    #[error("the store is closed")]
    Closed,
    #[error("run is held by {holder}")]
    Held { path: Utf8PathBuf, holder: String },
    /// Another process has opened the run for writing since we did.
    #[error("the run was taken over by {by}; nothing more is written to it from here")]
    Fenced { path: Utf8PathBuf, by: String },
    /// The folder we write to is not the one at its path any more.
    #[error("`{path}` was moved, removed or replaced while the run was open")]
    Moved { path: Utf8PathBuf },
    #[error("`{path}` has schema version {found}, this program knows {known}")]
    SchemaVersion {
        path: Utf8PathBuf,
        found: i64,
        known: i64,
    },
    #[error("`{path}`: {message}")]
    Io {
        path: Utf8PathBuf,
        message: String,
        full: bool,
    },
    #[error("database: {message}")]
    Database { message: String, full: bool },
    /// The database does not let this role in, or not do this.
    #[error("database: {message}")]
    Denied { message: String },
    /// Nobody answers.
    #[error("database: {message}")]
    Unreachable { message: String },
    #[error("`{path}` is damaged: {message}")]
    Damaged { path: Utf8PathBuf, message: String },
    /// Records are not what the process wrote that controls the run. The first of them are named.
    #[error("`{path}` was changed by something else than osmosis: {}", named(records, *more))]
    Altered {
        path: Utf8PathBuf,
        records: Vec<String>,
        /// So many beside those.
        more: u64,
    },
}

fn named(records: &[String], more: u64) -> String {
    let text = records.join("; ");
    match more {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreErrorKind {
    AlreadyExists,
    NotFound,
    InvalidUrl,
    Held,
    Closed,
    DiskFull,
    Denied,
    Unreachable,
    Unreadable,
    Altered,
}

impl StoreError {
    pub fn kind(&self) -> StoreErrorKind {
        match self {
            Self::AlreadyExists(_) => StoreErrorKind::AlreadyExists,
            Self::NotFound { .. } => StoreErrorKind::NotFound,
            Self::InvalidUrl { .. } => StoreErrorKind::InvalidUrl,
            Self::Closed => StoreErrorKind::Closed,
            Self::Held { .. } | Self::Fenced { .. } => StoreErrorKind::Held,
            Self::Denied { .. } => StoreErrorKind::Denied,
            Self::Unreachable { .. } => StoreErrorKind::Unreachable,
            Self::Io { full: true, .. } | Self::Database { full: true, .. } => {
                StoreErrorKind::DiskFull
            }
            Self::SchemaVersion { .. }
            | Self::Moved { .. }
            | Self::Io { .. }
            | Self::Database { .. }
            | Self::Damaged { .. } => StoreErrorKind::Unreadable,
            Self::Altered { .. } => StoreErrorKind::Altered,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Held { .. } => Some("wait for it, or stop it with Ctrl-C".to_owned()),
            Self::SchemaVersion { .. } => {
                Some("use the version of osmosis that made this run".to_owned())
            }
            Self::Io { full: true, .. } | Self::Database { full: true, .. } => {
                Some("free some disk space, then resume the run".to_owned())
            }
            Self::Fenced { .. } => Some(
                "two processes must not write to one run; what this one had recorded before is kept"
                    .to_owned(),
            ),
            Self::Moved { .. } => Some(
                "what was recorded before went with the folder; resume the run where it is now"
                    .to_owned(),
            ),
            Self::Damaged { .. } => Some(
                "`osmosis run verify RUN` lists what is damaged; `osmosis run salvage RUN` makes a new run of \
                 what is whole"
                    .to_owned(),
            ),
            Self::Altered { .. } => Some(
                "no number of this run can be trusted; `osmosis run verify RUN` lists what was changed, \
                 `osmosis run salvage RUN` makes a new run of what was not"
                    .to_owned(),
            ),
            Self::AlreadyExists(_) | Self::NotFound { .. } | Self::InvalidUrl { .. } | Self::Closed | Self::Io { .. } | Self::Database { .. } | Self::Denied { .. } => None,
            Self::Unreachable { .. } => Some("is the address right, and does the server run?".to_owned()),
        }
    }
}

impl StoreError {
    /// What the operating system said about a file.
    pub fn io(path: &Utf8Path, error: &io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            message: error.to_string(),
            full: matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
        }
    }

    /// A record that was read but makes no sense.
    pub fn damaged(path: &Utf8Path, message: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            message: message.into(),
        }
    }

    /// A write that the database can't express.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Database {
            message: message.into(),
            full: false,
        }
    }
}
