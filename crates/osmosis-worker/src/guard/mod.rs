//! A process between the engine and a worker, which ends everything that the worker started.
//!
//! A worker's subprocesses may leave its process group (`setsid`) and their parent (fork twice); then nobody
//! knows them any more. The guard is a *child subreaper*: to the kernel it becomes the parent of every orphan
//! below it, so that its descendants are exactly what the worker started. When the worker or the engine ends,
//! however that happens, it kills them all and then leaves.
//!
//! The guard is this same program, started again with [`SUBCOMMAND`]; its standard input is a socket to the
//! engine (`protocol`). On systems other than Linux there is none, and only a worker's process group is ended.

mod adopted;
#[cfg(target_os = "linux")]
pub(crate) mod descendants;
mod leftovers;
mod process;
mod protocol;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use adopted::{Watched, adopt_orphans, spawn};
pub(crate) use leftovers::{MARKER_VARIABLE, Marker, end_abandoned, end_marked};
pub(crate) use protocol::{Order, Report, Settings};

/// The first argument of a program that is to be a guard.
pub const SUBCOMMAND: &str = "worker-guard";

/// Set when this program has shown that it answers to [`SUBCOMMAND`].
static CAN_GUARD: AtomicBool = AtomicBool::new(false);

/// A program that is a guard when it is started with [`SUBCOMMAND`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardProgram(PathBuf);

impl GuardProgram {
    /// A program whose `main` calls [`run_if_asked`].
    pub fn at(path: impl Into<PathBuf>) -> Option<Self> {
        cfg!(target_os = "linux").then(|| Self(path.into()))
    }

    /// This program, when its `main` called [`run_if_asked`]; none on systems without guards.
    pub fn this() -> Option<Self> {
        // Not the path that it was started by: there may be another version by now.
        CAN_GUARD
            .load(Ordering::Relaxed)
            .then(|| Self::at("/proc/self/exe"))
            .flatten()
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.0
    }
}

/// Other processes of this user can't trace this one any more, nor read its memory, its environment and its
/// descriptors in `/proc`. Those of root can.
pub fn hide_from_other_processes() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        // Fails on no kernel that is in use; what it is for is one wall of several.
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            tracing::warn!(%error, "this process can be traced by others of its user");
        }
    }
}

/// To be called first in `main`. When the program was started as a guard, it is one until the worker has ended,
/// and `main` has nothing left to do but to return the code.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != SUBCOMMAND) {
        CAN_GUARD.store(true, Ordering::Relaxed);
        return None;
    }
    Some(process::run(arguments.collect()))
}
