//! The processes of the pool: which of them may be alive, and how they are ended.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::Pid;

use crate::launcher::GuardHandle;
use crate::process_group::{checked_pid, kill_with_descendants};

/// Every process of the pool that may be alive, so that all of them can be ended at once.
#[derive(Debug, Default)]
pub(super) struct ProcessTable {
    alive: Mutex<HashMap<u64, Pid>>,
}

impl ProcessTable {
    pub(super) fn admit(
        self: &Arc<Self>,
        worker: u64,
        pid: Pid,
        guard: Option<Arc<GuardHandle>>,
    ) -> ProcessHandle {
        self.alive.lock().insert(worker, pid);
        ProcessHandle {
            processes: Arc::clone(self),
            worker,
            pid,
            guard,
        }
    }

    /// For a process that is not ours to end.
    pub(super) fn know(self: &Arc<Self>, worker: u64, pid: u32) -> ProcessHandle {
        ProcessHandle {
            processes: Arc::clone(self),
            worker,
            pid: checked_pid(pid).unwrap_or(Pid::INIT),
            guard: None,
        }
    }

    pub(super) fn kill_all(&self) {
        for pid in self.alive.lock().values() {
            kill_with_descendants(*pid);
        }
    }
}

/// Holds a process: dropping it ends the process and what shares its group.
#[derive(Debug)]
pub(super) struct ProcessHandle {
    processes: Arc<ProcessTable>,
    worker: u64,
    pid: Pid,
    /// The guard above the process; what the process started lives no longer than anything holds this.
    guard: Option<Arc<GuardHandle>>,
}

impl ProcessHandle {
    pub(super) fn guard(&self) -> Option<&Arc<GuardHandle>> {
        self.guard.as_ref()
    }

    /// Whether the process can be ended from here.
    pub(super) fn holds(&self) -> bool {
        self.processes.alive.lock().contains_key(&self.worker)
    }

    pub(super) fn kill(&self) {
        // Only while it is known to be ours: the kernel gives the number to somebody else one day.
        if self.holds() {
            kill_with_descendants(self.pid);
        }
    }

    /// Ends it, and lets go of its number. Also for one that has just ended by itself: its
    /// subprocesses may not have.
    pub(super) fn finish(&self) {
        if self.processes.alive.lock().remove(&self.worker).is_some() {
            kill_with_descendants(self.pid);
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }
}

impl Drop for ProcessHandle {
    fn drop(&mut self) {
        self.finish();
    }
}
