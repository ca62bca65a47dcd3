//! Ending a process together with what it started.

use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};

/// A pid that may be signalled: neither everybody, nor init, nor ourselves.
pub(crate) fn checked_pid(raw: u32) -> Option<Pid> {
    let pid = Pid::from_raw(i32::try_from(raw).ok()?)?;
    (!pid.is_init() && raw != std::process::id()).then_some(pid)
}

/// Kills a process and its group.
pub(crate) fn kill_with_descendants(pid: Pid) {
    // What we start leads a group of its own, which outlives it while subprocesses are left. Only a
    // process that is alive and no leader yet must be signalled by itself, because its group is
    // that of its parent.
    let outcome = match getpgid(Some(pid)) {
        Ok(group) if group != pid => kill_process(pid, Signal::KILL),
        Ok(_) | Err(_) => kill_process_group(pid, Signal::KILL),
    };
    if let Err(error) = outcome
        && error != rustix::io::Errno::SRCH
    {
        tracing::warn!(pid = pid.as_raw_nonzero().get(), %error, "a process could not be killed");
    }
}

/// Kills the group when dropped, unless it was let go.
#[derive(Debug)]
pub(crate) struct GroupGuard(Option<Pid>);

impl GroupGuard {
    pub(crate) fn of(child: &tokio::process::Child) -> Self {
        Self(child.id().and_then(checked_pid))
    }

    pub(crate) fn let_go(mut self) {
        self.0 = None;
    }
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            kill_with_descendants(pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_that_would_hit_a_bystander_are_refused() {
        for bad in [0, 1, u32::MAX, std::process::id()] {
            assert!(checked_pid(bad).is_none(), "{bad}");
        }
        assert!(checked_pid(std::process::id() + 1).is_some());
    }
}
