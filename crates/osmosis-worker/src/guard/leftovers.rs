//! What outlived its engine and its guard: found by a variable that every worker is started with.

#[cfg(target_os = "linux")]
use std::collections::HashSet;
use std::fmt;
#[cfg(target_os = "linux")]
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_os = "linux")]
use super::{SUBCOMMAND, Settings};
#[cfg(target_os = "linux")]
use crate::pool::remove_abandoned_folder;

/// Names the engine and the guard of a process; what it starts inherits it.
pub(crate) const MARKER_VARIABLE: &str = "_OSMOSIS_GUARD";

/// `ENGINE-BEGAN-NUMBER`: the engine's process, when it began, and which of its guards this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marker {
    engine: u32,
    began: u64,
    guard: u64,
}

impl Marker {
    /// For another guard of this process.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            engine: std::process::id(),
            began: began(std::process::id()).unwrap_or(0),
            guard: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Whether its engine is still there. Where that can't be known, it is.
    fn engine_is_alive(self) -> bool {
        cfg!(not(target_os = "linux")) || began(self.engine) == Some(self.began)
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.engine, self.began, self.guard)
    }
}

impl FromStr for Marker {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut numbers = text.split('-').map(str::parse::<u64>);
        let mut next = || numbers.next().and_then(Result::ok).ok_or(());
        let marker = Self {
            engine: u32::try_from(next()?).map_err(drop)?,
            began: next()?,
            guard: next()?,
        };
        if next().is_ok() {
            return Err(());
        }
        Ok(marker)
    }
}

#[cfg(not(target_os = "linux"))]
fn began(_pid: u32) -> Option<u64> {
    None
}

#[cfg(target_os = "linux")]
fn began(pid: u32) -> Option<u64> {
    super::descendants::Process::read(pid)
        .filter(|process| !process.is_zombie)
        .map(|process| process.began)
}

/// Ends the processes that workers of engines that are gone left behind, and returns how many there were. A guard
/// among them may have been about to remove its engine's folder, which need not be where ours are: that is done for it.
pub(crate) fn end_abandoned() -> usize {
    // We may have been started by one of them.
    let our_own = std::env::var(MARKER_VARIABLE)
        .ok()
        .and_then(|value| value.parse().ok());
    end_where(|marker| Some(marker) != our_own && !marker.engine_is_alive())
}

/// Ends what is left of a guard that was killed.
pub(crate) fn end_marked(guard: Marker) -> usize {
    end_where(|marker| marker == guard)
}

#[cfg(not(target_os = "linux"))]
fn end_where(_is_meant: impl Fn(Marker) -> bool) -> usize {
    0
}

#[cfg(target_os = "linux")]
fn end_where(is_meant: impl Fn(Marker) -> bool) -> usize {
    use rustix::process::Signal;

    /// So often we look for what was forked while we looked.
    const MOST_ROUNDS: usize = 10;

    let mut ended: Vec<(u32, u64)> = Vec::new();
    let mut folders = HashSet::new();
    for _ in 0..MOST_ROUNDS {
        let mut found = marked(&is_meant);
        found.retain(|process| !ended.contains(&(process.pid, process.began)));
        if found.is_empty() {
            break;
        }
        // Stopped first: who forks on and on would always be ahead of us.
        for process in &found {
            process.signal(Signal::STOP);
        }
        for process in found {
            folders.extend(folder_of_guard(process.pid));
            process.signal(Signal::KILL);
            ended.push((process.pid, process.began));
        }
    }
    for folder in folders {
        remove_abandoned_folder(&folder);
    }
    ended.len()
}

/// The folder that a process is to remove, when it is a guard.
#[cfg(target_os = "linux")]
fn folder_of_guard(pid: u32) -> Option<PathBuf> {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut arguments = line
        .split(|byte| *byte == 0)
        .map(|argument| OsString::from_vec(argument.to_vec()))
        .skip(1);
    if arguments.next()? != SUBCOMMAND {
        return None;
    }
    Settings::parse(arguments.collect()).ok()?.0.folder
}

/// The processes of this user, in this namespace of processes, whose marker is meant. Root's workers may be those of any
/// user.
#[cfg(target_os = "linux")]
fn marked(is_meant: impl Fn(Marker) -> bool) -> Vec<super::descendants::Process> {
    use std::os::unix::fs::MetadataExt as _;

    let ours = std::process::id();
    let user = rustix::process::getuid().as_raw();
    // The numbers in a marker mean nothing in another container.
    let Ok(namespace) = std::fs::read_link("/proc/self/ns/pid") else {
        return Vec::new();
    };
    super::descendants::all()
        .into_iter()
        .filter(|process| process.pid != ours && !process.is_zombie)
        .filter(|process| {
            let folder = format!("/proc/{}", process.pid);
            std::fs::metadata(&folder).is_ok_and(|found| user == 0 || found.uid() == user)
                && std::fs::read_link(format!("{folder}/ns/pid")).is_ok_and(|it| it == namespace)
                && std::fs::read(format!("{folder}/environ"))
                    .ok()
                    .and_then(|variables| marker_in(&variables))
                    .is_some_and(&is_meant)
        })
        .collect()
}

#[cfg(target_os = "linux")]
fn marker_in(variables: &[u8]) -> Option<Marker> {
    let prefix = format!("{MARKER_VARIABLE}=");
    variables
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(prefix.as_bytes()))
        .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        let marker = Marker::next();
        assert_eq!(marker.to_string().parse(), Ok(marker));
        assert_ne!(Marker::next(), marker);
        for bad in ["", "1-2", "1-2-3-4", "a-b-c"] {
            assert_eq!(bad.parse::<Marker>(), Err(()), "{bad}");
        }
        let variables = format!("A=1\0{MARKER_VARIABLE}={marker}\0B=2\0");
        assert_eq!(marker_in(variables.as_bytes()), Some(marker));
        assert_eq!(marker_in(b"A=1\0"), None);
    }

    #[test]
    fn an_engine_is_told_apart_from_a_later_process_with_its_number() {
        let marker = Marker::next();
        assert!(marker.engine_is_alive());
        let earlier = Marker {
            began: marker.began - 1,
            ..marker
        };
        assert!(!earlier.engine_is_alive());
    }
}
