use osmosis_run::{RunError, RunErrorKind};
use std::net::SocketAddr;

use osmosis_engine::{EngineError, EngineErrorKind};
use osmosis_store::StoreError;

/// Why a server could not start or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address}: {message}")]
    Listen {
        address: SocketAddr,
        message: String,
    },
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A rollout server that we want to use.
    #[error("no rollout server at {url}: {message}")]
    NoServer { url: String, message: String },
    #[error("the server's own connection handling ended: {0}")]
    Http(String),
}

/// What callers branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerErrorKind {
    /// The address is taken or not ours.
    Listen,
    /// The disk, most likely; a new start may do.
    Storage,
    /// Another server is not there, or does not want us.
    Remote,
    /// A defect of ours.
    Internal,
}

impl ServerError {
    pub fn kind(&self) -> ServerErrorKind {
        match self {
            Self::Listen { .. } => ServerErrorKind::Listen,
            Self::Store(_) => ServerErrorKind::Storage,
            Self::NoServer { .. } => ServerErrorKind::Remote,
            Self::Engine(error) => match error.kind() {
                EngineErrorKind::Resumable => ServerErrorKind::Storage,
                EngineErrorKind::Internal | EngineErrorKind::Unusable => ServerErrorKind::Internal,
            },
            Self::Http(_) => ServerErrorKind::Internal,
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Listen { .. } => {
                Some("choose another address, or port 0 for any free one".to_owned())
            }
            Self::NoServer { .. } => Some(
                "start one with `osmosis serve ROLLOUT`, and check its address and key".to_owned(),
            ),
            Self::Engine(error) => error.hint(),
            Self::Store(error) => error.hint(),
            Self::Http(_) => None,
        }
    }
}

impl From<ServerError> for RunError {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Engine(error) => error.into(),
            ServerError::Store(error) => error.into(),
            ServerError::Listen { .. } => Self::failed(RunErrorKind::Serve, error.to_string())
                .hint("choose another address with `--listen ADDR`"),
            ServerError::Http(_) => Self::failed(RunErrorKind::Serve, error.to_string()),
            ServerError::NoServer { .. } => {
                let hint = error.hint().unwrap_or_default();
                Self::failed(RunErrorKind::NoRolloutServer, error.to_string()).hint(hint)
            }
        }
    }
}
