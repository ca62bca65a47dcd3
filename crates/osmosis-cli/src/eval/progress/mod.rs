//! How a run shows that it goes on: a live view on a terminal, a plain line every 10 seconds elsewhere,
//! JSON lines for programs.

mod eta;
mod ndjson;
mod screen;
mod tally;

use std::str::FromStr;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use osmosis_core::Redactor;
use osmosis_engine::RunEvent;
use osmosis_run::RunError;

use self::ndjson::JsonLines;
use self::screen::Screen;
use self::tally::Tally;
use crate::events::Observer;
use crate::output::Output;
use crate::run_log::RunLog;
use crate::workspace::absolute;
use osmosis_run::eval::live_view::LiveView;

/// How often a plain line is written when standard error is no terminal.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// `--progress`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ProgressMode {
    #[default]
    Auto,
    Plain,
    None,
    /// JSON lines, on standard error unless there is a file.
    Ndjson(Option<Utf8PathBuf>),
}

impl FromStr for ProgressMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "plain" => Ok(Self::Plain),
            "none" => Ok(Self::None),
            "ndjson" => Ok(Self::Ndjson(None)),
            other => match other.strip_prefix("ndjson:") {
                Some(file) if !file.is_empty() => Ok(Self::Ndjson(Some(file.into()))),
                _ => Err("it can be `auto`, `plain`, `none`, `ndjson` or `ndjson:FILE`".to_owned()),
            },
        }
    }
}

/// Counts events and shows them.
#[derive(Debug)]
pub(crate) struct Progress {
    output: Output,
    shown: Shown,
    sight: LiveView,
    tally: Tally,
}

/// Where the progress goes.
#[derive(Debug)]
enum Shown {
    Nowhere,
    Screen(Screen),
    Lines { last: Instant },
    Json(Box<JsonLines>),
}

impl Progress {
    pub(crate) fn new(
        output: Output,
        mode: &ProgressMode,
        sight: LiveView,
        redactor: Redactor,
    ) -> Result<Self, RunError> {
        let lines = || Shown::Lines {
            last: Instant::now(),
        };
        let shown = match mode {
            ProgressMode::Auto if output.moves() && screen::can_move() => {
                Shown::Screen(Screen::default())
            }
            ProgressMode::Auto | ProgressMode::Plain => lines(),
            ProgressMode::None => Shown::Nowhere,
            ProgressMode::Ndjson(None) => Shown::Json(Box::new(JsonLines::on_stderr(redactor))),
            ProgressMode::Ndjson(Some(file)) => {
                Shown::Json(Box::new(JsonLines::to_file(&absolute(file)?, redactor)?))
            }
        };
        Ok(Self {
            output,
            shown,
            sight,
            tally: Tally::default(),
        })
    }

    fn refresh(&mut self) {
        if let Shown::Screen(screen) = &mut self.shown {
            let seen = self.sight.look();
            screen.draw(&self.tally, seen.as_ref());
        }
    }
}

impl Observer<RunEvent> for Progress {
    fn event(&mut self, event: &RunEvent) {
        self.tally.note(event, Instant::now());
        match event {
            RunEvent::Began { .. } => self.refresh(),
            RunEvent::Draining { in_flight } => match &self.shown {
                Shown::Screen(_) => self.refresh(),
                Shown::Lines { .. } => self.output.note(tally::stopping(*in_flight)),
                Shown::Nowhere | Shown::Json(_) => {}
            },
            RunEvent::Claimed { .. }
            | RunEvent::PhaseBegan { .. }
            | RunEvent::Finished { .. }
            | RunEvent::Retrying { .. }
            | RunEvent::GradingAgain { .. } => {}
        }
        if let Shown::Json(lines) = &mut self.shown {
            lines.event(event);
        }
    }

    fn log(&self, event: &RunEvent, log: &mut RunLog) {
        log.run_event(event);
    }

    fn tick(&mut self) {
        if !self.tally.has_begun() {
            return;
        }
        match &mut self.shown {
            Shown::Nowhere => {}
            Shown::Screen(_) => self.refresh(),
            Shown::Lines { last } => {
                if last.elapsed() >= PLAIN_INTERVAL {
                    *last = Instant::now();
                    let cost = self.sight.look().and_then(|seen| seen.cost);
                    self.output.note(self.tally.line(Instant::now(), cost));
                }
            }
            Shown::Json(lines) => lines.progress(&self.tally, self.sight.look().as_ref()),
        }
    }

    fn finish(&mut self) {
        match &mut self.shown {
            Shown::Screen(screen) => screen.clear(),
            Shown::Json(lines) if self.tally.has_begun() => {
                lines.ended(&self.tally, self.sight.look().as_ref());
            }
            Shown::Nowhere | Shown::Lines { .. } | Shown::Json(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_goes_where_it_is_asked_to() {
        for (text, mode) in [
            ("auto", ProgressMode::Auto),
            ("ndjson", ProgressMode::Ndjson(None)),
            (
                "ndjson:p.jsonl",
                ProgressMode::Ndjson(Some("p.jsonl".into())),
            ),
        ] {
            assert_eq!(text.parse(), Ok(mode));
        }
        for bad in ["", "json", "ndjson:"] {
            assert!(bad.parse::<ProgressMode>().is_err(), "{bad}");
        }
    }
}
