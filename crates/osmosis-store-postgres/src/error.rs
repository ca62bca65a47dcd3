//! Between PostgreSQL's errors and ours.

use std::error::Error as _;
use std::io;

use osmosis_core::{IdError, JsonTextError, RewardError};
use osmosis_store::StoreError;
use osmosis_store::encoding::SenselessRecord;
use tokio_postgres::error::SqlState;

/// How the library's error begins when no encrypted connection came about.
const HANDSHAKE: &str = "error performing TLS handshake";

/// What can go wrong with a statement.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DbError {
    #[error("{}", told(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// What is stored is not what we store.
    #[error("{0}")]
    Senseless(String),
    /// The request itself is at fault, or the run is not ours any more; the database is fine.
    #[error(transparent)]
    Refused(#[from] StoreError),
}

/// What a failed statement means for whoever sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consequence {
    /// The connection is gone, or the server is: connect again.
    Reconnect,
    /// Two transactions got into each other's way: the same again may succeed.
    Repeat,
    /// Another statement of the same transaction failed.
    Aborted,
    /// The same again fails again.
    Final,
}

impl DbError {
    pub(crate) fn consequence(&self) -> Consequence {
        let Self::Postgres(error) = self else {
            return Consequence::Final;
        };
        let Some(state) = error.code() else {
            // Not the server's word. The library does not show which kind of failure it is but by these texts.
            let text = error.to_string();
            let passes = [
                "error communicating",
                "connection closed",
                "error connecting",
                "timeout",
                "unexpected message",
            ];
            let passes = passes.iter().any(|start| text.starts_with(start));
            return if passes || broke_during_handshake(error) {
                Consequence::Reconnect
            } else {
                Consequence::Final
            };
        };
        match *state {
            SqlState::ADMIN_SHUTDOWN
            | SqlState::CRASH_SHUTDOWN
            | SqlState::CANNOT_CONNECT_NOW
            | SqlState::TOO_MANY_CONNECTIONS
            | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => Consequence::Reconnect,
            SqlState::T_R_SERIALIZATION_FAILURE
            | SqlState::T_R_DEADLOCK_DETECTED
            | SqlState::LOCK_NOT_AVAILABLE => Consequence::Repeat,
            SqlState::IN_FAILED_SQL_TRANSACTION => Consequence::Aborted,
            ref other if other.code().starts_with("08") => Consequence::Reconnect,
            _ => Consequence::Final,
        }
    }

    /// For the caller. `shown` is where the database is.
    pub(crate) fn into_store_error(self, shown: &str) -> StoreError {
        let unreachable = self.consequence() == Consequence::Reconnect;
        match self {
            Self::Postgres(error) => {
                let message = match advice(&error) {
                    None => format!("`{shown}`: {}", told(&error)),
                    Some(advice) => format!("`{shown}`: {}; {advice}", told(&error)),
                };
                match error.code() {
                    Some(
                        &SqlState::INVALID_PASSWORD
                        | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION
                        | &SqlState::INSUFFICIENT_PRIVILEGE,
                    ) => StoreError::Denied { message },
                    _ if unreachable => StoreError::Unreachable { message },
                    code => StoreError::Database {
                        full: code == Some(&SqlState::DISK_FULL),
                        message,
                    },
                }
            }
            Self::Senseless(message) => StoreError::Damaged {
                path: shown.into(),
                message,
            },
            Self::Refused(error) => error,
        }
    }
}

/// Whether the connection went away while encryption was agreed on, as it does when a server ends. A certificate that is
/// not believed is another matter: it will not be believed the next time.
fn broke_during_handshake(error: &tokio_postgres::Error) -> bool {
    if !error.to_string().starts_with(HANDSHAKE) {
        return false;
    }
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| {
        matches!(
            source.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::TimedOut
        )
    })
}

/// What happened, without the wrapping. Neither the server nor the library tells passwords.
fn told(error: &tokio_postgres::Error) -> String {
    if let Some(server) = error.as_db_error() {
        let mut text = server.message().to_owned();
        if let Some(detail) = server.detail() {
            text.push_str(" (");
            text.push_str(detail);
            text.push(')');
        }
        return text;
    }
    match error.source() {
        None => error.to_string(),
        Some(source) => format!("{error}: {source}")
            .replace("error connecting to server: ", "can't connect: ")
            .replace(
                "error communicating with the server: ",
                "the connection broke: ",
            ),
    }
}

/// What to do about it, where that is not in the message.
fn advice(error: &tokio_postgres::Error) -> Option<&'static str> {
    if error.to_string().starts_with(HANDSHAKE) && !broke_during_handshake(error) {
        return Some(
            "`sslrootcert=FILE` in the URL names whom to trust in place of the system's authorities; see \"TLS\" in docs/postgres.md",
        );
    }
    match *error.code()? {
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => Some(
            "give user and password in the URL (`postgres://USER:PASSWORD@HOST/DATABASE`) or the password in PGPASSWORD",
        ),
        SqlState::INVALID_CATALOG_NAME => {
            Some("create it with `createdb`, or name another in the URL")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            Some("the role of the URL may not do this; see \"Roles\" in docs/postgres.md")
        }
        SqlState::TOO_MANY_CONNECTIONS => {
            Some("raise `max_connections` of the server, or run fewer processes")
        }
        _ => None,
    }
}

macro_rules! senseless {
    ($($error:ty)*) => {$(
        impl From<$error> for DbError {
            fn from(error: $error) -> Self {
                Self::Senseless(error.to_string())
            }
        }
    )*};
}
senseless!(IdError JsonTextError RewardError SenselessRecord);
