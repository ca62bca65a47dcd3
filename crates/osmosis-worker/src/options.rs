use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::config::WorkerIsolation;

use crate::guard::GuardProgram;
use crate::seal::Seal;
use crate::user::{NeededPath, WorkerIdentity};

/// How to start a worker process.
#[derive(Debug, Clone)]
pub struct Launch {
    pub program: Utf8PathBuf,
    pub arguments: Vec<String>,
    pub working_directory: Utf8PathBuf,
    /// Beside what workers inherit ([`crate::variables::ALLOWED`]), and before it.
    pub environment: Vec<(String, String)>,
    /// What ends everything that the process starts; without it only its process group is ended.
    pub guard: Option<GuardProgram>,
    /// Files that must be as they were whenever a process is started.
    pub seal: Option<Arc<Seal>>,
    /// What the process reads, which decides about its user ([`crate::user::decide`]).
    pub needed: Vec<NeededPath>,
    /// Whom it runs as; `None` for the engine's own user.
    pub user: Option<WorkerIdentity>,
}

/// How many workers, and how patient we are with them.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    pub agent_workers: usize,
    pub grader_workers: usize,
    /// Tasks that one worker runs at once.
    pub in_flight_per_worker: usize,
    /// From spawn to a loaded entrypoint.
    pub start_limit: Duration,
    /// From cancelling a task to killing its worker.
    pub cancel_grace: Duration,
    pub limits: Limits,
    /// With `Process`, every task runs in a process of its own, as many at once as seats would
    /// be there, up to 256 of each role.
    pub isolation: WorkerIsolation,
}

/// Processes of one role at once, however many rollouts are in flight: beyond this they wait for each other
/// more than they gain.
const MOST_PROCESSES: usize = 256;

impl PoolOptions {
    /// Workers of one role that run one task alone, at once.
    pub(crate) fn own_workers(&self) -> usize {
        let workers = self.agent_workers.max(self.grader_workers).max(1);
        match self.isolation {
            WorkerIsolation::Shared => workers,
            WorkerIsolation::Process => {
                (workers * self.in_flight_per_worker.max(1)).min(MOST_PROCESSES)
            }
        }
    }
}

/// What the kernel grants each worker process. Forked workers inherit it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of address space (`RLIMIT_AS`); beyond it allocations fail.
    pub memory: Option<u64>,
    /// Processes and threads of this user (`RLIMIT_NPROC`); the kernel does not hold root to it.
    pub processes: Option<u64>,
}
