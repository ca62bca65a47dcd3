//! Which process is at the other end of a connection, and whether it may be.
//!
//! A token can be stolen, a process id can't: the kernel says which process dialled. Where it doesn't (over TCP, and
//! on systems without `/proc`) the token alone decides, and it opens each channel once.

use std::fmt;

use tokio::net::UnixStream;

/// Who may bring a token.
#[derive(Debug, Clone, Copy)]
pub(super) enum Holder {
    /// The process that is to have it is being started.
    NotStarted,
    /// A process that we did not start.
    Anybody,
    /// This one, or one below it: an interpreter may be started by a script.
    Started(StartedProcess),
}

/// A process of this machine that we started, told apart from a later one with its number.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartedProcess {
    pub(super) pid: u32,
    #[cfg(target_os = "linux")]
    process: crate::guard::descendants::Process,
}

/// The process that dialled, as far as the kernel says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pid: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admissible {
    Yes,
    /// The process that was to come has ended, so nothing hangs on who came instead.
    TooLate,
    No,
}

impl StartedProcess {
    /// A process that `parent` has started; none when it has ended, or when its parent is another.
    #[cfg(target_os = "linux")]
    pub(super) fn of_parent(pid: u32, parent: u32) -> Option<Self> {
        use crate::guard::descendants::Process;

        let process = Process::read(pid).filter(|process| process.parent == parent)?;
        Some(Self { pid, process })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn of_parent(pid: u32, _parent: u32) -> Option<Self> {
        Some(Self { pid })
    }
}

impl Peer {
    pub(super) const UNKNOWN: Self = Self { pid: None };

    pub(super) fn of_socket(stream: &UnixStream) -> Self {
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        Self {
            pid: pid.and_then(|pid| u32::try_from(pid).ok()),
        }
    }

    pub(super) fn pid(self) -> Option<u32> {
        self.pid
    }

    /// Whether it may be the process that a token was given to.
    pub(super) fn may_be(self, holder: Holder) -> Admissible {
        match (holder, self.pid) {
            (Holder::NotStarted, _) => Admissible::TooLate,
            (Holder::Anybody, _) | (Holder::Started(_), None) => Admissible::Yes,
            (Holder::Started(started), Some(pid)) => is_or_is_below(pid, started),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn is_or_is_below(_pid: u32, _started: StartedProcess) -> Admissible {
    Admissible::Yes
}

#[cfg(target_os = "linux")]
fn is_or_is_below(pid: u32, started: StartedProcess) -> Admissible {
    use crate::guard::descendants::Process;

    /// From a wrapper to the interpreter.
    const MOST_GENERATIONS: usize = 16;

    let mut next = Process::read(pid);
    for _ in 0..MOST_GENERATIONS {
        match next {
            Some(process) if process.is(started.process) => return Admissible::Yes,
            Some(process) => next = Process::read(process.parent),
            None => break,
        }
    }
    if started.process.is_there() {
        Admissible::No
    } else {
        Admissible::TooLate
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pid) = self.pid else {
            return f.write_str("a process");
        };
        write!(f, "process {pid}")?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        match line.trim() {
            "" => Ok(()),
            line => write!(
                f,
                " (`{}`)",
                &line[..line.floor_char_boundary(MOST_OF_COMMAND)]
            ),
        }
    }
}

/// Enough to know a command by.
const MOST_OF_COMMAND: usize = 200;
