use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What time it is, so that tests can say.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Milliseconds since 1970, for what people read.
    fn now_ms(&self) -> i64;

    /// Milliseconds that leases are counted in. A clock that jumps forward makes leases run out
    /// early: work is done again, and the late result is fenced, so nothing counts twice. A clock
    /// that jumps back makes them last longer.
    fn lease_ms(&self) -> i64 {
        self.now_ms()
    }
}

/// The computer's clock.
///
/// Leases are counted from the wall time at which this clock was made, by the monotonic clock. A
/// wall clock that is set while the run goes on, or a laptop that sleeps, ends no lease.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
    start_ms: i64,
}

impl SystemClock {
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            start_ms: wall_ms(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        wall_ms()
    }

    fn lease_ms(&self) -> i64 {
        self.start_ms.saturating_add(whole_ms(self.start.elapsed()))
    }
}

fn wall_ms() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => whole_ms(since),
        Err(before) => -whole_ms(before.duration()),
    }
}

/// Milliseconds of a duration, at most what fits.
pub fn whole_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
