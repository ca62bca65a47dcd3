//! What must hold after everything that was done.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use camino::{Utf8Path, Utf8PathBuf};
use rusqlite::Connection;
use serde_json::Value;

use super::faults::{Fault, Victim};
use super::process::{self, LOOK};
use super::rounds::{Round, row_of};

/// How long children of agents may live after the engine was killed, or has ended.
const CHILDREN: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Invariant {
    OneResult,
    AcceptedStays,
    SameResults,
    InnocentScored,
    CulpritFailed,
    AcknowledgedOnce,
    NothingSkipped,
    BatchStays,
    CalledBack,
    ResendIsIdempotent,
    AnsweredIsRecorded,
    ResumeCompletes,
    EndsWhenAsked,
    Verified,
    NoChildAfterKill,
    NoProcess,
    NothingTemporary,
    NoSocket,
    NoMount,
    NoSecret,
    Private,
    CleanTerminal,
    BoundedLogs,
    NoPanic,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneResult => "one accepted result for each rollout",
            Self::AcceptedStays => "an accepted result never changes",
            Self::SameResults => "the results are those of an undisturbed run",
            Self::InnocentScored => "the neighbours of hostile agents are scored",
            Self::CulpritFailed => "hostile agents fail, after at most 10 attempts",
            Self::AcknowledgedOnce => "an acknowledged batch never comes again",
            Self::NothingSkipped => "batches come in order, and none is skipped",
            Self::BatchStays => "a recorded batch is repeated as it was",
            Self::CalledBack => "every accepted rollout is called back",
            Self::ResendIsIdempotent => "a request that is sent again is accepted again",
            Self::AnsweredIsRecorded => "every answered call is recorded",
            Self::ResumeCompletes => "a resume completes",
            Self::EndsWhenAsked => "a signal ends it in time",
            Self::Verified => "`run verify` finds the run whole",
            Self::NoChildAfterKill => "no child of an agent lives 15 s after a kill",
            Self::NoProcess => "no process is left at the end",
            Self::NothingTemporary => "no temporary file or folder is left",
            Self::NoSocket => "no socket is left",
            Self::NoMount => "no mount is left",
            Self::NoSecret => "no secret is in any file",
            Self::Private => "nobody else can read the files",
            Self::CleanTerminal => "no escape sequence reaches the terminal",
            Self::BoundedLogs => "`logs.txt` is bounded",
            Self::NoPanic => "nothing panicked",
        })
    }
}

/// A rollout that has its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Accepted {
    pub(super) outcome: String,
    pub(super) reward: Option<f64>,
    pub(super) attempt: i64,
}

impl Round<'_> {
    /// What can be looked at when everything has ended, whatever kind of round it was.
    pub(super) fn check_the_end(&mut self) -> Result<()> {
        if self.leaves_orphans() {
            // What forked twice may live until something is started again.
            let mut another = self.workspace.another_eval()?;
            self.complete(&mut another, Victim::Eval)?;
        }
        self.check_processes(Invariant::NoProcess, |_| true);
        self.check_sockets();
        self.check_temporary()?;
        self.check_mounts()?;
        self.check_secrets()?;
        self.check_privacy()?;
        self.check_outputs()?;
        self.check_verified()
    }

    /// Waits until those processes are gone that should be, and ends those that are not.
    pub(super) fn check_processes(
        &mut self,
        invariant: Invariant,
        counts: impl Fn(&process::ProcessInfo) -> bool,
    ) {
        let until = Instant::now() + CHILDREN;
        let mut left = process::left_behind();
        left.retain(&counts);
        while !left.is_empty() && Instant::now() < until {
            std::thread::park_timeout(LOOK);
            left = process::left_behind();
            left.retain(&counts);
        }
        self.check(invariant, left.is_empty(), || {
            let commands: Vec<&str> = left.iter().map(|p| p.command.as_str()).collect();
            format!("{} are left: {}", left.len(), commands.join("; "))
        });
        for process in left {
            process::signal(process.pid, rustix::process::Signal::KILL);
        }
    }

    /// After a kill: what its agents started is gone in time. (What forked twice may live until the next
    /// start.)
    pub(super) fn check_after_kill(&mut self) {
        if !self.leaves_orphans() {
            self.check_processes(Invariant::NoChildAfterKill, |_| true);
        }
    }

    fn check_sockets(&mut self) {
        let folder = self.folder.to_string();
        let listed = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let left: Vec<&str> = listed
            .lines()
            .filter_map(|line| line.split_whitespace().nth(7))
            .filter(|path| path.contains(&folder))
            .collect();
        self.check(Invariant::NoSocket, left.is_empty(), || left.join(", "));
    }

    fn check_temporary(&mut self) -> Result<()> {
        let left: Vec<String> = files_below(&self.workspace.temporary)?
            .into_iter()
            .map(|path| path.to_string())
            .collect();
        let folders = std::fs::read_dir(&self.workspace.temporary)?.count();
        self.check(Invariant::NothingTemporary, folders == 0, || {
            format!("{folders} entries: {}", left.join(", "))
        });
        Ok(())
    }

    fn check_mounts(&mut self) -> Result<()> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let left: Vec<&str> = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|place| Utf8Path::new(place).starts_with(&self.folder))
            .collect();
        self.check(Invariant::NoMount, left.is_empty(), || left.join(", "));
        Ok(())
    }

    /// Neither the runs nor what was printed hold a secret, apart from those that a server prints for its
    /// callers.
    fn check_secrets(&mut self) -> Result<()> {
        let mut found = vec![];
        let canaries = self.workspace.canaries.clone();
        let runs = files_below(&self.workspace.runs())?;
        for path in runs.iter().chain(&files_below(&self.workspace.temporary)?) {
            let bytes = std::fs::read(path).unwrap_or_default();
            found.extend(canaries_in(&bytes, &canaries.all()).map(|c| format!("{c} in {path}")));
        }
        for path in files_below(&self.workspace.outputs)? {
            let bytes = std::fs::read(&path)?;
            let hidden = [canaries.search.as_str(), &canaries.model];
            found.extend(canaries_in(&bytes, &hidden).map(|c| format!("{c} in {path}")));
        }
        self.check(Invariant::NoSecret, found.is_empty(), || found.join(", "));
        Ok(())
    }

    fn check_privacy(&mut self) -> Result<()> {
        let mut open = vec![];
        let runs = self.workspace.runs();
        if runs.exists() {
            open.extend(readable_by_others(&runs)?);
        }
        let shown: Vec<&str> = open.iter().take(5).map(|p| p.as_str()).collect();
        self.check(Invariant::Private, open.is_empty(), || {
            format!("{} are open to others: {} …", open.len(), shown.join(", "))
        });
        Ok(())
    }

    fn check_outputs(&mut self) -> Result<()> {
        let mut panics = vec![];
        for path in files_below(&self.workspace.outputs)? {
            let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            if let Some(line) = text.lines().find(|line| line.contains("panicked at")) {
                panics.push(format!("{path}: {line}"));
            }
        }
        self.check(Invariant::NoPanic, panics.is_empty(), || panics.join("\n"));
        Ok(())
    }

    /// Asks the program itself, where it can tell.
    fn check_verified(&mut self) -> Result<()> {
        if !self.machine.verifies {
            return Ok(());
        }
        for kind in ["evals", "training", "serve"] {
            if !self.workspace.run_folder(kind).join("run.db").exists() {
                continue;
            }
            let run = format!("{kind}/t");
            let output = self.workspace.command(&["run", "verify", &run]).output()?;
            self.check(Invariant::Verified, output.status.success(), || {
                let said = [output.stdout.clone(), output.stderr.clone()].concat();
                String::from_utf8_lossy(&said).into_owned()
            });
        }
        Ok(())
    }

    /// The results that the database of a run has, read from a copy so that nothing is changed.
    pub(super) fn accepted(&self, run: &Utf8Path) -> Result<BTreeMap<String, Accepted>> {
        let Some(copy) = self.copy_of_database(run)? else {
            return Ok(BTreeMap::new());
        };
        let mut select = copy.prepare(
            "SELECT rollout_id, outcome, reward, attempt FROM rollouts WHERE state = 'done'",
        )?;
        let rows = select.query_map([], |row| {
            let accepted = Accepted {
                outcome: row.get(1)?,
                reward: row.get(2)?,
                attempt: row.get(3)?,
            };
            Ok((row.get(0)?, accepted))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Counts what agents did: whoever has an attempt has begun.
    pub(super) fn count_deeds(&mut self, run: &Utf8Path) -> Result<()> {
        let Some(copy) = self.copy_of_database(run)? else {
            return Ok(());
        };
        let mut select = copy.prepare("SELECT rollout_id FROM rollouts WHERE attempt > 0")?;
        let ids = select.query_map([], |row| row.get::<_, String>(0))?;
        for id in ids {
            let deed = row_of(&id?).and_then(|row| self.deeds.get(&row));
            if let Some(deed) = deed {
                self.table.injected(Fault::Hostile(*deed));
            }
        }
        Ok(())
    }

    /// Recorded batches and what they hold.
    pub(super) fn batches(&self, run: &Utf8Path) -> Result<Vec<(i64, String)>> {
        let Some(copy) = self.copy_of_database(run)? else {
            return Ok(vec![]);
        };
        let mut select = copy.prepare("SELECT number, content FROM batches ORDER BY number")?;
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// `None` when the run has none yet.
    fn copy_of_database(&self, run: &Utf8Path) -> Result<Option<Connection>> {
        let copies = self.folder.join("copy");
        if copies.exists() {
            std::fs::remove_dir_all(&copies)?;
        }
        std::fs::create_dir_all(&copies)?;
        for name in ["run.db", "run.db-wal"] {
            let from = run.join(name);
            if from.exists() {
                std::fs::copy(&from, copies.join(name))?;
            }
        }
        let path = copies.join("run.db");
        if !path.exists() {
            return Ok(None);
        }
        let connection = Connection::open(&path)?;
        let tables: i64 = connection.query_row(
            "SELECT COUNT(*) FROM sqlite_schema WHERE name IN ('rollouts', 'batches')",
            [],
            |row| row.get(0),
        )?;
        Ok((tables == 2).then_some(connection))
    }

    /// Each rollout has one result, its samples and its calls; no result of before has changed.
    pub(super) fn check_results(
        &mut self,
        run: &Utf8Path,
        rollouts: usize,
        before: &BTreeMap<String, Accepted>,
    ) -> Result<BTreeMap<String, Accepted>> {
        let accepted = self.accepted(run)?;
        let index = index(run)?;
        let mut ids: Vec<&str> = index
            .iter()
            .filter_map(|line| line["rollout_id"].as_str())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let counts = (accepted.len(), index.len(), ids.len());
        let expected = (rollouts, rollouts, rollouts);
        self.check(Invariant::OneResult, counts == expected, || {
            format!("accepted, lines, rollouts of the index: {counts:?} instead of {rollouts}")
        });
        let changed: Vec<String> = before
            .iter()
            // What failed for reasons of the infrastructure runs again, by design.
            .filter(|(_, was)| was.outcome != "infrastructure_failed")
            .filter(|(id, was)| accepted.get(*id) != Some(was))
            .map(|(id, was)| format!("{id} was {was:?}, is {:?}", accepted.get(id)))
            .collect();
        self.check(Invariant::AcceptedStays, changed.is_empty(), || {
            changed.join("; ")
        });
        Ok(accepted)
    }
}

/// The lines of `index.jsonl`.
pub(super) fn index(run: &Utf8Path) -> Result<Vec<Value>> {
    let path = run.join("index.jsonl");
    let text = std::fs::read_to_string(&path).with_context(|| path.to_string())?;
    let lines = text.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

/// Which of these stand in there.
fn canaries_in<'a>(bytes: &[u8], canaries: &[&'a str]) -> impl Iterator<Item = &'a str> + use<'a> {
    let mut found: Vec<&str> = vec![];
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'c') {
        let rest = &bytes[at..];
        let hit = canaries.iter().find(|c| rest.starts_with(c.as_bytes()));
        if let Some(canary) = hit
            && !found.contains(canary)
        {
            found.push(canary);
        }
    }
    found.into_iter()
}

/// All files below a folder; none where there is no folder.
pub(super) fn files_below(folder: &Utf8Path) -> Result<Vec<Utf8PathBuf>> {
    let mut files = vec![];
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = folder.read_dir_utf8() else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.into_path());
            } else {
                files.push(entry.into_path());
            }
        }
    }
    files.sort();
    Ok(files)
}

fn readable_by_others(folder: &Utf8Path) -> Result<Vec<Utf8PathBuf>> {
    let mut open = vec![];
    let mut places = vec![folder.to_owned()];
    while let Some(place) = places.pop() {
        let about = std::fs::symlink_metadata(&place)?;
        if !about.file_type().is_symlink() && about.permissions().mode() & 0o077 != 0 {
            open.push(place.clone());
        }
        if about.is_dir() {
            for entry in place.read_dir_utf8()? {
                places.push(entry?.into_path());
            }
        }
    }
    Ok(open)
}
