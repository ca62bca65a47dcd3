//! What a guard that was killed leaves: the engine adopts it.
//!
//! The engine is a child subreaper like its guards, so that the kernel makes it the parent of every orphan that a
//! killed guard had below it, whatever they did to their environment, group, session or parent. They are told from
//! children that the engine started itself by their session: a guard begins one, and nobody can join another.

#[cfg(target_os = "linux")]
pub(crate) use self::linux::{Watched, adopt_orphans, spawn};

/// There are no guards here, and so nothing that one leaves.
#[cfg(not(target_os = "linux"))]
pub(crate) fn adopt_orphans() {}

#[cfg(not(target_os = "linux"))]
pub(crate) fn spawn(
    command: &mut tokio::process::Command,
) -> std::io::Result<tokio::process::Child> {
    command.spawn()
}

/// A guard, which may be killed.
#[cfg(not(target_os = "linux"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched;

#[cfg(not(target_os = "linux"))]
impl Watched {
    pub(crate) fn new(_guard: u32) -> Option<Self> {
        Some(Self)
    }

    pub(crate) async fn end_adopted(self) {}
}

#[cfg(target_os = "linux")]
mod linux {
    use std::time::{Duration, Instant};

    use parking_lot::Mutex;
    use rustix::process::{WaitOptions, getpid, set_child_subreaper, waitpid};
    use tokio::process::{Child, Command};

    use crate::guard::descendants::{self, Process};
    use crate::process_group::checked_pid;

    /// The kernel hands orphans on one generation after the other: it is over when so many looks in a row found nobody.
    const QUIET_LOOKS: u32 = 5;
    const LOOK_AGAIN: Duration = Duration::from_millis(20);

    /// What has not ended by then can't be ended.
    const END_LIMIT: Duration = Duration::from_secs(10);

    /// The processes that [`spawn`] started. Held while one is started, so that none is taken for an orphan.
    static STARTED: Mutex<Vec<Process>> = Mutex::new(Vec::new());

    /// From here on what killed guards leave becomes a child of this process.
    pub(crate) fn adopt_orphans() {
        if let Err(error) = set_child_subreaper(Some(getpid())) {
            tracing::warn!(%error, "what a killed guard leaves is found by its environment alone");
        }
    }

    /// Starts a guard, which is a child of ours and no orphan.
    pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Child> {
        let mut started = STARTED.lock();
        started.retain(|known| known.is_there());
        let child = command.spawn()?;
        started.extend(child.id().and_then(Process::read));
        Ok(child)
    }

    /// A guard, which may be killed.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Watched(Process);

    impl Watched {
        pub(crate) fn new(guard: u32) -> Option<Self> {
            Process::read(guard).map(Self)
        }

        /// Ends what the guard left.
        pub(crate) async fn end_adopted(self) {
            let until = Instant::now() + END_LIMIT;
            let mut quiet = 0;
            while quiet < QUIET_LOOKS && Instant::now() < until {
                let look = tokio::task::spawn_blocking(move || self.end_those_here());
                quiet = if matches!(look.await, Ok(0)) {
                    quiet + 1
                } else {
                    0
                };
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }

        /// Ends those that are here now, and returns how many that are.
        fn end_those_here(self) -> usize {
            let Some(ours) = Process::read(std::process::id()) else {
                return 0;
            };
            let started = STARTED.lock();
            let adopted: Vec<Process> = descendants::all()
                .into_iter()
                .filter(|process| {
                    process.parent == ours.pid
                        && process.session != ours.session
                        && process.began >= self.0.began
                        && !started.iter().any(|known| known.is(*process))
                })
                .collect();
            let found = adopted.len();
            let (dead, alive): (Vec<_>, Vec<_>) =
                adopted.into_iter().partition(|process| process.is_zombie);
            descendants::end(&alive);
            for pid in dead
                .into_iter()
                .filter_map(|process| checked_pid(process.pid))
            {
                // Nobody else waits for it.
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
            found
        }
    }
}
