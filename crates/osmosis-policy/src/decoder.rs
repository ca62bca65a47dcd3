//! The decoder as the sampler runs it.
//!
//! It does not use candle's matrix product, whose rounding depends on the shape of the batch. Its own kernels
//! compute every number of a token in an order that depends on nothing but the token's sequence: the logits
//! are the same bits whether the token was part of a prompt or sampled, alone or among 128 others, on one
//! thread or many. So a run repeats bit for bit whatever the timing, and keys and values can be shared
//! between sequences that begin alike.

mod adapters;
mod attention;
mod batch;
mod cache;
mod elementwise;
mod forward;
mod kernel;
mod linear;
mod matrix;
#[cfg(test)]
pub(crate) mod noise;
mod packed;
mod panels;
#[cfg(test)]
mod same_bits;
mod transposition;

use std::fmt;
use std::thread;

use osmosis_core::generation::GenerationError;
use rayon::{ThreadPool, ThreadPoolBuilder};

pub(crate) use adapters::{LayerAdapters, pack as pack_adapters};
pub(crate) use batch::Batch;
pub(crate) use cache::{KvCache, PAGE, PagePool};
pub(crate) use elementwise::{exp, max};
pub(crate) use forward::{Logits, Span};
pub(crate) use kernel::{Columns, PANEL, PanelProduct, Start};
pub(crate) use linear::Linear as PackedLinear;
pub(crate) use packed::{PackedBase, PackedWeights};
pub(crate) use panels::rounded;

use crate::{ModelConfig, PolicyError, Weights};

/// Computes logits of whole sequences with the sampler's kernels: to look at a model, and to compare.
pub struct Decoder {
    config: ModelConfig,
    weights: PackedWeights,
    pool: ThreadPool,
}

impl Decoder {
    /// `threads` 0 means all cores. The result does not depend on it.
    pub fn new(
        config: &ModelConfig,
        weights: &Weights,
        threads: usize,
    ) -> Result<Self, PolicyError> {
        Ok(Self {
            config: config.clone(),
            weights: PackedWeights::pack(config, weights)?,
            pool: pool(threads)?,
        })
    }

    /// The logits after each token.
    pub fn logits(&self, ids: &[u32]) -> Result<Vec<Vec<f32>>, GenerationError> {
        check_prompt(&self.config, ids)?;
        let mut cache = KvCache::new(&PagePool::new(&self.config));
        let mut batch = Batch::new(&self.config, self.pool.current_num_threads());
        let mut span = [Span {
            ids,
            cache: &mut cache,
            logits: Logits::All,
        }];
        let logits = self.pool.install(|| batch.run(&self.weights, &mut span));
        Ok(logits.into_iter().map(<[f32]>::to_vec).collect())
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Whether the model can take these ids at all.
pub(crate) fn check_prompt(config: &ModelConfig, ids: &[u32]) -> Result<(), GenerationError> {
    if ids.is_empty() {
        return Err(GenerationError::PromptEmpty);
    }
    if ids.len() > config.context {
        return Err(GenerationError::PromptTooLong {
            prompt: ids.len(),
            context: config.context,
        });
    }
    match ids.iter().find(|id| **id as usize >= config.vocabulary) {
        Some(id) => Err(GenerationError::UnknownToken {
            id: *id,
            vocabulary: config.vocabulary,
        }),
        None => Ok(()),
    }
}

/// Threads for the kernels; 0 means all cores.
pub(crate) fn pool(threads: usize) -> Result<ThreadPool, PolicyError> {
    let threads = match threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("policy-{index}"))
        .build()
        .map_err(|error| PolicyError::Threads(error.to_string()))
}
