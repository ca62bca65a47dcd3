//! What goes through the gateway right now, for whoever shows or limits it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use osmosis_core::{Attempt, RolloutId};
use osmosis_store::{CallSummary, JudgeSummary};

/// The rollouts whose sessions are open, and all calls so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveStatus {
    pub rollouts: Vec<LiveRollout>,
    /// Of every rollout and attempt that ever had a session, recorded calls alone.
    pub totals: CallSummary,
}

/// What one attempt has asked of the model so far.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveRollout {
    pub rollout: RolloutId,
    pub attempt: Attempt,
    /// Its recorded calls.
    pub calls: CallSummary,
    /// Calls that wait for their answer.
    pub under_way: u32,
}

/// Sums over the calls of all sessions. Every call adds to it, so it takes no lock.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    model_calls: AtomicU64,
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    cached: OptionalSum,
    reasoning: OptionalSum,
}

/// A sum of what only some replies tell.
#[derive(Debug, Default)]
struct OptionalSum {
    sum: AtomicU64,
    is_known: AtomicBool,
}

impl OptionalSum {
    fn add(&self, more: Option<u64>) {
        if let Some(more) = more {
            self.sum.fetch_add(more, Ordering::Relaxed);
            self.is_known.store(true, Ordering::Relaxed);
        }
    }

    fn get(&self) -> Option<u64> {
        let is_known = self.is_known.load(Ordering::Relaxed);
        is_known.then(|| self.sum.load(Ordering::Relaxed))
    }
}

impl Totals {
    pub(crate) fn add(&self, call: &CallSummary) {
        self.model_calls
            .fetch_add(call.model_calls, Ordering::Relaxed);
        self.prompt_tokens
            .fetch_add(call.prompt_tokens, Ordering::Relaxed);
        self.completion_tokens
            .fetch_add(call.completion_tokens, Ordering::Relaxed);
        self.cached.add(call.cached_tokens);
        self.reasoning.add(call.reasoning_tokens);
    }

    pub(crate) fn summary(&self) -> CallSummary {
        CallSummary {
            model_calls: self.model_calls.load(Ordering::Relaxed),
            prompt_tokens: self.prompt_tokens.load(Ordering::Relaxed),
            completion_tokens: self.completion_tokens.load(Ordering::Relaxed),
            cached_tokens: self.cached.get(),
            reasoning_tokens: self.reasoning.get(),
            judge: JudgeSummary::default(),
        }
    }
}
