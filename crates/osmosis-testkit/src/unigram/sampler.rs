//! Draws from the logits.

use std::cmp::Ordering::Equal;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    DrawKey, GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_core::learner::{LearnerError, Numbers, TrainableModel as _, WeightSink, Weights};
use sha2::{Digest, Sha256};

use super::{UnigramModel, logits, logprobs, narrow};

/// Samples on the thread of whoever asks. What it draws follows from the weights and the key alone; top-p and
/// top-k are left out.
#[derive(Debug)]
pub struct UnigramSampler {
    vocabulary: usize,
    context: usize,
    served: Mutex<(Numbers, PolicyVersion)>,
    sampled: AtomicU64,
    ended: AtomicBool,
}

impl UnigramSampler {
    pub fn new(model: &UnigramModel, context: usize) -> Result<Self, LearnerError> {
        let logits = logits(&model.weights(), model.vocabulary())?;
        Ok(Self {
            vocabulary: logits.len(),
            context,
            served: Mutex::new((logits, PolicyVersion(0))),
            sampled: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        })
    }

    /// Answers no more.
    pub fn shut_down(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    fn served(&self) -> (Numbers, PolicyVersion) {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        (served.0.clone(), served.1)
    }

    fn check(&self, request: &GenerationRequest) -> Result<(), GenerationError> {
        let prompt = &request.prompt;
        if self.ended.load(Ordering::SeqCst) {
            return Err(GenerationError::ShutDown);
        }
        if prompt.is_empty() {
            return Err(GenerationError::PromptEmpty);
        }
        if prompt.len() > self.context {
            return Err(GenerationError::PromptTooLong {
                prompt: prompt.len(),
                context: self.context,
            });
        }
        match prompt.iter().find(|id| **id as usize >= self.vocabulary) {
            None => Ok(()),
            Some(id) => Err(GenerationError::UnknownToken {
                id: *id,
                vocabulary: self.vocabulary,
            }),
        }
    }

    fn sample(
        &self,
        request: &GenerationRequest,
        sink: &mut dyn TokenSink,
    ) -> Result<StopReason, GenerationError> {
        self.check(request)?;
        let room = self.context - request.prompt.len();
        for place in 0..request.max_tokens.min(room) {
            let (logits, version) = self.served();
            let chances = logprobs(&logits, request.temperature);
            let chosen = if request.temperature > 0.0 {
                drawn(&chances, uniform(&request.key, place))
            } else {
                likeliest(&chances).next().unwrap_or(0)
            };
            let token = |id: usize| (u32::try_from(id).unwrap_or(u32::MAX), narrow(chances[id]));
            let (id, logprob) = token(chosen);
            self.sampled.fetch_add(1, Ordering::SeqCst);
            let wanted = sink.token(SampledToken {
                id,
                logprob,
                version,
                alternatives: likeliest(&chances)
                    .take(request.alternatives)
                    .map(token)
                    .collect(),
                allowed: None,
            });
            if request.stop_ids.contains(&id) {
                return Ok(StopReason::Stop);
            }
            if wanted == ControlFlow::Break(()) {
                return Ok(StopReason::Cancelled);
            }
        }
        Ok(StopReason::Length)
    }
}

impl TokenEngine for UnigramSampler {
    fn context_length(&self) -> usize {
        self.context
    }

    fn version(&self) -> PolicyVersion {
        self.served().1
    }

    fn generate(&self, request: GenerationRequest, mut sink: Box<dyn TokenSink>) {
        let end = self.sample(&request, &mut *sink);
        sink.end(end);
    }
}

impl WeightSink for UnigramSampler {
    fn load(&self, weights: &Weights, version: PolicyVersion) -> Result<(), LearnerError> {
        let logits = logits(weights, self.vocabulary)?;
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        *served = (logits, version);
        Ok(())
    }

    fn sampled_tokens(&self) -> u64 {
        self.sampled.load(Ordering::SeqCst)
    }
}

/// A number from 0 to 1, for one place of one generation.
fn uniform(key: &DrawKey, place: usize) -> f64 {
    let digest = Sha256::new()
        .chain_update(key.0)
        .chain_update((place as u64).to_le_bytes())
        .finalize();
    let high = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
    f64::from(high) / (f64::from(u32::MAX) + 1.0)
}

fn drawn(chances: &[f64], at: f64) -> usize {
    let mut sum = 0.0;
    let place = chances.iter().position(|logprob| {
        sum += logprob.exp();
        at < sum
    });
    place.unwrap_or(chances.len() - 1)
}

/// Token ids, likeliest first.
fn likeliest(chances: &[f64]) -> impl Iterator<Item = usize> {
    let mut ids: Vec<usize> = (0..chances.len()).collect();
    ids.sort_by(|one, other| chances[*other].partial_cmp(&chances[*one]).unwrap_or(Equal));
    ids.into_iter()
}
