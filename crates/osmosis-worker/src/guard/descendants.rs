//! The processes below this one, from `/proc`.

use std::collections::{HashMap, HashSet};

use osmosis_core::execution::ExitStatus;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, wait,
};

use crate::process_group::checked_pid;

/// A process, told apart from a later one with the same number by when it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    /// The session that it belongs to. A process can leave it, and never join another.
    pub(crate) session: u32,
    /// In ticks since the machine was started.
    pub(crate) began: u64,
    /// It has ended, and its parent has not looked yet.
    pub(crate) is_zombie: bool,
}

impl Process {
    pub(crate) fn read(pid: u32) -> Option<Self> {
        parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    pub(crate) fn is(self, other: Self) -> bool {
        (self.pid, self.began) == (other.pid, other.began)
    }

    /// Whether it is there, and has not ended.
    pub(crate) fn is_there(self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.is(self) && !now.is_zombie)
    }

    /// Sends a signal to this process and to no other that got its number meanwhile.
    pub(crate) fn signal(self, signal: Signal) {
        let Some(pid) = checked_pid(self.pid) else {
            return;
        };
        let sent = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => {
                if !Self::read(self.pid).is_some_and(|now| now.is(self)) {
                    return;
                }
                pidfd_send_signal(handle, signal)
            }
            Err(Errno::NOSYS) => kill_process(pid, signal),
            Err(error) => Err(error),
        };
        if let Err(error) = sent
            && error != Errno::SRCH
        {
            tracing::warn!(pid = self.pid, %error, "a process could not be ended");
        }
    }
}

/// `pid (name) state parent … began …`; the name may hold anything.
fn parse(stat: &str) -> Option<Process> {
    let (start, rest) = stat.rsplit_once(')')?;
    let (pid, _) = start.split_once(' ')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?;
    // The 6th field of the line, and the 22nd.
    let session = fields.nth(1)?;
    let began = fields.nth(15)?;
    Some(Process {
        pid: pid.parse().ok()?,
        parent: parent.parse().ok()?,
        session: session.parse().ok()?,
        began: began.parse().ok()?,
        is_zombie: state == "Z" || state == "X",
    })
}

/// Every process that can be seen.
pub(crate) fn all() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(Process::read)
        .collect()
}

/// The processes below `root`, without it.
fn below(root: u32, all: &[Process]) -> Vec<Process> {
    let mut children: HashMap<u32, Vec<Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(*process);
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child.pid);
            found.push(child);
        }
    }
    found
}

/// The children of this process that have not ended. Cheap where the kernel has a file with them, which may lack
/// one while others end.
pub(super) fn children() -> Vec<Process> {
    let ours = std::process::id();
    match std::fs::read_to_string(format!("/proc/{ours}/task/{ours}/children")) {
        Ok(pids) => living_children(
            pids.split_ascii_whitespace()
                .filter_map(|pid| Process::read(pid.parse().ok()?)),
        ),
        Err(_) => all_children(),
    }
}

/// The same, and none is missing.
pub(super) fn all_children() -> Vec<Process> {
    living_children(all().into_iter())
}

fn living_children(processes: impl Iterator<Item = Process>) -> Vec<Process> {
    let ours = std::process::id();
    processes
        .filter(|process| process.parent == ours && !process.is_zombie)
        .collect()
}

/// Ends these children of ours with everything below them. What they leave becomes our child, so it has to be
/// looked for again.
pub(crate) fn end(roots: &[Process]) {
    let mut held: HashSet<Process> = HashSet::new();
    // Stopped first: who forks on and on would always be ahead of us.
    for _ in 0..MOST_ROUNDS {
        let all = all();
        let mut fresh = Vec::new();
        for root in roots {
            let Some(root) = all.iter().find(|process| process.is(*root)) else {
                continue;
            };
            fresh.push(*root);
            fresh.extend(below(root.pid, &all));
        }
        fresh.retain(|process| !process.is_zombie && !held.iter().any(|known| known.is(*process)));
        if fresh.is_empty() {
            break;
        }
        for process in fresh {
            process.signal(Signal::STOP);
            held.insert(process);
        }
    }
    for process in held {
        process.signal(Signal::KILL);
    }
}

/// Someone who still gets ahead after so many looks is met again at the next one.
const MOST_ROUNDS: usize = 20;

/// What there is to know about our children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Children {
    /// This one has ended, and how. It is forgotten now.
    Ended(Pid, ExitStatus),
    /// There are some, and none has ended.
    Living,
    None,
}

/// Collects the next child that has ended. Whoever leaves without doing so leaves it to init, and not every
/// container's init cares.
pub(super) fn reap() -> Children {
    match wait(WaitOptions::NOHANG) {
        Ok(Some((pid, status))) => {
            let status = ExitStatus::of(status.exit_status(), status.terminating_signal());
            Children::Ended(pid, status)
        }
        Ok(None) => Children::Living,
        Err(_) => Children::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "42 (a) b) R 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987 1 2";
        let expected = Process {
            pid: 42,
            parent: 7,
            session: 41,
            began: 987,
            is_zombie: false,
        };
        assert_eq!(parse(stat), Some(expected));
        assert_eq!(parse("42 (a"), None);
    }

    #[test]
    fn this_process_is_found_and_told_apart() {
        let ours = Process::read(std::process::id()).unwrap();
        assert!(all().iter().any(|process| process.is(ours)));
        let later = Process {
            began: ours.began + 1,
            ..ours
        };
        assert!(!ours.is(later));
    }

    #[test]
    fn what_is_below_is_found_over_generations() {
        let process = |pid, parent| Process {
            pid,
            parent,
            session: 0,
            began: 0,
            is_zombie: false,
        };
        let all = [process(2, 1), process(3, 2), process(4, 3), process(5, 1)];
        let found: Vec<u32> = below(2, &all).iter().map(|process| process.pid).collect();
        assert_eq!(found, [3, 4]);
    }
}
