//! The live view: a few lines that are drawn again and again, none wider than the terminal.
//!
//! Between two frames the cursor stands on the empty line above them. So what the terminal echoes
//! (`^C`) or others write does not tear a frame, and whatever a new width made of the old frame is below
//! the cursor and cleared with it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Instant;

use console::{Term, measure_text_width, truncate_str};
use osmosis_core::Phase;
use osmosis_gateway::{LiveRollout, PoolLoad};

use super::tally::Tally;
use crate::figures::{duration_text, thousands};
use crate::terminal::neutral;
use osmosis_run::eval::live_view::LiveSnapshot;

/// Rollouts that are shown one by one.
const MOST_SHOWN: usize = 5;
/// Servers that are shown one by one.
const MOST_SERVERS: usize = 3;
const BAR_CELLS: usize = 20;
/// On narrower terminals words matter more than a bar.
const BAR_FROM_WIDTH: usize = 90;

/// How large the terminal is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

pub(super) fn size() -> Size {
    let (rows, columns) = Term::stderr().size();
    Size {
        rows: rows.into(),
        columns: columns.into(),
    }
}

/// Whether the terminal understands more than text.
pub(super) fn can_move() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

const SPINNER: [&str; 6] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠇"];
/// Clears the line of the cursor and all below it.
const CLEAR: &str = "\r\x1b[J";

/// What stands on the terminal.
#[derive(Debug, Default)]
pub(super) struct Screen {
    frames: usize,
}

impl Screen {
    pub(super) fn draw(&mut self, tally: &Tally, seen: Option<&LiveSnapshot>) {
        let frame = frame(tally, seen, size(), Instant::now());
        let spinner = SPINNER[self.frames % SPINNER.len()];
        self.frames += 1;
        let height = frame.lines().count();
        // In raw mode or not, a line begins at the left.
        let frame = frame.replace('\n', "\r\n");
        write(&format!("{CLEAR}\r\n{spinner} {frame}\x1b[{height}A\r"));
    }

    pub(super) fn clear(&mut self) {
        if self.frames > 0 {
            write(CLEAR);
        }
    }
}

fn write(text: &str) {
    let mut err = std::io::stderr().lock();
    // The terminal may have gone; the run goes on.
    let _ = err.write_all(text.as_bytes());
    let _ = err.flush();
}

/// What is drawn behind the spinner.
pub(super) fn frame(
    tally: &Tally,
    seen: Option<&LiveSnapshot>,
    size: Size,
    now: Instant,
) -> String {
    let mut lines = vec![];
    let line = tally.line(now, seen.and_then(|seen| seen.cost));
    if size.columns >= BAR_FROM_WIDTH {
        lines.push(format!("{} {line}", bar(tally)));
    } else {
        lines.extend(packed(&line, size.columns));
    }
    lines.extend(tally.draining().map(|text| format!("  {text}")));
    if let Some(seen) = seen {
        lines.push(calls(seen));
        lines.extend(seen.servers.as_ref().into_iter().flat_map(servers));
    }
    lines.extend(oldest(tally, seen, now));
    lines.truncate(size.rows.saturating_sub(3).max(1));
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        // The spinner stands before the first; a full last column would wrap.
        let room = size.columns.saturating_sub(if at == 0 { 3 } else { 1 });
        if at > 0 {
            text.push('\n');
        }
        text.push_str(&truncate_str(&neutral(line), room, "…"));
    }
    text
}

/// The parts of a line, as many in each as there is room for.
fn packed(line: &str, columns: usize) -> Vec<String> {
    let room = columns.saturating_sub(3);
    let mut lines: Vec<String> = vec![];
    for part in line.split("  ") {
        match lines.last_mut() {
            Some(last) if measure_text_width(last) + 2 + measure_text_width(part) <= room => {
                last.push_str("  ");
                last.push_str(part);
            }
            Some(_) => lines.push(format!("  {part}")),
            None => lines.push(part.to_owned()),
        }
    }
    lines
}

fn bar(tally: &Tally) -> String {
    let cells = tally.done * BAR_CELLS as u64 / tally.total.max(1);
    let full = "━".repeat(usize::try_from(cells).unwrap_or(BAR_CELLS).min(BAR_CELLS));
    format!("{full:·<BAR_CELLS$}")
}

fn calls(seen: &LiveSnapshot) -> String {
    let calls = &seen.calls;
    let waiting: u32 = seen.rollouts.iter().map(|rollout| rollout.under_way).sum();
    let mut text = format!(
        "  {} calls, {waiting} waiting · {} + {} tokens",
        thousands(calls.model_calls),
        thousands(calls.prompt_tokens),
        thousands(calls.completion_tokens)
    );
    if let Some(cached) = calls.cached_tokens {
        let _ = write!(text, " · {} cached", thousands(cached));
    }
    if let Some(reasoning) = calls.reasoning_tokens {
        let _ = write!(text, " · {} reasoning", thousands(reasoning));
    }
    text
}

/// The servers that gave trouble, the worst first.
fn servers(load: &PoolLoad) -> Vec<String> {
    let mut troubled: Vec<_> = load
        .endpoints
        .iter()
        .filter(|server| server.failed_tries > 0 || server.rests_ms.is_some())
        .collect();
    troubled.sort_by_key(|server| std::cmp::Reverse(server.failed_tries));
    let shown = troubled.into_iter().take(MOST_SERVERS).map(|server| {
        let mut text = format!(
            "  {}: {} failed tries",
            server.url,
            thousands(server.failed_tries)
        );
        if server.rate_limited > 0 {
            let _ = write!(text, ", {} rate limits", thousands(server.rate_limited));
        }
        if let Some(rests) = server.rests_ms {
            let _ = write!(text, ", rests for {}", duration_text(rests as f64 / 1000.0));
        }
        text
    });
    let mut lines: Vec<String> = shown.collect();
    if load.queued > 0 {
        lines.push(format!(
            "  {} calls wait for a server",
            thousands(load.queued as u64)
        ));
    }
    lines
}

fn oldest(tally: &Tally, seen: Option<&LiveSnapshot>, now: Instant) -> Vec<String> {
    let by_id: HashMap<&str, &LiveRollout> = seen
        .into_iter()
        .flat_map(|seen| &seen.rollouts)
        .map(|live| (live.rollout.as_str(), live))
        .collect();
    let shown = tally.oldest(MOST_SHOWN).into_iter().map(|(id, at)| {
        let age = duration_text(now.duration_since(at.since).as_secs_f64());
        let phase = match at.phase {
            None => "waits",
            Some(Phase::Agent) => "agent",
            Some(Phase::Grade) => "grade",
        };
        let mut text = format!("  {:<8} {phase} {age:>8}", id.as_str());
        if let Some(live) = by_id.get(id.as_str()) {
            let tokens = live.calls.prompt_tokens + live.calls.completion_tokens;
            let _ = write!(
                text,
                "  turns {}  tokens {}{}",
                live.calls.model_calls,
                thousands(tokens),
                if live.under_way > 0 {
                    "  asks the model"
                } else {
                    ""
                }
            );
        }
        text
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use osmosis_core::{Attempt, RolloutId};
    use osmosis_gateway::{EndpointLoad, Health};
    use osmosis_store::CallSummary;

    use super::super::tally::tests::under_way;
    use super::*;

    fn seen() -> LiveSnapshot {
        let calls = CallSummary {
            model_calls: 52,
            prompt_tokens: 12_345,
            completion_tokens: 678,
            cached_tokens: Some(1000),
            reasoning_tokens: None,
            ..CallSummary::default()
        };
        let server = EndpointLoad {
            url: "http://h/v1".to_owned(),
            health: Health::Closed,
            in_flight: 1,
            limit: None,
            last_error: None,
            failed_tries: 7,
            rate_limited: 5,
            rests_ms: Some(2500),
        };
        LiveSnapshot {
            rollouts: vec![LiveRollout {
                rollout: RolloutId::of(21, 0),
                attempt: Attempt(1),
                calls: CallSummary {
                    model_calls: 3,
                    ..calls
                },
                under_way: 1,
            }],
            calls,
            servers: Some(PoolLoad {
                queued: 4,
                endpoints: vec![server],
            }),
            cost: Some(0.02),
        }
    }

    #[test]
    fn the_frame_shows_calls_servers_and_the_oldest_rollouts() {
        let size = Size {
            rows: 24,
            columns: 120,
        };
        let now = Instant::now();
        insta::assert_snapshot!(frame(&under_way(now), Some(&seen()), size, now), @"
        ━━━━━━·············· 30/100  pass 75%  failed 0  4 under way  $0.0200  2.0/s  ETA 73 s to 2 m 12 s
          52 calls, 1 waiting · 12,345 + 678 tokens · 1,000 cached
          http://h/v1: 7 failed tries, 5 rate limits, rests for 2.5 s
          4 calls wait for a server
          r20-0    grade     10 s
          r21-0    agent    9.0 s  turns 3  tokens 13,023  asks the model
          r22-0    agent    8.0 s
          r23-0    agent    7.0 s
        ");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_no_frame_higher() {
        for (rows, columns) in [(24, 40), (4, 200), (2, 10), (1, 1), (24, 90)] {
            let now = Instant::now();
            let size = Size { rows, columns };
            let frame = frame(&under_way(now), Some(&seen()), size, now);
            assert!(
                frame.lines().count() <= rows.saturating_sub(3).max(1),
                "{frame}"
            );
            for line in frame.lines() {
                assert!(
                    console::measure_text_width(line) < columns.max(2),
                    "{columns}: {line}"
                );
            }
        }
    }
}
