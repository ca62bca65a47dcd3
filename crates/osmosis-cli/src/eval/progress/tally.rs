//! What the events of a run add up to so far.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use osmosis_core::{Phase, RolloutId};
use osmosis_engine::RunEvent;

use super::super::prices::dollars_text;
use super::eta::{Eta, Observed, eta};
use crate::figures::duration_text;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) total: u64,
    /// Results there when this process began.
    before: u64,
    pub(super) done: u64,
    /// Of those finished by this process.
    pub(super) ran: u64,
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) infrastructure: u64,
    pub(super) retries: u64,
    began: Option<Instant>,
    /// Nothing is begun any more.
    is_draining: bool,
    under_way: HashMap<RolloutId, UnderWay>,
    finished_time: Duration,
}

/// A rollout that was claimed and has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnderWay {
    pub(super) since: Instant,
    /// `None` before user code runs, and between attempts.
    pub(super) phase: Option<Phase>,
}

impl Tally {
    pub(super) fn note(&mut self, event: &RunEvent, now: Instant) {
        match event {
            RunEvent::Began { total, done } => {
                self.total = *total;
                self.before = *done;
                self.done = *done;
                self.began = Some(now);
            }
            RunEvent::Claimed { id, .. } => {
                let new = UnderWay {
                    since: now,
                    phase: None,
                };
                self.under_way.insert(id.clone(), new);
            }
            RunEvent::PhaseBegan { id, phase, .. } => {
                if let Some(rollout) = self.under_way.get_mut(id) {
                    rollout.phase = Some(*phase);
                }
            }
            RunEvent::Finished {
                id,
                outcome,
                durations,
                ..
            } => {
                self.finished_time += match self.under_way.remove(id) {
                    Some(rollout) => now.duration_since(rollout.since),
                    // A node ran it.
                    None => Duration::try_from_secs_f64((durations.agent + durations.grade) / 1e3)
                        .unwrap_or_default(),
                };
                self.done += 1;
                if outcome.kind().ran() {
                    self.ran += 1;
                    self.passed += u64::from(outcome.passed());
                    self.failed += u64::from(outcome.reward().is_none());
                } else {
                    self.infrastructure += 1;
                }
            }
            RunEvent::Retrying { id, .. } => {
                self.under_way.remove(id);
                self.retries += 1;
            }
            RunEvent::Draining { .. } => self.is_draining = true,
            RunEvent::GradingAgain { .. } => {}
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.began.is_some()
    }

    /// What to say while it waits for the last ones.
    pub(super) fn draining(&self) -> Option<String> {
        self.is_draining.then(|| stopping(self.in_flight()))
    }

    pub(super) fn in_flight(&self) -> usize {
        self.under_way.len()
    }

    /// The `most` that are under way for longest, the oldest first.
    pub(super) fn oldest(&self, most: usize) -> Vec<(&RolloutId, UnderWay)> {
        let mut all: Vec<_> = self.under_way.iter().map(|(id, at)| (id, *at)).collect();
        all.sort_by(|a, b| {
            a.1.since
                .cmp(&b.1.since)
                .then_with(|| a.0.as_str().cmp(b.0.as_str()))
        });
        all.truncate(most);
        all
    }

    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        self.began
            .map_or(Duration::ZERO, |began| now.duration_since(began))
    }

    /// `None` when it can't be said, or when most will not be run.
    pub(super) fn eta(&self, now: Instant) -> Option<Eta> {
        if self.is_draining || self.done >= self.total {
            return None;
        }
        let ages: Vec<f64> = self
            .under_way
            .values()
            .map(|rollout| now.duration_since(rollout.since).as_secs_f64())
            .collect();
        eta(&Observed {
            finished: self.done.saturating_sub(self.before),
            finished_seconds: self.finished_time.as_secs_f64(),
            ages: &ages,
            waiting: self.total.saturating_sub(self.done + ages.len() as u64),
        })
    }

    /// Everything in one line.
    pub(super) fn line(&self, now: Instant, cost: Option<f64>) -> String {
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
        let _ = write!(line, "  {} under way", self.in_flight());
        if let Some(cost) = cost {
            let _ = write!(line, "  {}", dollars_text(cost));
        }
        let here = self.done.saturating_sub(self.before);
        let seconds = self.elapsed(now).as_secs_f64();
        if here > 0 && seconds > 0.0 {
            let _ = write!(line, "  {:.1}/s", here as f64 / seconds);
        }
        if let Some(eta) = self.eta(now) {
            let _ = write!(line, "  ETA {}", eta_text(eta));
        }
        line
    }
}

pub(super) fn stopping(under_way: usize) -> String {
    format!("stopping: waiting for {under_way} rollouts under way; Ctrl-C again stops at once")
}

fn eta_text(eta: Eta) -> String {
    let (low, high) = (duration_text(eta.low), duration_text(eta.high));
    if low == high {
        low
    } else {
        format!("{low} to {high}")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use osmosis_core::{Attempt, Durations, Outcome, Reward};
    use osmosis_store::CallSummary;

    use super::*;

    /// Of 100 rollouts 10 were done before; 20 took 4 s each here, and 4 are under way.
    pub(crate) fn under_way(now: Instant) -> Tally {
        let mut tally = Tally::default();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        tally.note(
            &RunEvent::Began {
                total: 100,
                done: 10,
            },
            ago(10),
        );
        let id = |row| RolloutId::of(row, 0);
        let claimed = |row| RunEvent::Claimed {
            id: id(row),
            attempt: Attempt(1),
        };
        for row in 0..20 {
            tally.note(&claimed(row), ago(10));
            let outcome = Outcome::Scored {
                reward: Reward::new(f64::from(u8::from(row < 15))).unwrap(),
                passed: row < 15,
            };
            let finished = RunEvent::Finished {
                id: id(row),
                outcome,
                durations: Durations::default(),
                calls: CallSummary::default(),
            };
            tally.note(&finished, ago(6));
        }
        for row in 20..24 {
            tally.note(&claimed(row), ago(30 - row));
            let phase = if row == 20 {
                Phase::Grade
            } else {
                Phase::Agent
            };
            let began = RunEvent::PhaseBegan {
                id: id(row),
                phase,
                calls: 0,
            };
            tally.note(&began, now);
        }
        tally
    }

    #[test]
    fn the_line_says_done_pass_rate_failures_speed_cost_and_a_range() {
        let now = Instant::now();
        insta::assert_snapshot!(
            under_way(now).line(now, Some(0.1234)),
            @"30/100  pass 75%  failed 0  4 under way  $0.1234  2.0/s  ETA 73 s to 2 m 12 s"
        );
    }

    #[test]
    fn a_retry_is_under_way_again_when_it_is_claimed_again() {
        let now = Instant::now();
        let mut tally = under_way(now);
        let id = RolloutId::of(20, 0);
        let retrying = RunEvent::Retrying {
            id: id.clone(),
            attempt: Attempt(1),
            reason: String::new(),
            wait: Duration::ZERO,
        };
        tally.note(&retrying, now);
        assert_eq!((tally.in_flight(), tally.retries), (3, 1));
        assert_eq!(*tally.oldest(1)[0].0, RolloutId::of(21, 0));
        tally.note(
            &RunEvent::Claimed {
                id,
                attempt: Attempt(2),
            },
            now,
        );
        assert_eq!(tally.in_flight(), 4);
    }
}
