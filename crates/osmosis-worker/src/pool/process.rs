//! Operating-system processes: starting them, learning how they ended, ending them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::Pid;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use super::guarded::GuardHandle;
use crate::Limits;
use crate::process_group::{checked_pid, kill_with_descendants};

/// Starts processes from one thread that lives as long as the pool. Workers ask the kernel to be
/// killed when their parent ends, and to the kernel the parent is the *thread* that started them:
/// started from a thread of the runtime, they would die with that thread.
#[derive(Debug)]
pub(super) struct Spawner {
    requests: mpsc::Sender<SpawnRequest>,
}

#[derive(Debug)]
struct SpawnRequest {
    command: Command,
    reply: oneshot::Sender<std::io::Result<Child>>,
}

impl Spawner {
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let (requests, mut incoming) = mpsc::channel::<SpawnRequest>(16);
        std::thread::Builder::new()
            .name("osmosis-spawner".to_owned())
            .spawn(move || {
                while let Some(mut request) = incoming.blocking_recv() {
                    let _context = runtime.enter();
                    // A child that nobody waits for any more is killed by being dropped.
                    drop(request.reply.send(request.command.spawn()));
                }
            })?;
        Ok(Self { requests })
    }

    pub(super) async fn spawn(&self, command: Command) -> std::io::Result<Child> {
        let (reply, child) = oneshot::channel();
        let gone = || std::io::Error::other("the thread that starts processes has ended");
        self.requests
            .send(SpawnRequest { command, reply })
            .await
            .map_err(|_| gone())?;
        child.await.map_err(|_| gone())?
    }
}

/// Sets what a process that has just been started may use. It can't have done much by then:
/// an interpreter takes longer than this to start.
#[cfg(target_os = "linux")]
pub(crate) fn apply_limits(limits: Limits, pid: Pid) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, prlimit};
    for (resource, limit) in [
        (Resource::As, limits.memory),
        (Resource::Nproc, limits.processes),
    ] {
        if limit.is_some() {
            let limit = Rlimit {
                current: limit,
                maximum: limit,
            };
            prlimit(Some(pid), resource, limit)?;
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn apply_limits(limits: Limits, _pid: Pid) -> std::io::Result<()> {
    if limits == Limits::default() {
        return Ok(());
    }
    Err(std::io::Error::other(
        "this system can't limit another process",
    ))
}

/// Every process of the pool that may be alive, so that all of them can be ended at once.
#[derive(Debug, Default)]
pub(super) struct Kennel {
    alive: Mutex<HashMap<u64, Pid>>,
}

impl Kennel {
    pub(super) fn admit(
        self: &Arc<Self>,
        worker: u64,
        pid: Pid,
        guard: Option<Arc<GuardHandle>>,
    ) -> Leash {
        self.alive.lock().insert(worker, pid);
        Leash {
            kennel: Arc::clone(self),
            worker,
            pid,
            guard,
        }
    }

    /// For a process that is not ours to end.
    pub(super) fn know(self: &Arc<Self>, worker: u64, pid: u32) -> Leash {
        Leash {
            kennel: Arc::clone(self),
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
pub(super) struct Leash {
    kennel: Arc<Kennel>,
    worker: u64,
    pid: Pid,
    /// The guard above the process; what the process started lives no longer than anything holds this.
    guard: Option<Arc<GuardHandle>>,
}

impl Leash {
    pub(super) fn guard(&self) -> Option<&Arc<GuardHandle>> {
        self.guard.as_ref()
    }

    /// Whether the process can be ended from here.
    pub(super) fn holds(&self) -> bool {
        self.kennel.alive.lock().contains_key(&self.worker)
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
        if self.kennel.alive.lock().remove(&self.worker).is_some() {
            kill_with_descendants(self.pid);
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        self.finish();
    }
}
