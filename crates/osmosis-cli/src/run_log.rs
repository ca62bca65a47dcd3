//! `logs.txt`: what user code printed and what happened to workers and rollouts, secrets redacted.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use camino::Utf8Path;
use osmosis_core::{Outcome, Redactor, RolloutId};
use osmosis_engine::RunEvent;
use osmosis_worker::WorkerEvent;

use crate::error::{CliError, io};

/// The log of one run. Each line is `TIME SOURCE | TEXT`; the source is a rollout, a worker or `run`.
#[derive(Debug)]
pub(crate) struct RunLog {
    file: File,
    redactor: Redactor,
    failed: bool,
}

impl RunLog {
    /// Opens the log for appending; only its owner can read it.
    pub(crate) fn open(path: &Utf8Path, redactor: Redactor) -> Result<Self, CliError> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| io(path, &error))?;
        Ok(Self {
            file,
            redactor,
            failed: false,
        })
    }

    pub(crate) fn run(&mut self, text: &str) {
        self.write("run", text);
    }

    pub(crate) fn run_event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Began { total, done } => {
                self.run(&format!("{done} of {total} rollouts have a result"));
            }
            RunEvent::Claimed { id, attempt } if attempt.0 > 1 => {
                self.rollout(id, &format!("attempt {attempt}"));
            }
            RunEvent::Claimed { .. } | RunEvent::PhaseBegan { .. } => {}
            RunEvent::Finished { id, outcome, .. } => self.outcome(id, outcome),
            RunEvent::Retrying {
                id, reason, wait, ..
            } => {
                let wait = wait.as_secs_f64();
                self.rollout(id, &format!("will be tried again in {wait:.1} s: {reason}"));
            }
            RunEvent::GradingAgain { id, reason } => {
                self.rollout(id, &format!("will be graded again, alone: {reason}"));
            }
            RunEvent::Draining { in_flight } => {
                self.run(&format!("stopping; {in_flight} rollouts are under way"));
            }
        }
    }

    pub(crate) fn worker_event(&mut self, event: &WorkerEvent) {
        match event {
            WorkerEvent::Output {
                worker,
                rollout_id,
                line,
            } => match rollout_id {
                Some(id) => self.rollout(id, line),
                None => self.worker(*worker, line),
            },
            WorkerEvent::Started { worker, role, pid } => {
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
            } => self.worker(
                *worker,
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
            self.rollout(id, traceback);
        }
    }

    fn rollout(&mut self, id: &RolloutId, text: &str) {
        self.write(id.as_str(), text);
    }

    fn worker(&mut self, worker: u64, text: &str) {
        self.write(&format!("worker-{worker}"), text);
    }

    fn write(&mut self, source: &str, text: &str) {
        let now = jiff::Timestamp::now();
        let mut lines = String::new();
        for line in self.redactor.clean(text).trim_end().split('\n') {
            let _ = writeln!(lines, "{now:.3} {source} | {line}");
        }
        if let Err(error) = self.file.write_all(lines.as_bytes())
            && !self.failed
        {
            // The run matters more than its log; say it once.
            self.failed = true;
            tracing::warn!(%error, "the run's log can't be written");
        }
    }
}
