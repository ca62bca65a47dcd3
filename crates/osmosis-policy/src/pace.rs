//! How fast this machine samples from a model and trains it, measured in a moment before a training begins.

use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    DrawKey, GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_core::learner::{
    Learner, LearnerError, LearnerErrorKind, LossFunction, LossRow, TrainableModel,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::{LoraModel, ModelConfig, Sampler, SamplerOptions, StartModel};

const PROMPT: usize = 8;
const ANSWER: usize = 24;
const ROWS: usize = 2;
const ROW: usize = 128;
const CACHE_BYTES: usize = 1 << 28;

/// Tokens per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Of answers that are sampled at once; their prompts are short.
    pub sampled: f64,
    /// Of rows that have nothing in common, every token of them trained on.
    pub trained: f64,
}

impl StartModel {
    /// Measures with the model itself, so it takes as much memory as a training and a few hundred tokens' time. The model
    /// stays as it is.
    pub fn pace(&self, sequences_at_once: usize) -> Result<Pace, LearnerError> {
        let whole = self.whole()?;
        let sequences = sequences_at_once.max(1);
        let options = SamplerOptions {
            max_batch: sequences,
            threads: 0,
            cache_bytes: CACHE_BYTES,
        };
        let adapted = self.lora().cloned();
        let adapted = adapted
            .map(|lora| LoraModel::unsaved(whole.clone(), lora))
            .transpose()?;
        let sampler = match &adapted {
            Some(adapted) => Sampler::start_adapted(adapted, PolicyVersion(0), options)?,
            None => Sampler::start(&whole, PolicyVersion(0), options)?,
        };
        let sampled = sampled(&sampler, &whole.config, sequences)?;
        drop(sampler);
        let mut learner = match &adapted {
            Some(adapted) => adapted.learner(0.0)?,
            None => whole.learner(0.0)?,
        };
        Ok(Pace {
            sampled,
            trained: trained(&mut *learner, &whole.config)?,
        })
    }
}

fn sampled(sampler: &Sampler, config: &ModelConfig, sequences: usize) -> Result<f64, LearnerError> {
    let (sender, ended) = channel();
    let began = Instant::now();
    for sequence in 0..sequences {
        let seed = sequence as u64;
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let request = GenerationRequest {
            prompt: noise(config, PROMPT, seed),
            max_tokens: ANSWER,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            stop_ids: Vec::new(),
            alternatives: 0,
            key: DrawKey(key),
            constraint: None,
        };
        let sink = Count {
            ended: sender.clone(),
            sampled: 0,
        };
        sampler.generate(request, Box::new(sink));
    }
    drop(sender);
    let mut sampled = 0;
    for end in ended {
        sampled += end.map_err(|error| LearnerError {
            kind: LearnerErrorKind::Fault,
            message: error.to_string(),
            hint: None,
        })?;
    }
    Ok(sampled as f64 / began.elapsed().as_secs_f64())
}

fn trained(learner: &mut dyn Learner, config: &ModelConfig) -> Result<f64, LearnerError> {
    let length = ROW.min(config.context);
    let rows: Vec<LossRow> = (0..ROWS)
        .map(|row| LossRow {
            ids: noise(config, length, 1_000 + row as u64),
            // Nothing comes before the first.
            weights: [vec![0.0], vec![1e-3; length - 1]].concat(),
            advantages: vec![1.0; length],
            sampled_logprobs: vec![0.0; length],
            proximal_logprobs: None,
            reference_logprobs: None,
            temperatures: vec![1.0; length],
            constrained: vec![],
        })
        .collect();
    let update = LossFunction::clipped(0.2, 0.2, 0.0);
    // The first takes memory that later ones have.
    learner.update(&rows, update, &mut |_| true)?;
    let began = Instant::now();
    learner.update(&rows, update, &mut |_| true)?;
    Ok((ROWS * length) as f64 / began.elapsed().as_secs_f64())
}

fn noise(config: &ModelConfig, count: usize, seed: u64) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let vocabulary = u32::try_from(config.vocabulary).unwrap_or(u32::MAX);
    (0..count).map(|_| random.next_u32() % vocabulary).collect()
}

struct Count {
    ended: Sender<Result<usize, GenerationError>>,
    sampled: usize,
}

impl TokenSink for Count {
    fn token(&mut self, _token: SampledToken) -> ControlFlow<()> {
        self.sampled += 1;
        ControlFlow::Continue(())
    }

    fn end(self: Box<Self>, end: Result<StopReason, GenerationError>) {
        // Nobody waits any more where the receiver is gone.
        let _gone = self.ended.send(end.map(|_| self.sampled));
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::config::Lora;

    use super::*;
    use crate::EmbeddedModel;

    #[test]
    fn the_pace_is_measured_and_the_model_stays_as_it_is() {
        for lora in [None, Some(Lora::default())] {
            let model = EmbeddedModel::builtin("tiny").unwrap();
            let digest = model.digest();
            let start = StartModel::new(model, lora);
            let pace = start.pace(2).unwrap();
            assert!(pace.sampled > 0.0 && pace.trained > 0.0, "{pace:?}");
            assert_eq!(start.whole().unwrap().digest(), digest);
        }
    }
}
