//! Where a call went, written by the policy and read when the call is recorded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use osmosis_core::{PolicyVersion, TaskClock};
use parking_lot::Mutex;

use crate::calls::record::now_ms;
use crate::policy::Fault;

/// Waits that are shorter are nobody's loss.
const NO_TIME: Duration = Duration::from_millis(1);

/// What became of a call behind the gateway. The gateway keeps the other end.
#[derive(Debug, Clone, Default)]
pub struct CallTrace {
    progress: Arc<Mutex<CallProgress>>,
    /// Of the task that makes the call.
    clock: Option<Arc<TaskClock>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct CallProgress {
    /// The endpoint it was sent to last, and the version of what answers there.
    pub(crate) went_to: Option<(Arc<str>, PolicyVersion)>,
    /// When it was sent first: until then it waited.
    pub(crate) first_sent_at_ms: Option<i64>,
    /// When it was sent last.
    pub(crate) sent_at: Option<Instant>,
    pub(crate) tries: u32,
    /// The policy has servers, and says when it sends a call.
    pub(crate) says_when_sent: bool,
    /// What answers is not in this process, but there.
    pub(crate) server: Option<Arc<str>>,
    /// It has begun to answer, though nothing may have been passed on yet.
    pub(crate) heard: bool,
    /// The weights that sampled its first token.
    pub(crate) sampled_by: Option<PolicyVersion>,
    /// How the last try failed.
    pub(crate) failing: Option<Fault>,
    /// Metrics may name the endpoint.
    pub(crate) named_in_metrics: bool,
}

impl CallProgress {
    /// Whether what answers is outside of this process.
    pub(crate) fn is_outside(&self) -> bool {
        self.says_when_sent || self.server.is_some()
    }
}

impl CallTrace {
    pub(crate) fn of_task(clock: Option<Arc<TaskClock>>) -> Self {
        Self {
            progress: Arc::default(),
            clock,
        }
    }

    /// The policy will say when it sends the call, if it ever does.
    pub fn begins(&self) {
        self.progress.lock().says_when_sent = true;
    }

    /// The call goes to a server, but nobody says when.
    pub fn leaves_for(&self, server: &str) {
        self.progress.lock().server = Some(server.into());
    }

    /// The first token has come, sampled by these weights: an engine elsewhere may have others by now than when
    /// it was last heard of.
    pub fn heard(&self, version: PolicyVersion) {
        let mut progress = self.progress.lock();
        progress.heard = true;
        progress.sampled_by.get_or_insert(version);
    }

    /// The call is sent to this endpoint now, as is or once more.
    pub fn sent(&self, endpoint: Arc<str>, version: PolicyVersion, named_in_metrics: bool) {
        let mut progress = self.progress.lock();
        progress.went_to = Some((endpoint, version));
        progress.first_sent_at_ms.get_or_insert_with(now_ms);
        progress.sent_at = Some(Instant::now());
        progress.tries += 1;
        progress.named_in_metrics = named_in_metrics;
    }

    /// A try came to nothing; another may follow.
    pub fn failed(&self, fault: &Fault) {
        self.progress.lock().failing = Some(fault.clone());
    }

    /// From then until then the call waited for nothing: that is not its caller's time.
    pub fn lost(&self, from: Instant, to: Instant) {
        if let Some(clock) = &self.clock
            && to.saturating_duration_since(from) >= NO_TIME
        {
            clock.lose(from, to);
        }
    }

    /// When it was sent last.
    pub(crate) fn sent_at(&self) -> Option<Instant> {
        self.progress.lock().sent_at
    }

    /// The endpoint it was sent to last.
    pub(crate) fn endpoint(&self) -> Option<String> {
        let progress = self.progress.lock();
        let (endpoint, _) = progress.went_to.as_ref()?;
        Some(endpoint.as_ref().to_owned())
    }

    pub(crate) fn progress(&self) -> CallProgress {
        self.progress.lock().clone()
    }
}
