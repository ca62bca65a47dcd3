//! Between our types and SQLite's.

use std::fmt;

use camino::Utf8Path;
use osmosis_core::{IdError, JsonText, JsonTextError, RewardError};
use osmosis_store::StoreError;
use osmosis_store::encoding::SenselessRecord;
use rusqlite::types::FromSqlError;
use rusqlite::{ErrorCode, Row, RowIndex};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What can go wrong inside a statement.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SqlError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// What is stored is not what we store.
    #[error("{0}")]
    Senseless(String),
    /// The request itself is at fault; the database is fine.
    #[error(transparent)]
    Refused(#[from] StoreError),
}

impl SqlError {
    /// Whether only the statement at hand failed, and others of its transaction may still succeed.
    pub(crate) fn concerns_one_write(&self) -> bool {
        match self {
            Self::Sqlite(error) => matches!(
                error.sqlite_error_code(),
                None | Some(
                    ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch
                )
            ),
            Self::Senseless(_) | Self::Refused(_) => true,
        }
    }

    pub(crate) fn into_store_error(self, path: &Utf8Path) -> StoreError {
        match self {
            Self::Sqlite(error) => sqlite_error(path, &error),
            Self::Senseless(message) => StoreError::damaged(path, message),
            Self::Refused(error) => error,
        }
    }
}

impl From<FromSqlError> for SqlError {
    fn from(error: FromSqlError) -> Self {
        Self::Senseless(error.to_string())
    }
}

impl From<SenselessRecord> for SqlError {
    fn from(error: SenselessRecord) -> Self {
        Self::Senseless(error.0)
    }
}

impl From<IdError> for SqlError {
    fn from(error: IdError) -> Self {
        Self::Senseless(error.to_string())
    }
}

impl From<JsonTextError> for SqlError {
    fn from(error: JsonTextError) -> Self {
        Self::Senseless(error.to_string())
    }
}

impl From<RewardError> for SqlError {
    fn from(error: RewardError) -> Self {
        Self::Senseless(error.to_string())
    }
}

/// A number as SQLite's signed one; refused when it doesn't fit.
pub(crate) fn to_sql(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number)
        .map_err(|_| StoreError::refused(format!("{number} is too large to be stored")))
}

/// A column, by name or by position.
pub(crate) trait Column: RowIndex + Copy + fmt::Display {}
impl<C: RowIndex + Copy + fmt::Display> Column for C {}

/// A number of ours that is stored in a column.
pub(crate) fn number<T: TryFrom<i64>>(row: &Row<'_>, column: impl Column) -> Result<T, SqlError> {
    let stored: i64 = row.get(column)?;
    T::try_from(stored)
        .map_err(|_| SqlError::Senseless(format!("column `{column}` holds {stored}")))
}

pub(crate) fn optional_number<T: TryFrom<i64>>(
    row: &Row<'_>,
    column: impl Column,
) -> Result<Option<T>, SqlError> {
    match row.get::<_, Option<i64>>(column)? {
        None => Ok(None),
        Some(_) => number(row, column).map(Some),
    }
}

pub(crate) fn json(row: &Row<'_>, column: impl Column) -> Result<JsonText, SqlError> {
    Ok(JsonText::parse(row.get::<_, String>(column)?)?)
}

pub(crate) fn optional_json(
    row: &Row<'_>,
    column: impl Column,
) -> Result<Option<JsonText>, SqlError> {
    match row.get::<_, Option<String>>(column)? {
        None => Ok(None),
        Some(text) => Ok(Some(JsonText::parse(text)?)),
    }
}

/// The name of a unit variant, as it is in JSON.
pub(crate) fn word<T: Serialize>(value: &T) -> Result<String, StoreError> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => Ok(word),
        Ok(other) => Err(StoreError::refused(format!("`{other}` is not a word"))),
        Err(error) => Err(StoreError::refused(error.to_string())),
    }
}

pub(crate) fn from_word<T: DeserializeOwned>(word: String) -> Result<T, SqlError> {
    serde_json::from_value(serde_json::Value::String(word))
        .map_err(|error| SqlError::Senseless(error.to_string()))
}

/// What SQLite said about the database at `path`.
pub(crate) fn sqlite_error(path: &Utf8Path, error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => StoreError::Damaged {
            path: path.to_owned(),
            message: error.to_string(),
        },
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            StoreError::Io {
                path: path.to_owned(),
                message: error.to_string(),
                full: false,
            }
        }
        Some(_) | None => StoreError::Database {
            message: error.to_string(),
            full: is_full(error),
        },
    }
}

fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
        // Growing the shared-memory file is where a full disk shows first in WAL mode.
        || error
            .sqlite_error()
            .is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
}
