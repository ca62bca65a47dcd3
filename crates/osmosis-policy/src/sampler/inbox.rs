//! What is sent to the sampler's thread.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{GenerationRequest, TokenSink};
use osmosis_tokens::TokenMatcher;
use parking_lot::{Condvar, Mutex};

use super::SamplerRate;
use crate::decoder::PackedWeights;

pub(super) enum Letter {
    Request {
        request: GenerationRequest,
        matcher: Option<Box<TokenMatcher>>,
        sink: Box<dyn TokenSink>,
    },
    Swap {
        weights: Arc<PackedWeights>,
        version: PolicyVersion,
        done: SyncSender<()>,
    },
}

/// What the thread finds.
pub(super) enum Arrived {
    Letters(Vec<Letter>),
    Closed,
}

/// Between callers and thread. As many letters wait here as there are callers who wait for an answer.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
    rate: Mutex<SamplerRate>,
    version: AtomicU64,
}

#[derive(Default)]
struct State {
    letters: Vec<Letter>,
    closed: bool,
}

impl Inbox {
    /// Gives the letter back when nobody will read it.
    pub(super) fn send(&self, letter: Letter) -> Option<Letter> {
        let mut state = self.state.lock();
        if state.closed {
            return Some(letter);
        }
        state.letters.push(letter);
        self.arrived.notify_one();
        None
    }

    /// What has arrived; waits for something if asked.
    pub(super) fn take(&self, wait: bool) -> Arrived {
        let mut state = self.state.lock();
        while wait && state.letters.is_empty() && !state.closed {
            self.arrived.wait(&mut state);
        }
        if state.closed {
            Arrived::Closed
        } else {
            Arrived::Letters(mem::take(&mut state.letters))
        }
    }

    /// Refuses further letters, and hands out those nobody has read.
    pub(super) fn close(&self) -> Vec<Letter> {
        let mut state = self.state.lock();
        state.closed = true;
        self.arrived.notify_all();
        mem::take(&mut state.letters)
    }

    /// Refuses further letters; those that are here stay for the thread.
    pub(super) fn shut(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.arrived.notify_all();
    }

    pub(super) fn count(&self, prompt_tokens: u64, sampled_tokens: u64, busy: Duration) {
        let mut rate = self.rate.lock();
        rate.prompt_tokens += prompt_tokens;
        rate.sampled_tokens += sampled_tokens;
        rate.busy_seconds += busy.as_secs_f64();
    }

    pub(super) fn rate(&self) -> SamplerRate {
        *self.rate.lock()
    }

    pub(super) fn version(&self) -> PolicyVersion {
        PolicyVersion(self.version.load(Ordering::Acquire))
    }

    pub(super) fn set_version(&self, version: PolicyVersion) {
        self.version.store(version.0, Ordering::Release);
    }
}
