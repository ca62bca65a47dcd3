//! `--progress ndjson`: one JSON object for each line, for programs that watch a run.
//! `docs/evaluation.md` says what each holds.

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use camino::Utf8Path;
use osmosis_core::{Outcome, Phase, Redactor};
use osmosis_engine::RunEvent;
use osmosis_run::{RunError, io_error as io};
use serde_json::{Value, json};

use super::tally::Tally;
use crate::private_files;
use crate::terminal;
use osmosis_run::eval::live_view::LiveSnapshot;

const SCHEMA_VERSION: u32 = 1;
/// Rollouts that are told one by one.
const MOST_TOLD: usize = 10;

#[derive(Debug)]
pub(super) struct JsonLines {
    /// Standard error without one.
    file: Option<File>,
    redactor: Redactor,
}

impl JsonLines {
    pub(super) fn on_stderr(redactor: Redactor) -> Self {
        Self {
            file: None,
            redactor,
        }
    }

    pub(super) fn to_file(path: &Utf8Path, redactor: Redactor) -> Result<Self, RunError> {
        let file = File::create(path)
            .and_then(|file| private_files::share(path).map(|()| file))
            .map_err(|error| io(path, &error))?;
        Ok(Self {
            file: Some(file),
            redactor,
        })
    }

    pub(super) fn event(&mut self, event: &RunEvent) {
        let told = match event {
            RunEvent::Began { total, done } => {
                json!({"event": "began", "total": total, "done": done})
            }
            RunEvent::Finished {
                id,
                outcome,
                durations,
                calls,
            } => json!({
                "event": "finished",
                "rollout_id": id,
                "outcome": outcome.kind(),
                "reward": outcome.reward(),
                "passed": outcome.passed(),
                "error": self.error_of(outcome),
                "durations": durations,
                "calls": calls,
            }),
            RunEvent::Retrying {
                id,
                attempt,
                reason,
                wait,
            } => json!({
                "event": "retrying",
                "rollout_id": id,
                "attempt": attempt,
                "reason": self.redactor.clean(reason),
                "wait_s": wait.as_secs_f64(),
            }),
            RunEvent::GradingAgain { id, reason } => json!({
                "event": "grading_again",
                "rollout_id": id,
                "reason": self.redactor.clean(reason),
            }),
            RunEvent::Draining { in_flight } => {
                json!({"event": "draining", "under_way": in_flight})
            }
            // Told by the next `progress`.
            RunEvent::Claimed { .. } | RunEvent::PhaseBegan { .. } => return,
        };
        self.write(told);
    }

    pub(super) fn progress(&mut self, tally: &Tally, seen: Option<&LiveSnapshot>) {
        let line = self.status("progress", tally, seen);
        self.write(line);
    }

    pub(super) fn ended(&mut self, tally: &Tally, seen: Option<&LiveSnapshot>) {
        let line = self.status("ended", tally, seen);
        self.write(line);
    }

    fn status(&self, event: &str, tally: &Tally, seen: Option<&LiveSnapshot>) -> Value {
        let now = Instant::now();
        let oldest: Vec<Value> = tally
            .oldest(MOST_TOLD)
            .into_iter()
            .map(|(id, at)| {
                let live =
                    seen.and_then(|seen| seen.rollouts.iter().find(|live| live.rollout == *id));
                json!({
                    "rollout_id": id,
                    "phase": at.phase.map(|phase| match phase {
                        Phase::Agent => "agent",
                        Phase::Grade => "grade",
                    }),
                    "age_s": seconds(now.duration_since(at.since).as_secs_f64()),
                    "calls": live.map(|live| live.calls),
                    "calls_under_way": live.map(|live| live.under_way),
                })
            })
            .collect();
        let servers = seen.and_then(|seen| seen.servers.as_ref()).map(|load| {
            let mut endpoints = serde_json::to_value(&load.endpoints).unwrap_or_default();
            for endpoint in endpoints.as_array_mut().into_iter().flatten() {
                if let Some(error) = endpoint["last_error"].as_str() {
                    endpoint["last_error"] = json!(self.redactor.clean(error));
                }
            }
            json!({"calls_queued": load.queued, "endpoints": endpoints})
        });
        let eta = tally.eta(now);
        json!({
            "event": event,
            "total": tally.total,
            "done": tally.done,
            "ran": tally.ran,
            "passed": tally.passed,
            "failed": tally.failed,
            "infrastructure_failed": tally.infrastructure,
            "retries": tally.retries,
            "under_way": tally.in_flight(),
            "elapsed_s": seconds(tally.elapsed(now).as_secs_f64()),
            "eta_s": eta.map(|eta| [seconds(eta.low), seconds(eta.high)]),
            "calls": seen.map(|seen| seen.calls),
            "cost_usd": seen.and_then(|seen| seen.cost),
            "oldest": oldest,
            "servers": servers,
        })
    }

    fn error_of(&self, outcome: &Outcome) -> Option<String> {
        outcome.explanation().map(|why| self.redactor.clean(&why))
    }

    fn write(&mut self, mut told: Value) {
        if let Value::Object(map) = &mut told {
            let at = jiff::Timestamp::now().as_millisecond();
            map.insert("schema_version".to_owned(), json!(SCHEMA_VERSION));
            map.insert("at_ms".to_owned(), json!(at));
        }
        let line = format!("{told}\n");
        match &mut self.file {
            // Who reads it may have gone; the run goes on.
            Some(file) => {
                let _ = file.write_all(line.as_bytes());
            }
            None => terminal::write_json_err(&line),
        }
    }
}

/// To milliseconds.
fn seconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
