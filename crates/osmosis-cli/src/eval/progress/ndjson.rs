//! `--progress ndjson`: one JSON object for each line, for programs that watch a run.
//! `docs/evaluation.md` says what each holds.

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use camino::Utf8Path;
use osmosis_core::Redactor;
use osmosis_engine::RunEvent;
use osmosis_run::eval::live_view::LiveSnapshot;
use osmosis_run::reports::{
    OldRollout, ProgressEvent, ProgressLine, ProgressStatus, WatchedServers,
};
use osmosis_run::{RunError, io_error as io};

use super::tally::Tally;
use crate::private_files;
use crate::terminal;

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
        if let Some(event) = ProgressEvent::of(event, &self.redactor) {
            self.write(event);
        }
    }

    pub(super) fn progress(&mut self, tally: &Tally, seen: Option<&LiveSnapshot>) {
        let status = self.status(tally, seen);
        self.write(ProgressEvent::Progress(status));
    }

    pub(super) fn ended(&mut self, tally: &Tally, seen: Option<&LiveSnapshot>) {
        let status = self.status(tally, seen);
        self.write(ProgressEvent::Ended(status));
    }

    fn status(&self, tally: &Tally, seen: Option<&LiveSnapshot>) -> ProgressStatus {
        let now = Instant::now();
        let oldest = tally.oldest(MOST_TOLD).into_iter().map(|(id, at)| {
            let live = seen.and_then(|seen| seen.rollouts.iter().find(|live| live.rollout == *id));
            OldRollout {
                rollout_id: id.clone(),
                phase: at.phase,
                age_s: seconds(now.duration_since(at.since).as_secs_f64()),
                calls: live.map(|live| live.calls),
                calls_under_way: live.map(|live| live.under_way),
            }
        });
        let eta = tally.eta(now);
        let servers = seen.and_then(|seen| seen.servers.as_ref());
        ProgressStatus {
            total: tally.total,
            done: tally.done,
            ran: tally.ran,
            passed: tally.passed,
            failed: tally.failed,
            infrastructure_failed: tally.infrastructure,
            retries: tally.retries,
            under_way: tally.in_flight(),
            elapsed_s: seconds(tally.elapsed(now).as_secs_f64()),
            eta_s: eta.map(|eta| [seconds(eta.low), seconds(eta.high)]),
            calls: seen.map(|seen| seen.calls),
            cost_usd: seen.and_then(|seen| seen.cost),
            oldest: oldest.collect(),
            servers: servers.map(|load| WatchedServers::of(load, &self.redactor)),
        }
    }

    fn write(&mut self, event: ProgressEvent) {
        // Numbers, texts and maps by text: nothing that could not be written.
        let line = serde_json::to_string(&ProgressLine::now(event)).unwrap_or_default() + "\n";
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
