//! Batched sampling with a KV cache.
//!
//! A thread of its own runs one token of every sequence per step, with pieces of prompts beside them; new
//! requests join at the next step and leave when they are done. What a sequence gets depends on the weights,
//! its prompt and its [key](osmosis_core::generation::DrawKey) alone: the kernels give the same bits whatever
//! else is in the batch (see the `decoder` module), and each token has its own place in the key's stream of
//! random numbers.
//!
//! Because keys and values are the same bits too, sequences that begin alike share them: the samples of one
//! prompt, the turns of one conversation.

mod draw;
mod grammar_state;
mod inbox;
mod prefix_caches;
mod scheduler;
mod sequence;

use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{GenerationError, GenerationRequest, TokenEngine, TokenSink};
use osmosis_tokens::{ChatFormat, TokenMatcher};
use parking_lot::Mutex;
use tracing::error;

use self::inbox::{Inbox, Letter};
use self::scheduler::Scheduler;
use crate::decoder::{self, PackedWeights};
use crate::lora::FrozenModel;
use crate::{EmbeddedModel, LoraModel, ModelConfig, PolicyError, Weights, weights};

/// Settings of a sampler.
#[derive(Debug, Clone, Copy)]
pub struct SamplerOptions {
    /// Sequences sampled at once; more wait.
    pub max_batch: usize,
    /// Threads to use; 0 means all cores.
    pub threads: usize,
    /// The most bytes that KV caches may take; sequences beyond wait. One sequence is always let in.
    pub cache_bytes: usize,
}

/// What a sampler has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplerRate {
    /// Tokens of prompts that were run; what was shared is not counted.
    pub prompt_tokens: u64,
    pub sampled_tokens: u64,
    /// Seconds in which at least one sequence was under way.
    pub busy_seconds: f64,
}

/// Samples tokens on a thread of its own.
pub struct Sampler {
    config: ModelConfig,
    /// Whose grammars constraints are compiled with; without one, requests can't have any.
    chat: Option<Arc<ChatFormat>>,
    /// The model whose adapters it is given.
    adapted: Option<(FrozenModel, EmbeddedModel)>,
    inbox: Arc<Inbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sampler {
    pub fn start(
        model: &EmbeddedModel,
        version: PolicyVersion,
        options: SamplerOptions,
    ) -> Result<Self, PolicyError> {
        let mut sampler = Self::start_with(&model.config, &model.weights, version, options)?;
        sampler.chat = Some(Arc::clone(&model.chat));
        Ok(sampler)
    }

    /// Without the way to talk to it: token ids in, token ids out, and no constraints.
    pub fn start_with(
        config: &ModelConfig,
        weights: &Weights,
        version: PolicyVersion,
        options: SamplerOptions,
    ) -> Result<Self, PolicyError> {
        let packed = pack(config, weights)?;
        Self::start_packed(config, packed, None, version, options)
    }

    /// With frozen weights that the learner shares. From then on it takes adapters.
    pub fn start_adapted(
        model: &LoraModel,
        version: PolicyVersion,
        options: SamplerOptions,
    ) -> Result<Self, PolicyError> {
        let packed = Arc::new(model.packed_start()?);
        let adapted = Some((model.frozen.clone(), model.parts.clone()));
        let mut sampler =
            Self::start_packed(&model.parts.config, packed, adapted, version, options)?;
        sampler.chat = Some(Arc::clone(&model.parts.chat));
        Ok(sampler)
    }

    fn start_packed(
        config: &ModelConfig,
        packed: Arc<PackedWeights>,
        adapted: Option<(FrozenModel, EmbeddedModel)>,
        version: PolicyVersion,
        options: SamplerOptions,
    ) -> Result<Self, PolicyError> {
        let pool = decoder::pool(options.threads)?;
        let inbox = Arc::new(Inbox::default());
        inbox.set_version(version);
        let scheduler = Scheduler::new(config, packed, version, options, Arc::clone(&inbox), &pool);
        let thread = thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || scheduler.serve(&pool))
            .map_err(|error| PolicyError::Threads(error.to_string()))?;
        Ok(Self {
            config: config.clone(),
            chat: None,
            adapted,
            inbox,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Puts new weights in place between two tokens; sequences under way go on with them (their KV caches
    /// are kept), and each token carries the version that sampled it. Of a sequence that has no token yet the
    /// prompt is run again. Returns when they are in place.
    pub fn swap(
        &self,
        config: &ModelConfig,
        weights: &Weights,
        version: PolicyVersion,
    ) -> Result<(), PolicyError> {
        if !config.has_shape_of(&self.config) {
            return Err(PolicyError::OtherShape);
        }
        let weights = match &self.adapted {
            Some((frozen, parts)) => Arc::new(frozen.packed(parts, weights)?),
            None => pack(config, weights)?,
        };
        let (done, swapped) = mpsc::sync_channel(1);
        let letter = Letter::Swap {
            weights,
            version,
            done,
        };
        if self.inbox.send(letter).is_some() {
            return Err(PolicyError::SamplerEnded);
        }
        swapped.recv().map_err(|_| PolicyError::SamplerEnded)
    }

    /// What the tokens of a request have to follow. Compiled where it is asked for, so that the sampler's thread never
    /// waits for it.
    fn matcher(
        &self,
        request: &GenerationRequest,
    ) -> Result<Option<Box<TokenMatcher>>, GenerationError> {
        let Some(constraint) = &request.constraint else {
            return Ok(None);
        };
        let refused = |message: String| GenerationError::Constraint { message };
        let chat = self.chat.as_ref();
        let chat = chat.ok_or_else(|| refused("this sampler has no tokenizer".to_owned()))?;
        let matcher = chat.grammars().and_then(|all| all.compile(constraint));
        matcher
            .map(|matcher| Some(Box::new(matcher)))
            .map_err(|error| refused(error.to_string()))
    }

    pub(crate) fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn rate(&self) -> SamplerRate {
        self.inbox.rate()
    }

    /// Ends what is under way (sinks get `ShutDown`) and the thread.
    pub fn shut_down(&self) {
        self.inbox.shut();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            error!("the sampler's thread panicked");
        }
    }
}

/// Not in the sampler's pool: its threads belong to the sampler's thread as long as that lives.
fn pack(config: &ModelConfig, weights: &Weights) -> Result<Arc<PackedWeights>, PolicyError> {
    let weights = weights::checked(config, weights.tensors.clone())?;
    PackedWeights::pack(config, &weights).map(Arc::new)
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler")
            .field("version", &self.inbox.version())
            .finish_non_exhaustive()
    }
}

impl TokenEngine for Sampler {
    fn context_length(&self) -> usize {
        self.config.context
    }

    fn version(&self) -> PolicyVersion {
        self.inbox.version()
    }

    fn generate(&self, request: GenerationRequest, sink: Box<dyn TokenSink>) {
        let matcher = match self.matcher(&request) {
            Ok(matcher) => matcher,
            Err(error) => return sink.end(Err(error)),
        };
        let letter = Letter::Request {
            request,
            matcher,
            sink,
        };
        if let Some(Letter::Request { sink, .. }) = self.inbox.send(letter) {
            sink.end(Err(GenerationError::ShutDown));
        }
    }

    fn constrains(&self) -> bool {
        self.chat.is_some()
    }
}
