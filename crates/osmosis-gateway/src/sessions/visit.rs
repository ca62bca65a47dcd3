//! One request inside a session, and what it adds to the sums of its rollout.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use osmosis_core::{Attempt, RolloutId, SampleId, TaskClock};
use osmosis_dialect::{Sampling, Usage};
use osmosis_store::{CallPurpose, CallSummary, JudgeSummary};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::call_history::CallHistory;
use super::fault_tally::Ended;
use super::rollout_session::{GivenCompletion, SessionState};
use crate::calls::deadline::CallDeadline;
use crate::calls::replay::Replays;
use crate::policy::registry::Served;

/// One request inside a session; `RolloutSession::close` waits until it is dropped.
#[derive(Debug)]
pub(crate) struct Visit {
    pub(super) state: Arc<SessionState>,
    pub(super) _token: TaskTrackerToken,
}

/// What a recorded call adds to its rollout's sums.
#[derive(Debug)]
pub(crate) struct CallResult {
    pub(crate) sample: SampleId,
    pub(crate) usage: Usage,
    pub(crate) ended: Ended,
    /// The answer, when it was whole and the session keeps them.
    pub(crate) completion: Option<GivenCompletion>,
    /// What was sampled, when the session keeps that.
    pub(crate) token_records: Vec<(SampleId, Bytes)>,
}

impl Visit {
    pub(crate) fn rollout(&self) -> &RolloutId {
        &self.state.whose.rollout
    }

    pub(crate) fn alias(&self) -> Option<&RolloutId> {
        self.state.whose.alias.as_ref()
    }

    pub(crate) fn attempt(&self) -> Attempt {
        self.state.whose.attempt
    }

    /// The judge, when this is the session of a grader.
    pub(crate) fn judge(&self) -> Option<Arc<Served>> {
        self.state.whose.judge.clone()
    }

    pub(crate) fn purpose(&self) -> CallPurpose {
        self.state.whose.purpose
    }

    /// What the policy remembers while the session is open.
    pub(crate) fn history(&self) -> Arc<CallHistory> {
        Arc::clone(&self.state.history)
    }

    /// What callers have asked for under a key of their own.
    pub(crate) fn replays(&self) -> Arc<Replays> {
        Arc::clone(&self.state.replays)
    }

    /// Cancelled when the rollout's session is closed.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.state.ended
    }

    pub(crate) fn keeps_completions(&self) -> bool {
        self.state.keeps_completions.load(Ordering::Relaxed)
    }

    pub(crate) fn keeps_details(&self) -> bool {
        self.state.keeps_details.load(Ordering::Relaxed)
    }

    /// How the run's policy samples for this rollout.
    pub(crate) fn sampling(&self, of_run: Sampling) -> Sampling {
        if self.decodes_greedily() {
            of_run.greedy()
        } else {
            of_run
        }
    }

    pub(crate) fn decodes_greedily(&self) -> bool {
        self.state.decodes_greedily.load(Ordering::Relaxed)
    }

    pub(crate) fn clock(&self) -> Option<Arc<TaskClock>> {
        self.state.clock.get().cloned()
    }

    /// Until when a call that begins now is waited for.
    pub(crate) fn call_deadline(&self) -> CallDeadline {
        CallDeadline::new(self.clock(), Instant::now(), self.slowest_answer())
    }

    fn slowest_answer(&self) -> Duration {
        self.state.tally.lock().faults.slowest_answer()
    }

    pub(crate) fn call_begins(&self) {
        if let Some(clock) = self.state.clock.get() {
            // Unless it is known better.
            clock.start(Instant::now());
        }
        let mut tally = self.state.tally.lock();
        if tally.under_way == 0 {
            tally.busy_since = Some(Instant::now());
        }
        tally.under_way += 1;
    }

    pub(crate) fn call_is_recorded(&self, result: CallResult) {
        let mut tally = self.state.tally.lock();
        let usage = result.usage;
        let call = CallSummary {
            model_calls: 1,
            prompt_tokens: usage.prompt_tokens.unwrap_or(0),
            completion_tokens: usage.completion_tokens.unwrap_or(0),
            cached_tokens: usage.cached_tokens,
            reasoning_tokens: usage.reasoning_tokens,
            judge: JudgeSummary::default(),
        };
        tally.summary.add(&call);
        // The totals are the policy's.
        if self.purpose() == CallPurpose::Policy {
            self.state.totals.add(&call);
        }
        // Those of a standing session have no end that they could decide about.
        if !self.state.history.is_bounded() {
            let clock = self.state.clock.get().map(|clock| &**clock);
            tally.faults.note(&result.sample, result.ended, clock);
        }
        tally.completions.extend(result.completion);
        tally.token_records.extend(result.token_records);
        tally.under_way -= 1;
        if tally.under_way == 0
            && let Some(since) = tally.busy_since.take()
        {
            tally.model_time += since.elapsed();
        }
    }
}
