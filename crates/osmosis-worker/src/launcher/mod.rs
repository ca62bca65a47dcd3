//! Bringing worker processes into being, here or elsewhere.
//!
//! A pool invites; a launcher sees to it that a process dials in with the invitation's token. [`LocalLauncher`]
//! starts processes of this machine, each below a guard. [`JoinedProcess`] starts nothing: a process from outside
//! comes by itself, once.

mod joined;
mod limits;
mod local;
mod spawner;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::Pid;
use tokio::io::AsyncRead;

pub use self::joined::JoinedProcess;
#[cfg(target_os = "linux")]
pub(crate) use self::limits::apply_limits;
pub use self::local::LocalLauncher;
#[cfg(target_os = "linux")]
pub(crate) use self::local::token_pipe;
pub(crate) use self::local::{GuardHandle, end_what_is_left};
pub(crate) use self::spawner::Spawner;
use crate::exit::Exit;
use crate::user::WorkerIdentity;
use crate::{Endpoint, WorkerError};

/// Starts worker processes, or has them started.
#[async_trait]
pub trait Launcher: fmt::Debug + Send + Sync {
    /// Sees to it that one process dials in. Dropping the future ends what it has started.
    async fn launch(&self, invitation: Invitation) -> Result<LaunchedProcess, WorkerError>;

    /// A path of the engine's, as the processes see it: paths in frames are the worker's own.
    fn worker_path(&self, path: &Utf8Path) -> Utf8PathBuf {
        path.to_owned()
    }

    /// The user that the processes run as, where it is not the engine's.
    fn user(&self) -> Option<&WorkerIdentity> {
        None
    }

    /// Whether another process can be had when one has gone.
    fn replaces(&self) -> bool {
        true
    }

    /// Returns when all that were launched are gone, with everything that they started.
    async fn all_gone(&self) {}
}

/// What a process needs to dial in.
#[derive(Debug, Clone)]
pub struct Invitation {
    pub endpoint: Endpoint,
    /// Lets in one process.
    pub token: String,
    /// When it must have dialled.
    pub until: Instant,
}

/// A process that will dial in.
pub struct LaunchedProcess(pub(crate) Launched);

pub(crate) enum Launched {
    /// It is ours to end.
    Here(LocalProcess),
    /// It is not: it comes by itself, and goes when it wants to.
    Elsewhere,
}

/// A process of this machine, and whoever tells how it ends.
pub(crate) struct LocalProcess {
    pub(crate) pid: Pid,
    /// Whose child it is.
    pub(crate) parent: u32,
    pub(crate) exit: Exit,
    /// Ends what the process started when it is dropped.
    pub(crate) guard: Option<Arc<GuardHandle>>,
    /// What it prints before it has an output channel.
    pub(crate) output: Vec<Box<dyn AsyncRead + Send + Unpin>>,
}

impl LaunchedProcess {
    /// One that was started elsewhere, or will be, by somebody who tells it the endpoint and the token.
    pub fn elsewhere() -> Self {
        Self(Launched::Elsewhere)
    }
}

impl fmt::Debug for LaunchedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Launched::Here(process) => f.debug_tuple("Here").field(&process.pid).finish(),
            Launched::Elsewhere => f.write_str("Elsewhere"),
        }
    }
}
