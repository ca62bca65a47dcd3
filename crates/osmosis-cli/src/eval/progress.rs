//! The live display: a moving line on a terminal, a plain line every 10 seconds elsewhere.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use osmosis_engine::RunEvent;

use crate::display::View;
use crate::figures::duration_text;
use crate::output::Output;
use crate::run_log::RunLog;

/// How often a plain line is written when standard error is no terminal.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// Counts events and shows them.
#[derive(Debug)]
pub(crate) struct Progress {
    output: Output,
    bar: Option<ProgressBar>,
    began: Instant,
    last_plain: Instant,
    tally: Tally,
}

/// What the line says.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    total: u64,
    /// Results there when this process began.
    before: u64,
    done: u64,
    /// Of those finished by this process.
    ran: u64,
    passed: u64,
    failed: u64,
    infrastructure: u64,
    retries: u64,
    in_flight: u64,
}

impl Progress {
    pub(crate) fn new(output: Output) -> Self {
        Self {
            output,
            bar: None,
            began: Instant::now(),
            last_plain: Instant::now(),
            tally: Tally::default(),
        }
    }

    /// Only when the run begins: until then other things are written to the terminal.
    fn show_bar(&mut self) {
        if !self.output.moves() {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:24} {msg}") {
            bar.set_style(style.progress_chars("━╸ "));
        }
        bar.set_length(self.tally.total);
        bar.enable_steady_tick(Duration::from_millis(120));
        self.bar = Some(bar);
    }

    fn show(&mut self) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.tally.done);
            bar.set_message(self.tally.line(self.began.elapsed()));
        } else {
            self.tick();
        }
    }
}

impl View for Progress {
    type Event = RunEvent;

    fn event(&mut self, event: &RunEvent) {
        let tally = &mut self.tally;
        match event {
            RunEvent::Began { total, done } => {
                tally.total = *total;
                tally.before = *done;
                tally.done = *done;
                self.began = Instant::now();
                self.show_bar();
            }
            RunEvent::Claimed { .. } => tally.in_flight += 1,
            RunEvent::PhaseBegan { .. } | RunEvent::GradingAgain { .. } => {}
            RunEvent::Finished { outcome, .. } => {
                tally.in_flight = tally.in_flight.saturating_sub(1);
                tally.done += 1;
                if outcome.kind().ran() {
                    tally.ran += 1;
                    tally.passed += u64::from(outcome.passed());
                    tally.failed += u64::from(outcome.reward().is_none());
                } else {
                    tally.infrastructure += 1;
                }
            }
            RunEvent::Retrying { .. } => {
                tally.in_flight = tally.in_flight.saturating_sub(1);
                tally.retries += 1;
            }
            RunEvent::Draining { in_flight } => {
                let text = format!(
                    "stopping: waiting for {in_flight} rollouts under way; Ctrl-C again stops at once"
                );
                match &self.bar {
                    Some(bar) => bar.println(text),
                    None => self.output.note(text),
                }
            }
        }
        self.show();
    }

    fn log(event: &RunEvent, log: &mut RunLog) {
        log.run_event(event);
    }

    fn tick(&mut self) {
        let running = self.tally.total > 0;
        if running && self.bar.is_none() && self.last_plain.elapsed() >= PLAIN_INTERVAL {
            self.last_plain = Instant::now();
            self.output.note(self.tally.line(self.began.elapsed()));
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Tally {
    fn line(&self, elapsed: Duration) -> String {
        let mut line = format!("{}/{}", self.done, self.total);
        if self.ran > 0 {
            let rate = 100.0 * self.passed as f64 / self.ran as f64;
            let _ = write!(line, "  pass {rate:.0}%");
        }
        let _ = write!(line, "  failed {}", self.failed);
        if self.infrastructure > 0 {
            let _ = write!(line, "  infrastructure {}", self.infrastructure);
        }
        if self.retries > 0 {
            let _ = write!(line, "  retries {}", self.retries);
        }
        let here = self.done - self.before;
        let seconds = elapsed.as_secs_f64();
        if here > 0 && seconds > 0.0 {
            let speed = here as f64 / seconds;
            let left = (self.total - self.done) as f64 / speed;
            let _ = write!(line, "  {speed:.1}/s");
            if self.done < self.total {
                let _ = write!(line, "  ETA {}", duration_text(left));
            }
        } else {
            let _ = write!(line, "  {} under way", self.in_flight);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_done_pass_rate_failures_speed_and_eta() {
        let tally = Tally {
            total: 100,
            before: 10,
            done: 30,
            ran: 20,
            passed: 15,
            failed: 2,
            ..Tally::default()
        };
        assert_eq!(
            tally.line(Duration::from_secs(10)),
            "30/100  pass 75%  failed 2  2.0/s  ETA 35 s"
        );
    }
}
