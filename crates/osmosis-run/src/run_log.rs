//! `logs.txt`: what user code printed and what happened to workers and rollouts, secrets redacted. What user code
//! prints is bounded by `[logs]`, and a line says what was cut; what we write ourselves is always kept.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use camino::Utf8Path;
use osmosis_core::config::LogLimits;
use osmosis_core::{Outcome, Redactor, RolloutId};
use osmosis_engine::RunEvent;
use osmosis_worker::{Role, WorkerEvent};

use crate::figures::thousands;
use crate::log_budget::{Admission, CutOutput, Limit, LogBudget, Printer};
use crate::{RunError, io_error as io};

/// Our own lines may quote what user code said; more of it than this helps nobody.
const MOST_OF_OUR_OWN: usize = 16 * 1024;

/// The words behind a rollout's id on a line that user code printed: which part of it did.
pub(crate) const AGENT: &str = "agent";
pub(crate) const GRADER: &str = "grader";

/// How the line begins that says which attempt at a rollout the lines after it are of; the first has none.
pub(crate) const ATTEMPT: &str = "attempt ";
/// How the line begins that says why an attempt ended without a result; the reason follows a colon.
pub(crate) const TRIED_AGAIN: &str = "will be tried again in ";

/// The log of one run. Each line is `TIME SOURCE | TEXT`; the source is a rollout, a worker or `run`. Lines that user
/// code printed in a rollout have [`AGENT`] or [`GRADER`] behind its id.
#[derive(Debug)]
pub struct RunLog {
    file: File,
    /// Workers that grade; all others run agents.
    graders: HashSet<u64>,
    redactor: Redactor,
    budget: LogBudget,
    failed: bool,
}

impl RunLog {
    /// Opens the log for appending; only its owner can read it.
    pub fn open(path: &Utf8Path, redactor: Redactor, limits: LogLimits) -> Result<Self, RunError> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| io(path, &error))?;
        let written = file.metadata().map_or(0, |found| found.len());
        Ok(Self {
            file,
            graders: HashSet::new(),
            budget: LogBudget::new(limits, written),
            redactor,
            failed: false,
        })
    }

    pub fn run(&mut self, text: &str) {
        self.write("run", text);
    }

    pub fn run_event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Began { total, done } => {
                self.run(&format!("{done} of {total} rollouts have a result"));
            }
            RunEvent::Claimed { id, attempt } => {
                self.budget.rollout_began();
                if attempt.0 > 1 {
                    self.rollout(id, &format!("{ATTEMPT}{attempt}"));
                }
            }
            RunEvent::PhaseBegan { .. } => {}
            RunEvent::Finished { id, outcome, .. } => {
                self.outcome(id, outcome);
                if let Some(cut) = self.budget.rollout_finished(id) {
                    self.rollout(id, &cut_text(cut));
                }
            }
            RunEvent::Retrying {
                id, reason, wait, ..
            } => {
                let wait = wait.as_secs_f64();
                self.rollout(id, &format!("{TRIED_AGAIN}{wait:.1} s: {reason}"));
            }
            RunEvent::GradingAgain { id, reason } => {
                self.rollout(id, &format!("will be graded again, alone: {reason}"));
            }
            RunEvent::Draining { in_flight } => {
                self.run(&format!("stopping; {in_flight} rollouts are under way"));
            }
        }
    }

    pub fn worker_event(&mut self, event: &WorkerEvent) {
        match event {
            WorkerEvent::Output {
                worker,
                rollout_id,
                line,
            } => match rollout_id {
                Some(id) => {
                    let printer = if self.graders.contains(worker) {
                        GRADER
                    } else {
                        AGENT
                    };
                    self.printed(Printer::Rollout(id), &format!("{id} {printer}"), line);
                }
                None => self.printed(Printer::Unknown, &worker_name(*worker), line),
            },
            WorkerEvent::Started { worker, role, pid } => {
                match role {
                    Role::Grader => self.graders.insert(*worker),
                    Role::Agent => self.graders.remove(worker),
                };
                self.worker(*worker, &format!("started as {role:?}, process {pid}"));
            }
            WorkerEvent::Died {
                worker,
                detail,
                held,
                ..
            } => {
                let held: Vec<&str> = held.iter().map(RolloutId::as_str).collect();
                self.worker(*worker, &format!("{detail}; it held [{}]", held.join(", ")));
            }
            WorkerEvent::Killed { worker, reason, .. } => {
                self.worker(*worker, &format!("killed: {reason}"));
            }
            WorkerEvent::LoopBlocked {
                worker,
                blocked_ms,
                stack,
            } => self.printed(
                // As often as the worker likes.
                Printer::Unknown,
                &worker_name(*worker),
                &format!("its event loop is blocked for {blocked_ms} ms:\n{stack}"),
            ),
        }
    }

    fn outcome(&mut self, id: &RolloutId, outcome: &Outcome) {
        let kind = outcome.kind();
        let text = match (outcome.reward(), outcome.explanation()) {
            (Some(reward), _) => format!("{kind}: reward {reward}"),
            (None, Some(why)) => format!("{kind}: {why}"),
            (None, None) => kind.to_string(),
        };
        self.rollout(id, &text);
        if let Outcome::AgentFailed { failure } | Outcome::Ungraded { failure } = outcome
            && let Some(traceback) = &failure.traceback
        {
            self.printed(Printer::Rollout(id), id.as_str(), traceback);
        }
    }

    fn rollout(&mut self, id: &RolloutId, text: &str) {
        self.write(id.as_str(), text);
    }

    fn worker(&mut self, worker: u64, text: &str) {
        self.write(&worker_name(worker), text);
    }

    /// Writes what user code said, as far as the budget goes.
    fn printed(&mut self, printer: Printer<'_>, source: &str, text: &str) {
        // Taking the secrets out of a flood of text would slow down whoever waits behind it.
        let lines = if self.budget.is_spent(printer, text.len() as u64) {
            None
        } else {
            Some(self.lines(source, text))
        };
        let bytes = lines.as_ref().map_or(text.len(), String::len) as u64;
        let count = text.trim_end().split('\n').count() as u64;
        match self.budget.admit(printer, bytes, count) {
            Admission::Keep => self.append(&lines.unwrap_or_default()),
            Admission::FirstCut(limit) => {
                // A line of our own, not one that user code printed.
                let source = match printer {
                    Printer::Rollout(id) => id.as_str(),
                    Printer::Unknown => source,
                };
                self.write(source, &limit_text(limit));
            }
            Admission::Cut => {}
        }
    }

    /// Writes a line of our own.
    fn write(&mut self, source: &str, text: &str) {
        let kept = text.floor_char_boundary(MOST_OF_OUR_OWN);
        let lines = if kept < text.len() {
            let more = thousands((text.len() - kept) as u64);
            self.lines(source, &format!("{} … ({more} bytes more)", &text[..kept]))
        } else {
            self.lines(source, text)
        };
        self.budget.count_own(lines.len() as u64);
        self.append(&lines);
    }

    fn lines(&self, source: &str, text: &str) -> String {
        let now = jiff::Timestamp::now();
        let mut lines = String::new();
        for line in self.redactor.clean(text).trim_end().split('\n') {
            let _ = writeln!(lines, "{now:.3} {source} | {line}");
        }
        lines
    }

    fn append(&mut self, lines: &str) {
        if let Err(error) = self.file.write_all(lines.as_bytes())
            && !self.failed
        {
            // The run matters more than its log; say it once.
            self.failed = true;
            tracing::warn!(%error, "the run's log can't be written");
        }
    }
}

impl Drop for RunLog {
    fn drop(&mut self) {
        for (rollout, cut) in self.budget.close() {
            let source = rollout.as_ref().map_or("run", RolloutId::as_str);
            self.write(source, &cut_text(cut));
        }
    }
}

fn worker_name(worker: u64) -> String {
    format!("worker-{worker}")
}

fn limit_text(limit: Limit) -> String {
    let (bytes, whose, key) = match limit {
        Limit::Rollout(bytes) => (bytes, "this rollout or worker", "max_bytes_per_rollout"),
        Limit::Run(bytes) => (bytes, "any rollout", "max_bytes_per_run"),
    };
    format!(
        "[osmosis: log limit of {} bytes reached; further output of {whose} is not kept (`{key}` in [logs])]",
        thousands(bytes)
    )
}

fn cut_text(cut: CutOutput) -> String {
    format!(
        "[osmosis: {} bytes of output in {} lines were not kept]",
        thousands(cut.bytes),
        thousands(cut.lines)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(limits: LogLimits) -> (tempfile::TempDir, camino::Utf8PathBuf, RunLog) {
        let folder = tempfile::tempdir().unwrap();
        let path = camino::Utf8PathBuf::from_path_buf(folder.path().join("logs.txt")).unwrap();
        let log = RunLog::open(&path, Redactor::default(), limits).unwrap();
        (folder, path, log)
    }

    fn output(rollout: Option<RolloutId>, line: &str) -> WorkerEvent {
        WorkerEvent::Output {
            worker: 1,
            rollout_id: rollout,
            line: line.to_owned(),
        }
    }

    #[test]
    fn a_flood_is_cut_and_both_lines_say_so() {
        let (_folder, path, mut log) = log(LogLimits::default());
        let line = "x".repeat(60_000);
        for _ in 0..1_000 {
            log.worker_event(&output(Some(RolloutId::of(0, 0)), &line));
        }
        log.worker_event(&output(Some(RolloutId::of(1, 0)), "a neighbour"));
        drop(log);
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.len() < 1024 * 1024 + 1024, "{}", text.len());
        assert!(text.contains("log limit of 1,048,576 bytes reached"));
        let end = &text[text.len() - 300..];
        assert!(
            end.contains("58,980,039 bytes of output in 983 lines were not kept"),
            "{end}"
        );
        assert!(text.contains("a neighbour"));
    }

    #[test]
    fn what_a_grader_prints_is_told_apart_from_what_an_agent_prints() {
        let (_folder, path, mut log) = log(LogLimits::default());
        for (worker, role) in [(1, Role::Agent), (2, Role::Grader)] {
            let pid = 7;
            log.worker_event(&WorkerEvent::Started { worker, role, pid });
        }
        for worker in [1, 2] {
            log.worker_event(&WorkerEvent::Output {
                worker,
                rollout_id: Some(RolloutId::of(3, 0)),
                line: "said".to_owned(),
            });
        }
        drop(log);
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("r3-0")).collect();
        assert!(lines[0].ends_with(" r3-0 agent | said"), "{text}");
        assert!(lines[1].ends_with(" r3-0 grader | said"), "{text}");
    }

    #[test]
    fn our_own_lines_are_kept_beyond_every_limit() {
        let (_folder, path, mut log) = log(LogLimits {
            max_bytes_per_rollout: 0,
            max_bytes_per_run: 0,
        });
        log.worker_event(&output(None, "of a subprocess"));
        log.run("ours");
        log.run(&"é".repeat(MOST_OF_OUR_OWN));
        drop(log);
        let text = std::fs::read_to_string(path).unwrap();
        assert!(!text.contains("of a subprocess"), "{text}");
        assert!(text.contains("run | ours"), "{text}");
        assert!(text.contains("(16,384 bytes more)"), "{text}");
    }
}
