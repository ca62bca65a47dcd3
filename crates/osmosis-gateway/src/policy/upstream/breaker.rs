//! When an endpoint is left alone. A machine without a clock of its own.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// When to stop asking, and how long to wait before looking again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// So many failures in a row open it.
    pub failures: u32,
    /// The wait before the first health check; it doubles with each one that fails.
    pub first_wait: Duration,
    pub longest_wait: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failures: 5,
            first_wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(30),
        }
    }
}

/// What people see of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Calls go there.
    Closed,
    /// No call goes there.
    Open,
    /// A single call finds out.
    HalfOpen,
}

/// Closed, open or half-open, with what it takes to get on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Breaker {
    settings: BreakerSettings,
    state: State,
    /// Goes up whenever it opens: what a call from before says about failure is old news.
    epoch: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant, wait: Duration },
    HalfOpen { wait: Duration },
}

impl Breaker {
    pub(super) fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            state: State::Closed { failures: 0 },
            epoch: 0,
        }
    }

    pub(super) fn health(&self) -> Health {
        match self.state {
            State::Closed { .. } => Health::Closed,
            State::Open { .. } => Health::Open,
            State::HalfOpen { .. } => Health::HalfOpen,
        }
    }

    /// What a call that starts now says its result belongs to.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A call began to be answered. It may be one from before: an answer is a sign of life all the same.
    pub(super) fn succeeded(&mut self) {
        self.state = match self.state {
            State::Closed { .. } | State::HalfOpen { .. } => State::Closed { failures: 0 },
            State::Open { wait, .. } => State::HalfOpen { wait },
        };
    }

    /// A call of this epoch failed; `true` when that opened it.
    pub(super) fn failed(&mut self, epoch: u64, now: Instant) -> bool {
        if epoch != self.epoch {
            return false;
        }
        let wait = match self.state {
            State::Open { .. } => return false,
            State::Closed { failures } if failures + 1 < self.settings.failures => {
                self.state = State::Closed {
                    failures: failures + 1,
                };
                return false;
            }
            State::Closed { .. } => self.settings.first_wait,
            State::HalfOpen { wait } => self.longer(wait),
        };
        self.epoch += 1;
        self.state = State::Open {
            until: now + wait,
            wait,
        };
        true
    }

    /// When to look whether the endpoint is back; `None` unless it is open.
    pub(super) fn next_check(&self) -> Option<Instant> {
        match self.state {
            State::Open { until, .. } => Some(until),
            State::Closed { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// What a health check found.
    pub(super) fn checked(&mut self, alive: bool, now: Instant) {
        let State::Open { wait, .. } = self.state else {
            return;
        };
        self.state = if alive {
            State::HalfOpen { wait }
        } else {
            let wait = self.longer(wait);
            State::Open {
                until: now + wait,
                wait,
            }
        };
    }

    fn longer(&self, wait: Duration) -> Duration {
        wait.saturating_mul(2)
            .min(self.settings.longest_wait)
            .max(self.settings.first_wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETTINGS: BreakerSettings = BreakerSettings {
        failures: 3,
        first_wait: Duration::from_secs(1),
        longest_wait: Duration::from_secs(5),
    };

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_by_a_call_that_works() {
        let now = Instant::now();
        let mut breaker = Breaker::new(SETTINGS);
        assert!(!breaker.failed(0, now) && !breaker.failed(0, now));
        breaker.succeeded();
        assert!(!breaker.failed(0, now) && !breaker.failed(0, now));
        assert!(breaker.failed(0, now));
        assert_eq!(breaker.health(), Health::Open);
        assert_eq!(breaker.next_check(), Some(now + Duration::from_secs(1)));
        breaker.checked(true, now);
        assert_eq!(breaker.health(), Health::HalfOpen);
        breaker.succeeded();
        assert_eq!(breaker.health(), Health::Closed);
    }

    #[test]
    fn the_wait_doubles_with_each_disappointment() {
        let now = Instant::now();
        let mut breaker = Breaker::new(SETTINGS);
        for _ in 0..3 {
            breaker.failed(0, now);
        }
        let wait = |breaker: &Breaker| breaker.next_check().unwrap() - now;
        breaker.checked(false, now);
        assert_eq!(wait(&breaker), Duration::from_secs(2));
        breaker.checked(true, now);
        assert!(breaker.failed(breaker.epoch(), now));
        assert_eq!(wait(&breaker), Duration::from_secs(4));
        breaker.checked(false, now);
        assert_eq!(wait(&breaker), Duration::from_secs(5));
    }

    #[derive(Debug, Clone, Copy)]
    enum Event {
        Success,
        Failure,
        StaleFailure,
        Check(bool),
        Pass(u8),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            1 => Just(Event::Success),
            3 => Just(Event::Failure),
            1 => Just(Event::StaleFailure),
            1 => any::<bool>().prop_map(Event::Check),
            1 => (0..9_u8).prop_map(Event::Pass),
        ]
    }

    proptest! {
        #[test]
        fn whatever_happens_it_moves_by_its_rules(events in prop::collection::vec(event(), 0..200)) {
            let mut breaker = Breaker::new(SETTINGS);
            let mut now = Instant::now();
            let mut in_a_row = 0;
            for event in events {
                let before = breaker.clone();
                match event {
                    Event::Success => { breaker.succeeded(); in_a_row = 0; }
                    Event::Failure => {
                        in_a_row += 1;
                        let opened = breaker.failed(breaker.epoch(), now);
                        prop_assert_eq!(opened, breaker.epoch() != before.epoch());
                        if opened {
                            prop_assert!(before.health() == Health::HalfOpen || in_a_row >= SETTINGS.failures);
                            prop_assert_eq!(breaker.health(), Health::Open);
                        }
                    }
                    Event::StaleFailure => {
                        prop_assert!(!breaker.failed(breaker.epoch().wrapping_sub(1), now));
                        prop_assert_eq!(&breaker, &before);
                    }
                    Event::Check(alive) => breaker.checked(alive, now),
                    Event::Pass(seconds) => now += Duration::from_secs(seconds.into()),
                }
                // It leaves the open state by a sign of life alone, and for half-open at first.
                if before.health() == Health::Open && breaker.health() != Health::Open {
                    prop_assert!(matches!(event, Event::Success | Event::Check(true)));
                    prop_assert_eq!(breaker.health(), Health::HalfOpen);
                }
                if breaker.health() == Health::Closed {
                    prop_assert!(before.health() != Health::Open);
                }
                if let Some(until) = breaker.next_check() && Some(until) != before.next_check() {
                    let wait = until - now;
                    prop_assert!(wait >= SETTINGS.first_wait && wait <= SETTINGS.longest_wait);
                }
            }
        }
    }
}
