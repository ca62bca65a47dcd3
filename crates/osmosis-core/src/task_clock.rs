use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long before a deadline whoever waits for somebody else gives up, at most.
const LONGEST_MARGIN: Duration = Duration::from_secs(15);

/// The time that user code has for a task. What it loses to servers that fail is not its time: the deadline
/// moves by as much, up to the limit itself.
#[derive(Debug)]
pub struct TaskClock {
    limit: Duration,
    kept: DeadlineKeeper,
    started: OnceLock<Instant>,
    lost: Mutex<Lost>,
}

/// Who keeps the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeadlineKeeper {
    /// We do, by this clock.
    Here,
    /// A server does, which knows nothing of this clock.
    Elsewhere,
}

#[derive(Debug, Default)]
struct Lost {
    time: Duration,
    /// Up to here it is counted.
    until: Option<Instant>,
}

impl TaskClock {
    pub fn new(limit: Duration) -> Self {
        Self::kept(limit, DeadlineKeeper::Here)
    }

    /// For a task whose deadline somebody else keeps, without regard to what is lost.
    pub fn kept_elsewhere(limit: Duration) -> Self {
        Self::kept(limit, DeadlineKeeper::Elsewhere)
    }

    fn kept(limit: Duration, kept: DeadlineKeeper) -> Self {
        Self {
            limit,
            kept,
            started: OnceLock::new(),
            lost: Mutex::default(),
        }
    }

    /// User code has begun. Only the first call counts.
    pub fn start(&self, at: Instant) {
        let _ = self.started.set(at);
    }

    /// From then until then the task waited for a server that failed. Times that overlap count once.
    pub fn lose(&self, from: Instant, to: Instant) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let from = lost.until.map_or(from, |until| until.max(from));
        if to > from {
            lost.time += to - from;
            lost.until = Some(to);
        }
    }

    pub fn lost(&self) -> Duration {
        self.lost
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .time
    }

    /// When the task is over, as far as is known now; `None` before it has started.
    pub fn deadline(&self) -> Option<Instant> {
        let started = *self.started.get()?;
        Some(started + self.limit + self.returned())
    }

    /// Whether a task that ends now may have been ended by its deadline.
    pub fn may_be_over(&self, now: Instant) -> bool {
        match self.kept {
            DeadlineKeeper::Here => self.deadline().is_some_and(|deadline| now >= deadline),
            DeadlineKeeper::Elsewhere => true,
        }
    }

    /// Whether so much time was lost, and not given back, that it explains why a task was late.
    pub fn explains_delay(&self) -> bool {
        self.lost().saturating_sub(self.returned()) >= self.limit / 10
    }

    /// How long a server that says nothing is taken for a slow one, when answers have taken up to `slowest`.
    pub fn patience(&self, slowest: Duration) -> Duration {
        (self.limit / 10).max(slowest.saturating_mul(2))
    }

    /// When to give up a call that began then and is not answered, so that the task learns of it in time.
    /// `silent` calls are waited for at least as long as slow answers take (see [`TaskClock::patience`]);
    /// the others are known to fail.
    pub fn give_up_at(&self, began: Instant, silent: Option<Duration>) -> Option<Instant> {
        let deadline = self.deadline()?;
        let left = deadline.saturating_duration_since(began);
        let in_time = deadline.checked_sub(LONGEST_MARGIN.min(left / 10))?;
        Some(match silent {
            Some(slowest) => in_time.max(began + self.patience(slowest)),
            None => in_time,
        })
    }

    fn returned(&self) -> Duration {
        match self.kept {
            DeadlineKeeper::Here => self.lost().min(self.limit),
            DeadlineKeeper::Elsewhere => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn lost_time_moves_the_deadline_once_and_not_beyond_twice_the_limit() {
        let clock = TaskClock::new(seconds(100));
        let t = Instant::now();
        assert_eq!(clock.deadline(), None);
        clock.start(t);
        clock.start(t + seconds(50));
        assert_eq!(clock.deadline(), Some(t + seconds(100)));
        clock.lose(t + seconds(10), t + seconds(20));
        clock.lose(t + seconds(5), t + seconds(15));
        clock.lose(t + seconds(12), t + seconds(30));
        assert_eq!(clock.lost(), seconds(20));
        assert_eq!(clock.deadline(), Some(t + seconds(120)));
        assert!(!clock.may_be_over(t + seconds(119)));
        assert!(clock.may_be_over(t + seconds(120)));
        assert!(!clock.explains_delay(), "it was given back");
        clock.lose(t + seconds(30), t + seconds(130));
        assert_eq!(clock.deadline(), Some(t + seconds(200)));
        assert!(clock.explains_delay());
    }

    #[test]
    fn a_deadline_kept_elsewhere_does_not_move_and_lost_time_explains_a_delay() {
        let clock = TaskClock::kept_elsewhere(seconds(100));
        let t = Instant::now();
        assert!(clock.may_be_over(t), "nobody knows");
        clock.start(t);
        clock.lose(t, t + seconds(9));
        assert!(!clock.explains_delay());
        clock.lose(t + seconds(9), t + seconds(10));
        assert!(clock.explains_delay());
        assert_eq!(clock.deadline(), Some(t + seconds(100)));
    }

    #[test]
    fn a_call_is_given_up_before_the_deadline_but_not_before_it_is_more_than_slow() {
        let clock = TaskClock::new(seconds(100));
        let t = Instant::now();
        assert_eq!(clock.give_up_at(t, Some(seconds(0))), None);
        clock.start(t);
        let at = |began, silent: Option<u64>| {
            let at = clock.give_up_at(t + seconds(began), silent.map(seconds));
            at.unwrap() - t
        };
        assert_eq!(at(0, Some(0)), seconds(90));
        assert_eq!(at(50, Some(0)), seconds(95));
        // It must be known for silent: longer than a tenth of the limit and twice the slowest answer.
        assert_eq!(at(95, Some(0)), seconds(105));
        assert_eq!(at(50, Some(30)), seconds(110));
        assert_eq!(at(90, None), seconds(99));
        let long = TaskClock::new(seconds(450));
        long.start(t);
        assert_eq!(long.give_up_at(t, Some(seconds(1))), Some(t + seconds(435)));
    }
}
