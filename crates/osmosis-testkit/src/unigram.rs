//! The smallest policy that can be trained: one logit per token, whatever came before.
//!
//! It has everything that the training loop sees of a real one (a learner with an optimizer, files, a sampler
//! whose logprobs the learner confirms, equal bits for equal calls) and costs next to nothing, so that tests of
//! the loop spend no time on gradients. It passes the same [suite](crate::learner_conformance) as the embedded
//! model.

mod files;
mod learner;
mod sampler;

use std::sync::Arc;

use osmosis_core::learner::{
    Learner, LearnerError, LearnerErrorKind, ModelFiles, NamedTensor, Numbers, TrainableModel,
    Weights,
};

use self::files::UnigramFiles;
pub use self::learner::UnigramLearner;
pub use self::sampler::UnigramSampler;

/// The name of the only tensor.
const LOGITS: &str = "logits";

/// A model that gives every token the same chance at first.
#[derive(Debug, Clone)]
pub struct UnigramModel {
    weights: Arc<Weights>,
}

impl UnigramModel {
    pub fn new(vocabulary: usize) -> Self {
        Self {
            weights: Arc::new(weights(&vec![0.0; vocabulary])),
        }
    }

    fn vocabulary(&self) -> usize {
        self.weights
            .tensors
            .get(LOGITS)
            .map_or(0, |tensor| tensor.values.len())
    }
}

impl TrainableModel for UnigramModel {
    fn learner(&self, lr: f64) -> Result<Box<dyn Learner>, LearnerError> {
        Ok(Box::new(UnigramLearner::new(self, lr)?))
    }

    fn weights(&self) -> Arc<Weights> {
        Arc::clone(&self.weights)
    }

    fn files(&self) -> Arc<dyn ModelFiles> {
        Arc::new(UnigramFiles {
            vocabulary: self.vocabulary(),
        })
    }
}

fn weights(logits: &[f32]) -> Weights {
    let tensor = NamedTensor {
        shape: vec![logits.len()],
        values: logits.into(),
    };
    Weights {
        tensors: [(LOGITS.to_owned(), tensor)].into(),
    }
}

/// The logits among weights, when they are those of such a model.
fn logits(weights: &Weights, vocabulary: usize) -> Result<Numbers, LearnerError> {
    match weights.tensors.get(LOGITS) {
        Some(tensor) if tensor.values.len() == vocabulary => {
            if weights.not_finite().is_some() {
                return Err(error(LearnerErrorKind::NotFinite, "a logit is not finite"));
            }
            Ok(tensor.values.clone())
        }
        Some(_) | None => Err(error(
            LearnerErrorKind::Unreadable,
            "these are not the weights of this model",
        )),
    }
}

/// log-softmax(logits / temperature); with temperature 0, of the logits.
fn logprobs(logits: &[f32], temperature: f32) -> Vec<f64> {
    let temperature = if temperature > 0.0 {
        f64::from(temperature)
    } else {
        1.0
    };
    let scaled: Vec<f64> = logits
        .iter()
        .map(|logit| f64::from(*logit) / temperature)
        .collect();
    let highest = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scaled.iter().map(|value| (value - highest).exp()).sum();
    let normalizer = highest + sum.ln();
    scaled.iter().map(|value| value - normalizer).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "weights and logprobs are f32 everywhere"
)]
fn narrow(value: f64) -> f32 {
    value as f32
}

fn error(kind: LearnerErrorKind, message: impl Into<String>) -> LearnerError {
    LearnerError {
        kind,
        message: message.into(),
        hint: None,
    }
}
