//! How far ahead of the graders a run claims whose samples are there already.
//!
//! Each claim is a commit, and so is each result. With a grader of one line, a run that claims the next rollout
//! when one is done waits for the disk all the time. So it claims ahead, as many as were done a moment ago: a slow
//! grader has hardly any waiting, which would have to be given back when the run is asked to stop.

use std::time::Duration;

use tokio::time::Instant;

/// What is done within this time is claimed ahead.
const MOMENT: Duration = Duration::from_millis(250);

/// However fast graders are.
const MOST_AHEAD: usize = 1024;

/// How many rollouts were done a moment ago.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    since: Instant,
    done: usize,
    before: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            done: 0,
            before: 0,
        }
    }
}

impl Pace {
    pub(crate) fn note_done(&mut self, now: Instant) {
        self.turn(now);
        self.done += 1;
    }

    /// How many to claim beyond those that are graded.
    pub(crate) fn ahead(&mut self, now: Instant) -> usize {
        self.turn(now);
        self.done.max(self.before).min(MOST_AHEAD)
    }

    /// Begins a new moment when the last is over.
    fn turn(&mut self, now: Instant) {
        let passed = now.duration_since(self.since);
        if passed >= MOMENT {
            // After a pause nothing was done a moment ago.
            self.before = if passed < 2 * MOMENT { self.done } else { 0 };
            self.done = 0;
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn as_many_are_claimed_ahead_as_were_done_a_moment_ago() {
        let mut pace = Pace::default();
        assert_eq!(pace.ahead(Instant::now()), 0);
        for _ in 0..300 {
            tokio::time::advance(Duration::from_millis(1)).await;
            pace.note_done(Instant::now());
        }
        assert_eq!(pace.ahead(Instant::now()), 249);
        // A pause, and the next rollout is claimed when one is done.
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(pace.ahead(Instant::now()), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_is_bounded() {
        let mut pace = Pace::default();
        for _ in 0..5000 {
            pace.note_done(Instant::now());
        }
        assert_eq!(pace.ahead(Instant::now()), MOST_AHEAD);
    }
}
