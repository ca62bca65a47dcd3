//! The sampler's thread: who is in the batch, and what each step computes.

use std::collections::VecDeque;
use std::iter;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{GenerationError, GenerationRequest, StopReason, TokenSink};
use osmosis_tokens::TokenMatcher;
use pulp::Arch;
use rayon::ThreadPool;
use rayon::prelude::*;
use tracing::{debug, error};

use super::SamplerOptions;
use super::draw::{Drawn, draw, draw_allowed};
use super::grammar_state::GrammarState;
use super::inbox::{Arrived, Inbox, Letter};
use super::prefix_caches::{PrefixCaches, common_prefix};
use super::sequence::{Job, Sequence};
use crate::ModelConfig;
use crate::decoder::{Batch, KvCache, Logits, PackedWeights, PagePool, Span, check_prompt};

/// Prompt tokens run beside the sampled ones in a step: so many that a step computes about this many
/// products. Each step reads all weights from memory, so few tokens at a time waste it; with more, those who sample
/// would wait long for a prompt (0.2 s for 135M parameters on two cores with AVX-512).
const PRODUCTS_PER_STEP: usize = 40_000_000_000;

/// Tokens without an alternative that a sequence runs in one step. More would keep the others waiting.
const FORCED_TOKENS_PER_STEP: usize = 32;

/// Tokens for whose keys and values a newcomer waits rather than computing them itself.
const WORTH_WAITING: usize = 16;

pub(super) struct Scheduler {
    config: ModelConfig,
    inbox: Arc<Inbox>,
    batch: Batch,
    arch: Arch,
    weights: Arc<PackedWeights>,
    version: PolicyVersion,
    pages: Arc<PagePool>,
    max_batch: usize,
    max_pages: usize,
    prompt_tokens_per_step: usize,
    waiting: VecDeque<Job>,
    active: Vec<Sequence>,
    kept: PrefixCaches,
}

impl Scheduler {
    pub(super) fn new(
        config: &ModelConfig,
        weights: Arc<PackedWeights>,
        version: PolicyVersion,
        options: SamplerOptions,
        inbox: Arc<Inbox>,
        pool: &ThreadPool,
    ) -> Self {
        let pages = PagePool::new(config);
        let max_pages = options.cache_bytes / pages.page_bytes();
        debug!(max_pages, page_bytes = pages.page_bytes(), "sampler starts");
        Self {
            config: config.clone(),
            inbox,
            batch: Batch::new(config, pool.current_num_threads()),
            arch: Arch::new(),
            weights,
            version,
            pages,
            max_batch: options.max_batch.max(1),
            max_pages,
            prompt_tokens_per_step: (PRODUCTS_PER_STEP / config.parameters().max(1)).clamp(32, 512),
            waiting: VecDeque::new(),
            active: Vec::new(),
            kept: PrefixCaches::default(),
        }
    }

    /// Works until the inbox is closed. Whatever happens, every sink is told its end.
    pub(super) fn serve(mut self, pool: &ThreadPool) {
        // A panic must not leave callers waiting; nothing of the state is used afterwards but the sinks.
        let result = panic::catch_unwind(AssertUnwindSafe(|| pool.install(|| self.work())));
        if result.is_err() {
            error!("the sampler's thread panicked and is gone");
        }
        let late = self
            .inbox
            .close()
            .into_iter()
            .filter_map(|letter| match letter {
                Letter::Request { sink, .. } => Some(sink),
                // Dropping it tells the one who waits.
                Letter::Swap { .. } => None,
            });
        let active = self.active.drain(..).map(|sequence| sequence.sink);
        let waiting = self.waiting.drain(..).map(|job| job.sink);
        for sink in active.chain(waiting).chain(late) {
            let _panicked = panic::catch_unwind(AssertUnwindSafe(|| {
                sink.end(Err(GenerationError::ShutDown));
            }));
        }
    }

    fn work(&mut self) {
        loop {
            let idle = self.active.is_empty() && self.waiting.is_empty();
            let letters = match self.inbox.take(idle) {
                Arrived::Letters(letters) => letters,
                Arrived::Closed => return,
            };
            let began = Instant::now();
            for letter in letters {
                match letter {
                    Letter::Request {
                        request,
                        matcher,
                        sink,
                    } => self.receive(request, matcher, sink),
                    Letter::Swap {
                        weights,
                        version,
                        done,
                    } => {
                        self.swap(weights, version);
                        // Nobody may be waiting for it any more.
                        let _gone = done.send(());
                    }
                }
            }
            self.let_go();
            self.admit();
            if !self.active.is_empty() {
                self.step(began);
            }
        }
    }

    fn receive(
        &mut self,
        request: GenerationRequest,
        matcher: Option<Box<TokenMatcher>>,
        sink: Box<dyn TokenSink>,
    ) {
        if let Err(error) = check_prompt(&self.config, &request.prompt) {
            return sink.end(Err(error));
        }
        let limit = request
            .max_tokens
            .min(self.config.context - request.prompt.len());
        if limit == 0 && request.max_tokens > 0 {
            return sink.end(Err(GenerationError::PromptTooLong {
                prompt: request.prompt.len(),
                context: self.config.context,
            }));
        }
        if limit == 0 {
            return sink.end(Ok(StopReason::Length));
        }
        self.waiting.push_back(Job {
            request,
            sink,
            matcher,
            limit,
        });
    }

    fn swap(&mut self, weights: Arc<PackedWeights>, version: PolicyVersion) {
        self.weights = weights;
        self.version = version;
        self.inbox.set_version(version);
        self.kept.clear();
        for sequence in &mut self.active {
            if sequence.sampled() == 0 {
                // Its tokens will all be these weights' own, so what stands before them has to be too.
                sequence.begin_again(KvCache::new(&self.pages));
            } else {
                sequence.mixed |= sequence.cache.filled() > 0;
            }
        }
    }

    /// Ends the sequences that nobody wants any more, before another token of them is computed. A long
    /// prompt would else be run to its end first.
    fn let_go(&mut self) {
        for index in (0..self.active.len()).rev() {
            if is_unwanted(&mut *self.active[index].sink) {
                let sequence = self.active.remove(index);
                self.end(sequence, Ok(StopReason::Cancelled));
            }
        }
    }

    fn end(&mut self, sequence: Sequence, end: Result<StopReason, GenerationError>) {
        if !sequence.mixed && end.is_ok() {
            self.kept.keep(sequence.ids, sequence.cache);
        }
        sequence.sink.end(end);
    }

    /// Lets in who is next, in order, as long as the batch and the worst case of its memory have room. The
    /// first is always let in, or it would wait for ever.
    fn admit(&mut self) {
        let mut reserved: usize = self.active.iter().map(|sequence| sequence.pages).sum();
        while self.active.len() < self.max_batch {
            let Some(mut job) = self.waiting.pop_front() else {
                return;
            };
            if is_unwanted(&mut *job.sink) {
                job.sink.end(Ok(StopReason::Cancelled));
                continue;
            }
            if !self.active.is_empty() && reserved + job.pages() > self.max_pages {
                self.waiting.push_front(job);
                return;
            }
            reserved += job.pages();
            self.active
                .push(Sequence::new(job, KvCache::new(&self.pages)));
        }
    }

    /// Runs one token of every sequence that samples, and pieces of prompts.
    fn step(&mut self, began: Instant) {
        self.share_prefixes();
        let plan = self.plan();
        self.make_room(&plan);
        let prompt_tokens: usize = plan
            .iter()
            .zip(&self.active)
            .map(|(count, sequence)| prompt_part(*count, sequence))
            .sum();
        let mut spans: Vec<Span<'_>> = Vec::with_capacity(self.active.len());
        for (sequence, count) in self.active.iter_mut().zip(&plan) {
            if *count > 0 {
                let last = sequence.behind() == *count;
                let filled = sequence.cache.filled();
                spans.push(Span {
                    ids: &sequence.ids[filled..filled + count],
                    cache: &mut sequence.cache,
                    logits: if last { Logits::Last } else { Logits::None },
                });
            }
        }
        let logits = self.batch.run(&self.weights, &mut spans);
        let sampling: Vec<usize> = (0..self.active.len())
            .filter(|index| plan[*index] > 0 && self.active[*index].behind() == 0)
            .collect();
        let drawn = draw_all(self.arch, &logits, &mut self.active, &sampling);
        // Before anybody is told, so that who has been told finds it counted.
        let counted = began.elapsed();
        let sampled: usize = drawn.iter().flatten().map(Vec::len).sum();
        self.inbox
            .count(prompt_tokens as u64, sampled as u64, counted);
        let mut ends = Vec::new();
        for (index, drawn) in sampling.into_iter().zip(drawn) {
            let sequence = &mut self.active[index];
            let end = match drawn {
                Ok(drawn) => drawn
                    .into_iter()
                    .find_map(|drawn| sequence.take(drawn, self.version))
                    .map(Ok),
                Err(error) => Some(Err(error)),
            };
            if let Some(end) = end {
                ends.push((index, end));
            }
        }
        // From the back, so that the indices before stay right.
        for (index, end) in ends.into_iter().rev() {
            let sequence = self.active.remove(index);
            self.end(sequence, end);
        }
        self.inbox
            .count(0, 0, began.elapsed().saturating_sub(counted));
    }

    /// Gives newcomers the keys and values of what they have in common with others. A newcomer waits while
    /// another still computes what it could use.
    fn share_prefixes(&mut self) {
        for index in 0..self.active.len() {
            if !self.active[index].fresh {
                continue;
            }
            // The last token must be run in any case: its logits are wanted.
            let ids = &self.active[index].ids;
            let wanted = &ids[..ids.len() - 1];
            let donors = self
                .active
                .iter()
                .enumerate()
                .filter(|(_, donor)| !donor.fresh && !donor.mixed);
            let mut ready = self
                .kept
                .best(wanted)
                .map(|(entry, common)| (common, Donor::CachedPrefix(entry)));
            let mut coming = 0;
            for (donor_index, donor) in donors {
                let common = common_prefix(&donor.ids, wanted);
                let filled = common.min(donor.cache.filled());
                if filled > ready.as_ref().map_or(0, |(most, _)| *most) {
                    ready = Some((filled, Donor::Active(donor_index)));
                }
                if donor.prefilling() {
                    coming = coming.max(common);
                }
            }
            let (most, donor) = ready.map_or((0, None), |(most, donor)| (most, Some(donor)));
            if coming > most + WORTH_WAITING {
                continue;
            }
            let cache = match donor {
                Some(Donor::Active(donor)) => Some(self.active[donor].cache.prefix(most)),
                Some(Donor::CachedPrefix(entry)) => self.kept.prefix(entry, most),
                None => None,
            };
            let sequence = &mut self.active[index];
            sequence.fresh = false;
            if let Some(cache) = cache {
                sequence.cache = cache;
            }
        }
    }

    /// How many tokens each sequence runs in this step.
    fn plan(&self) -> Vec<usize> {
        let mut budget = self.prompt_tokens_per_step;
        let count = |sequence: &Sequence| {
            if sequence.fresh {
                0
            } else if sequence.sampled() > 0 {
                sequence.behind().min(FORCED_TOKENS_PER_STEP)
            } else if sequence.prefilling() {
                let count = sequence.behind().min(budget);
                budget -= count;
                count
            } else {
                1
            }
        };
        self.active.iter().map(count).collect()
    }

    /// Lets kept caches go until the step's new pages fit.
    fn make_room(&mut self, plan: &[usize]) {
        let new: usize = self
            .active
            .iter()
            .zip(plan)
            .map(|(sequence, count)| sequence.cache.new_pages(*count))
            .sum();
        while self.pages.live() + new > self.max_pages && self.kept.drop_oldest() {}
    }
}

/// Asked anew in each step, so nobody need be woken.
fn is_unwanted(sink: &mut dyn TokenSink) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    sink.poll_unwanted(&mut context).is_ready()
}

/// Who has what a newcomer can use.
enum Donor {
    Active(usize),
    CachedPrefix(usize),
}

/// How many of the next `count` tokens belong to the prompt.
fn prompt_part(count: usize, sequence: &Sequence) -> usize {
    let prompt = sequence.ids.len() - sequence.sampled();
    prompt.saturating_sub(sequence.cache.filled()).min(count)
}

/// The next token of each, and those after it that have no alternative.
fn draw_all(
    arch: Arch,
    logits: &[&[f32]],
    active: &mut [Sequence],
    sampling: &[usize],
) -> Vec<Result<Vec<Drawn>, GenerationError>> {
    let sequences = active.iter_mut().enumerate();
    let sequences = sequences.filter(|(index, _)| sampling.binary_search(index).is_ok());
    let places: Vec<_> = logits
        .iter()
        .zip(sequences)
        .map(|(logits, (_, sequence))| Place {
            logits,
            index: sequence.sampled(),
            room: sequence.room(),
            request: &sequence.request,
            constrained: sequence.constrained.as_mut(),
        })
        .collect();
    let draw = |place: Place<'_>| place.draw(arch);
    if logits.iter().map(|logits| logits.len()).sum::<usize>() < 16 * 1024 {
        places.into_iter().map(draw).collect()
    } else {
        places.into_par_iter().map(draw).collect()
    }
}

/// Where a token is drawn.
struct Place<'a> {
    logits: &'a [f32],
    request: &'a GenerationRequest,
    /// The number of the token.
    index: usize,
    /// Tokens that may be sampled, this one included.
    room: usize,
    constrained: Option<&'a mut GrammarState>,
}

impl Place<'_> {
    fn draw(self, arch: Arch) -> Result<Vec<Drawn>, GenerationError> {
        let (logits, request) = (self.logits, self.request);
        let Some(constrained) = self.constrained else {
            return Ok(vec![draw(arch, logits, request, self.index)?]);
        };
        let allowed = constrained.allowed(logits.len())?;
        let drawn = draw_allowed(arch, logits, request, self.index, &allowed)?;
        let room = self.room.saturating_sub(1);
        let forced = constrained.take(drawn.id, logits.len(), room, &request.stop_ids)?;
        let forced = forced.into_iter().map(|id| Drawn::forced(id, request));
        Ok(iter::once(drawn).chain(forced).collect())
    }
}
