//! Waiting for what no event tells of: files and processes of others.

use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Looks until something is so, and fails when that is not within `limit`.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::park_timeout(LOOK);
    }
}

/// The same for asynchronous tests.
pub async fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Lets so much time pass. For faults at random moments and pauses that are part of what is tested; to wait for
/// something, use [`wait_until`].
pub fn pass(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
}
