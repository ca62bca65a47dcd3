use rustix::process::Pid;

use crate::Limits;

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
