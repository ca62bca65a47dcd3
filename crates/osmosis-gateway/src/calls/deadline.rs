//! Until when a call is waited for: its caller shall learn of a failure while it still can.

use std::sync::Arc;
use std::time::{Duration, Instant};

use osmosis_core::TaskClock;

use crate::calls::call_trace::CallTrace;
use crate::policy::{Fault, FaultKind};

/// Of one call.
#[derive(Debug)]
pub(crate) struct CallDeadline {
    clock: Option<Arc<TaskClock>>,
    began: Instant,
    slowest_answer: Duration,
}

impl CallDeadline {
    pub(crate) fn new(
        clock: Option<Arc<TaskClock>>,
        began: Instant,
        slowest_answer: Duration,
    ) -> Self {
        Self {
            clock,
            began,
            slowest_answer,
        }
    }

    /// Waits for the answer, but not so long that the caller's own deadline comes first. A policy in this
    /// process is at work for as long as it takes.
    pub(crate) async fn keep<T>(
        &self,
        call_trace: &CallTrace,
        answer: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::select! {
            biased;
            answer = answer => answer,
            fault = self.passes(call_trace) => {
                call_trace.lost(self.began, Instant::now());
                Err(fault)
            }
        }
    }

    async fn passes(&self, call_trace: &CallTrace) -> Fault {
        let Some(clock) = &self.clock else {
            return std::future::pending().await;
        };
        loop {
            let progress = call_trace.progress();
            let silent = match progress.failing {
                Some(_) => None,
                None => Some(self.slowest_answer),
            };
            let Some(at) = clock.give_up_at(self.began, silent) else {
                return std::future::pending().await;
            };
            if Instant::now() < at {
                tokio::time::sleep_until(at.into()).await;
            } else if progress.is_outside() && !progress.heard {
                return self.fault(call_trace);
            } else {
                return std::future::pending().await;
            }
        }
    }

    fn fault(&self, call_trace: &CallTrace) -> Fault {
        let unanswered = unanswered(call_trace, self.began);
        Fault {
            message: format!(
                "{}; the gateway gave up because the rollout's deadline is near",
                unanswered.message
            ),
            ..unanswered
        }
    }
}

/// The fault of a policy that has not answered a call which began then.
pub(crate) fn unanswered(call_trace: &CallTrace, began: Instant) -> Fault {
    let waited = began.elapsed().as_secs_f64();
    let progress = call_trace.progress();
    if let Some(failing) = progress.failing {
        return Fault {
            message: format!(
                "{} (tried {} times in {waited:.1} s)",
                failing.message, progress.tries
            ),
            ..failing
        };
    }
    let server = progress.went_to.map(|(endpoint, _)| endpoint);
    let message = match server.or(progress.server) {
        Some(server) => format!("{server} had sent no answer after {waited:.1} s"),
        None => format!("no upstream had room for the call for {waited:.1} s"),
    };
    Fault {
        kind: FaultKind::TimedOut,
        status: 504,
        message,
    }
}
