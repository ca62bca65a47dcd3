//! One generation under way.

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{GenerationRequest, SampledToken, StopReason, TokenSink};
use osmosis_tokens::TokenMatcher;
use tracing::trace;

use super::draw::Drawn;
use super::grammar_state::GrammarState;
use crate::decoder::{KvCache, PAGE};

/// A request that has not been let in yet.
pub(super) struct Job {
    pub(super) request: GenerationRequest,
    pub(super) sink: Box<dyn TokenSink>,
    /// What its tokens have to follow.
    pub(super) matcher: Option<Box<TokenMatcher>>,
    /// Tokens it may sample.
    pub(super) limit: usize,
}

impl Job {
    /// Pages it can come to need; the token sampled last is never stored.
    pub(super) fn pages(&self) -> usize {
        (self.request.prompt.len() + self.limit - 1).div_ceil(PAGE)
    }
}

/// A sequence that has a place in the batch.
pub(super) struct Sequence {
    pub(super) request: GenerationRequest,
    pub(super) sink: Box<dyn TokenSink>,
    /// With the tokens sampled so far.
    pub(super) constrained: Option<GrammarState>,
    limit: usize,
    pub(super) pages: usize,
    /// Tokens of the prompt.
    prompt: usize,
    /// The prompt, then what was sampled.
    pub(super) ids: Vec<u32>,
    pub(super) cache: KvCache,
    /// Whether it has still to look for another sequence that begins alike.
    pub(super) fresh: bool,
    /// Whether some of its cache was computed by older weights, so that nobody else may use it.
    pub(super) mixed: bool,
}

impl Sequence {
    pub(super) fn new(job: Job, cache: KvCache) -> Self {
        let pages = job.pages();
        let Job {
            mut request,
            sink,
            matcher,
            limit,
        } = job;
        let ids = std::mem::take(&mut request.prompt);
        Self {
            request,
            sink,
            constrained: matcher.map(GrammarState::new),
            limit,
            pages,
            prompt: ids.len(),
            ids,
            cache,
            fresh: true,
            mixed: false,
        }
    }

    /// Forgets what was computed of the prompt.
    pub(super) fn begin_again(&mut self, cache: KvCache) {
        self.cache = cache;
        self.fresh = true;
    }

    /// Tokens that are not in the cache yet.
    pub(super) fn behind(&self) -> usize {
        self.ids.len() - self.cache.filled()
    }

    /// Still has more than one token to run before it can sample.
    pub(super) fn prefilling(&self) -> bool {
        self.behind() > 1
    }

    pub(super) fn sampled(&self) -> usize {
        self.ids.len() - self.prompt
    }

    /// Tokens that it may still sample.
    pub(super) fn room(&self) -> usize {
        self.limit.saturating_sub(self.sampled())
    }

    /// Hands a token on. Says why the sequence has ended, if it has.
    pub(super) fn take(&mut self, drawn: Drawn, version: PolicyVersion) -> Option<StopReason> {
        let Drawn {
            id,
            logprob,
            alternatives,
            allowed,
        } = drawn;
        trace!(id, logprob, "sampled");
        self.ids.push(id);
        let token = SampledToken {
            id,
            logprob,
            version,
            alternatives,
            allowed,
        };
        if self.sink.token(token).is_break() {
            Some(StopReason::Cancelled)
        } else if self.request.stop_ids.contains(&id) {
            Some(StopReason::Stop)
        } else if self.sampled() >= self.limit {
            Some(StopReason::Length)
        } else {
            None
        }
    }
}
