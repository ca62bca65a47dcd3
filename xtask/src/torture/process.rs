//! Processes: those that a round starts, and all that come of them.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;

use super::faults::Victim;

/// How often something is looked at that can't be waited for.
pub(super) const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug, Clone)]
pub(super) struct ProcessInfo {
    pub(super) pid: u32,
    pub(super) parent: u32,
    pub(super) zombie: bool,
    /// Its arguments, separated by spaces.
    pub(super) command: String,
}

/// All processes below this one.
pub(super) fn below(pid: u32) -> Vec<ProcessInfo> {
    let all = all();
    let mut found: Vec<ProcessInfo> = vec![];
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for process in all.iter().filter(|process| process.parent == parent) {
            parents.push(process.pid);
            found.push(process.clone());
        }
    }
    found
}

fn all() -> Vec<ProcessInfo> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return vec![];
    };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(info)
        .collect()
}

/// `None` when it is gone.
fn info(pid: u32) -> Option<ProcessInfo> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&arguments).replace('\0', " ");
    Some(ProcessInfo {
        pid,
        parent,
        zombie: matches!(state, "Z" | "X"),
        command: command.trim_end().to_owned(),
    })
}

pub(super) fn virtual_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmSize:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Whether the signal reached a process.
pub(super) fn signal(pid: u32, signal: Signal) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// What still lives below this process. All of it comes from engines that have ended: orphans come to us,
/// because we are their reaper.
pub(super) fn left_behind() -> Vec<ProcessInfo> {
    let left = below(std::process::id());
    let awaited = AWAITED.lock().unwrap_or_else(PoisonError::into_inner);
    for zombie in left.iter().filter(|process| process.zombie) {
        if !awaited.contains(&zombie.pid) {
            reap(zombie.pid);
        }
    }
    left.into_iter().filter(|process| !process.zombie).collect()
}

fn reap(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It is somebody else's child when this fails, and theirs to reap.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// Engines whose end somebody waits for, and who must be the one to learn how it was.
static AWAITED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// An `osmosis` that was started, with its output in files.
#[derive(Debug)]
pub(super) struct Engine {
    child: Child,
    pub(super) victim: Victim,
    ended: Option<ExitStatus>,
    stdout: Utf8PathBuf,
    stderr: Utf8PathBuf,
}

impl Engine {
    /// `number` tells its files from those of others.
    pub(super) fn start(
        command: &mut Command,
        victim: Victim,
        outputs: &Utf8Path,
        number: u32,
    ) -> Result<Self> {
        let file = |kind: &str| outputs.join(format!("{number:03}.{kind}"));
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()
            .context("osmosis could not be started")?;
        let mut awaited = AWAITED.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.insert(child.id());
        Ok(Self {
            child,
            victim,
            ended: None,
            stdout,
            stderr,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.wait(Duration::ZERO).is_none()
    }

    /// How it ended; `None` when it still runs after so long.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        while self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
            if self.ended.is_none() {
                if Instant::now() >= until {
                    return None;
                }
                std::thread::park_timeout(LOOK);
            }
        }
        self.ended
    }

    /// The first JSON value that it prints: where it serves.
    pub(super) fn serving(&mut self, limit: Duration) -> Result<Value> {
        let until = Instant::now() + limit;
        loop {
            let said = std::fs::read_to_string(&self.stdout)?;
            if let Some(Ok(envelope)) = serde_json::Deserializer::from_str(&said)
                .into_iter::<Value>()
                .next()
            {
                return Ok(envelope["resource"].clone());
            }
            if !self.is_running() {
                bail!("it ended at once: {}", self.errors());
            }
            if Instant::now() >= until {
                bail!("it does not serve after {limit:?}");
            }
            std::thread::park_timeout(LOOK);
        }
    }

    pub(super) fn errors(&self) -> String {
        let bytes = std::fs::read(&self.stderr).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What it printed.
    pub(super) fn output(&self) -> String {
        let bytes = std::fs::read(&self.stdout).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Ends it, whatever state it is in.
    pub(super) fn end(&mut self) {
        while self.ended.is_none() {
            let _ = self.child.kill();
            self.wait(Duration::from_secs(5));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
        let mut awaited = AWAITED.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.remove(&self.pid());
    }
}

/// In words.
pub(super) fn told(status: Option<ExitStatus>) -> String {
    match status {
        None => "still runs".to_owned(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => status.to_string(),
        },
    }
}
