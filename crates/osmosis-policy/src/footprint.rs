//! How much memory and disk a training of an embedded model takes, told before it begins.

use std::thread;

use osmosis_core::config::{Lora, LoraBase};

use crate::{EmbeddedModel, LearnerOptions, ModelConfig, PolicyError, lora};

/// Bytes of one number.
const F32: u64 = 4;

/// What a training takes. The first four are held as long as it goes on; the last two are the most that the
/// longest rows can lead to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    pub weights: u64,
    /// AdamW's two moments.
    pub optimizer: u64,
    /// Their sum, and one of each thread.
    pub gradients: u64,
    /// The weights as the sampler reads them; twice while new ones take the place of old ones.
    pub sampler: u64,
    /// What the backward pass needs of the forward pass, in all threads.
    pub activations_at_most: u64,
    /// Keys and values of the sequences that are sampled at once.
    pub cache_at_most: u64,
    /// On disk, each.
    pub checkpoint: u64,
}

/// The sizes of a training that its memory depends on.
#[derive(Debug, Clone, Copy)]
pub struct TrainingSize {
    /// Tokens of the longest row: prompt and response.
    pub longest_row: usize,
    /// Of these, tokens that are trained on.
    pub longest_response: usize,
    pub sequences_at_once: usize,
    /// What the KV caches may take.
    pub cache_bytes: usize,
}

impl Footprint {
    /// Of training all weights of a model.
    pub fn full(model: &EmbeddedModel, size: TrainingSize) -> Result<Self, PolicyError> {
        let config = &model.config;
        let options = LearnerOptions::for_rewards(0.0, config);
        let bytes = config.parameters() as u64 * F32;
        let lanes = lanes(options.threads);
        Ok(Self {
            weights: bytes,
            optimizer: 2 * bytes,
            gradients: (1 + lanes) * bytes,
            sampler: 2 * (bytes + tied_head(config)),
            activations_at_most: lanes * piece(config, &options, size),
            cache_at_most: cache(config, size),
            checkpoint: 3 * bytes + text_files(model)?,
        })
    }

    /// Of training adapters of a model. The frozen weights are there once, for learner and sampler.
    pub fn adapted(
        model: &EmbeddedModel,
        lora: &Lora,
        size: TrainingSize,
    ) -> Result<Self, PolicyError> {
        let config = &model.config;
        let options = LearnerOptions::for_adapters(0.0, config);
        let adapters = lora::parameters(config, lora) as u64 * F32;
        let lanes = lanes(options.threads);
        Ok(Self {
            weights: frozen(config, lora.base) + adapters,
            optimizer: 2 * adapters,
            gradients: (1 + lanes) * adapters,
            sampler: 2 * adapters,
            activations_at_most: lanes * piece(config, &options, size),
            cache_at_most: cache(config, size),
            checkpoint: 3 * adapters + text_files(model)?,
        })
    }

    /// What is held as long as training goes on.
    pub fn fixed(&self) -> u64 {
        self.weights + self.optimizer + self.gradients + self.sampler
    }
}

fn lanes(threads: usize) -> u64 {
    match threads {
        0 => thread::available_parallelism().map_or(1, |n| n.get() as u64),
        threads => threads as u64,
    }
}

/// Bytes of weights in this type; vectors stay f32 and are next to nothing.
fn frozen(config: &ModelConfig, base: LoraBase) -> u64 {
    let numbers = config.parameters() as u64;
    match base {
        LoraBase::F32 => numbers * F32,
        LoraBase::Bf16 => numbers * 2,
        // 32 numbers of one byte, and their scale.
        LoraBase::Q8 => numbers * (32 + F32) / 32,
    }
}

/// The sampler packs the embedding once more when it is the head too.
fn tied_head(config: &ModelConfig) -> u64 {
    let head = config.vocabulary * config.width;
    if config.tied_embeddings {
        head as u64 * F32
    } else {
        0
    }
}

/// What one piece of a batch leaves on the tape.
fn piece(config: &ModelConfig, options: &LearnerOptions, size: TrainingSize) -> u64 {
    let longest = size.longest_row.min(config.context);
    let tokens = options.tokens_per_piece.max(longest);
    let wanted = if longest >= options.tokens_per_piece {
        size.longest_response.min(longest)
    } else {
        tokens
    };
    let (q, kv) = (
        config.heads * config.head_width,
        config.kv_heads * config.head_width,
    );
    // Two norms and two sums of the stream with what is added to it; queries and keys before and after they are
    // turned, values, what was attended to; gate, up and their product.
    let layer = 6 * config.width + 3 * q + 3 * kv + 3 * config.mlp_width;
    // Logits, their gradient, and what is computed on the way from one to the other.
    let head = 3 * config.vocabulary;
    (tokens * config.layers * layer + wanted * head) as u64 * F32
}

fn cache(config: &ModelConfig, size: TrainingSize) -> u64 {
    let token = 2 * config.layers * config.kv_heads * config.head_width;
    let tokens = size.sequences_at_once * size.longest_row.min(config.context);
    (tokens as u64 * token as u64 * F32).min(size.cache_bytes as u64)
}

/// Config, tokenizer and template.
fn text_files(model: &EmbeddedModel) -> Result<u64, PolicyError> {
    let parts = model.chat.saved_parts()?;
    let optional = [parts.chat_template, parts.generation_config];
    let optional: usize = optional.iter().flatten().map(String::len).sum();
    let config = model.config.source.to_string().len();
    Ok((parts.tokenizer.len() + parts.tokenizer_config.len() + optional + config) as u64)
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;
    use osmosis_core::learner::{LearnerFiles, TrainableModel as _};

    use super::*;

    #[test]
    fn a_checkpoint_is_as_large_as_was_said() {
        let model = EmbeddedModel::builtin("tiny").unwrap();
        let size = TrainingSize {
            longest_row: 64,
            longest_response: 32,
            sequences_at_once: 4,
            cache_bytes: 1 << 30,
        };
        let told = Footprint::full(&model, size).unwrap();
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(keep.path()).unwrap().join("model");
        let files = LearnerFiles {
            model: &folder,
            optimizer: &folder.join("trainer/optimizer.safetensors"),
        };
        model.learner(0.1).unwrap().save(files).unwrap();
        let mut found = 0;
        for folder in [folder.clone(), folder.join("trainer")] {
            let entries = folder.read_dir_utf8().unwrap().map(Result::unwrap);
            let metadata = entries.map(|entry| entry.metadata().unwrap());
            let files = metadata.filter(std::fs::Metadata::is_file);
            found += files.map(|file| file.len()).sum::<u64>();
        }
        // Headers of the tensor files and the spaces of a config for people are not counted.
        assert!(
            told.checkpoint <= found && found < told.checkpoint + told.checkpoint / 50,
            "{} was said, {found} bytes were written",
            told.checkpoint
        );
    }
}
