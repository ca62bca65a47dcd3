//! The embedded model as the training loop sees it: `osmosis_core::learner`'s traits, implemented.

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::Utf8Path;
use osmosis_core::PolicyVersion;
use osmosis_core::learner::{
    Learner, LearnerError, LearnerErrorKind, LearnerFiles, LossFunction, LossRow, ModelFiles,
    NamedTensor, TrainableModel, UpdateReport, WeightSink, Weights,
};

use crate::checkpoint::folder;
use crate::{
    DecoderLearner, EmbeddedModel, LearnerOptions, LoraModel, ModelConfig, PolicyError,
    PolicyErrorKind, Sampler,
};

/// Logits that one piece of a batch may have at once; they are what takes the memory.
const LOGITS_PER_PIECE: usize = 1 << 25;

/// Trains an embedded model, or adapters of one, and keeps its state in folders that others read: Hugging Face's
/// layout for whole weights, PEFT's for adapters.
#[derive(Debug)]
pub struct EmbeddedLearner {
    learner: DecoderLearner,
    files: Arc<dyn ModelFiles>,
}

impl EmbeddedLearner {
    /// Trains all weights.
    pub fn new(model: &EmbeddedModel, options: LearnerOptions) -> Result<Self, PolicyError> {
        let learner = DecoderLearner::new(&model.config, &model.weights, options)?;
        Ok(Self {
            learner: learner.with_chat(&model.chat),
            files: model.files(),
        })
    }

    /// Trains adapters, and leaves the weights below them alone.
    pub(crate) fn of_adapters(
        model: &LoraModel,
        options: LearnerOptions,
    ) -> Result<Self, PolicyError> {
        let (parts, start) = (&model.parts, model.weights());
        let learner = DecoderLearner::of_adapters(&parts.config, &model.frozen, &start, options)?;
        Ok(Self {
            learner: learner.with_chat(&parts.chat),
            files: model.files(),
        })
    }
}

impl LearnerOptions {
    /// For training by rewards, with this learning rate.
    pub fn for_rewards(lr: f64, config: &ModelConfig) -> Self {
        Self {
            lr,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            // The reward says which way to go; pulling weights to 0 would only add to the distance from
            // the start model.
            weight_decay: 0.0,
            max_gradient_norm: 1.0,
            threads: 0,
            tokens_per_piece: (LOGITS_PER_PIECE / config.vocabulary.max(1)).clamp(256, 8192),
        }
    }

    /// The same for adapters of frozen weights, of which memory is what is wanted: pieces are smaller.
    pub fn for_adapters(lr: f64, config: &ModelConfig) -> Self {
        let all = Self::for_rewards(lr, config);
        Self {
            tokens_per_piece: (all.tokens_per_piece / 4).max(256),
            ..all
        }
    }
}

impl Learner for EmbeddedLearner {
    fn update(
        &mut self,
        rows: &[LossRow],
        loss: LossFunction,
        accept: &mut dyn FnMut(&[Vec<f32>]) -> bool,
    ) -> Result<Option<UpdateReport>, LearnerError> {
        let refused = |logprobs: &[Vec<f32>]| (!accept(logprobs)).then_some(());
        let updated = self.learner.update_unless(rows, loss, refused)?;
        Ok(updated.ok())
    }

    fn logprobs(&self, rows: &[LossRow]) -> Result<Vec<Vec<f32>>, LearnerError> {
        Ok(self.learner.logprobs(rows)?)
    }

    fn updates(&self) -> u64 {
        self.learner.updates()
    }

    fn weights(&self) -> Result<Weights, LearnerError> {
        Ok(self.learner.weights()?)
    }

    fn save(&self, files: LearnerFiles<'_>) -> Result<(), LearnerError> {
        self.files.write(files.model, &self.learner.weights()?)?;
        let (_, moments) = self.learner.optimizer_state()?;
        write_optimizer(files.optimizer, moments).map_err(not_written)
    }

    fn restore(&mut self, files: LearnerFiles<'_>, updates: u64) -> Result<(), LearnerError> {
        let weights = self.files.read(files.model)?;
        let mut moments = BTreeMap::new();
        folder::read_tensors(files.optimizer, &mut moments)?;
        Ok(self.learner.restore(&weights, updates, moments)?)
    }
}

impl TrainableModel for EmbeddedModel {
    fn learner(&self, lr: f64) -> Result<Box<dyn Learner>, LearnerError> {
        let options = LearnerOptions::for_rewards(lr, &self.config);
        Ok(Box::new(EmbeddedLearner::new(self, options)?))
    }

    fn weights(&self) -> Arc<Weights> {
        Arc::clone(&self.weights)
    }

    fn files(&self) -> Arc<dyn ModelFiles> {
        Arc::new(self.with(Weights::default()))
    }
}

impl ModelFiles for EmbeddedModel {
    fn read(&self, folder: &Utf8Path) -> Result<Weights, LearnerError> {
        let weights = Arc::unwrap_or_clone(self.with_weights_of(folder)?.weights);
        Ok(finite(weights)?)
    }

    fn write(&self, folder: &Utf8Path, weights: &Weights) -> Result<(), LearnerError> {
        let model = self.with(weights.clone());
        model.save(folder).map_err(not_written)
    }
}

/// Refuses weights of which a number is infinite or none.
pub(crate) fn finite(weights: Weights) -> Result<Weights, PolicyError> {
    match weights.not_finite() {
        None => Ok(weights),
        Some(name) => Err(PolicyError::NotFinite {
            what: format!("tensor `{name}`"),
        }),
    }
}

impl WeightSink for Sampler {
    fn load(&self, weights: &Weights, version: PolicyVersion) -> Result<(), LearnerError> {
        Ok(self.swap(self.config(), weights, version)?)
    }

    fn sampled_tokens(&self) -> u64 {
        self.rate().sampled_tokens
    }
}

fn write_optimizer(
    path: &Utf8Path,
    moments: BTreeMap<String, NamedTensor>,
) -> Result<(), PolicyError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| PolicyError::io(folder, &error))?;
    }
    folder::write_tensors(path, &Weights { tensors: moments }, None)
}

impl EmbeddedModel {
    /// The same model with other weights.
    pub(crate) fn with(&self, weights: Weights) -> Self {
        Self {
            weights: Arc::new(weights),
            config: self.config.clone(),
            chat: Arc::clone(&self.chat),
            name: self.name.clone(),
        }
    }
}

impl From<PolicyError> for LearnerError {
    fn from(error: PolicyError) -> Self {
        Self {
            kind: match error.kind() {
                PolicyErrorKind::Unreadable | PolicyErrorKind::Unsupported => {
                    LearnerErrorKind::Unreadable
                }
                PolicyErrorKind::DiskFull => LearnerErrorKind::DiskFull,
                PolicyErrorKind::Unwritable => LearnerErrorKind::Unwritable,
                PolicyErrorKind::Invalid => LearnerErrorKind::Invalid,
                PolicyErrorKind::Ended => LearnerErrorKind::Ended,
                PolicyErrorKind::NotFinite => LearnerErrorKind::NotFinite,
                PolicyErrorKind::Fault => LearnerErrorKind::Fault,
            },
            message: error.to_string(),
            hint: error.hint(),
        }
    }
}

/// What kept the state from being written. An [`PolicyError::Io`] does not know which way it went.
pub(crate) fn not_written(error: PolicyError) -> LearnerError {
    let unwritable = matches!(error, PolicyError::Io { full: false, .. });
    let told = LearnerError::from(error);
    if unwritable {
        LearnerError {
            kind: LearnerErrorKind::Unwritable,
            hint: Some("check the folder and its permissions".to_owned()),
            ..told
        }
    } else {
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_the_optimizer_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("moments");
        let tensor = |shape: &[usize], values: &[f32]| NamedTensor {
            shape: shape.to_vec(),
            values: values.into(),
        };
        let numbers = [0.1, -0.0, f32::MIN_POSITIVE / 2.0, 3.0e38];
        let moments = Weights {
            tensors: BTreeMap::from([
                ("v.second".to_owned(), tensor(&[2, 2], &numbers)),
                ("m.first".to_owned(), tensor(&[1], &[1.0 / 3.0])),
            ]),
        };
        folder::write_tensors(&path, &moments, None).unwrap();
        let mut back = BTreeMap::new();
        folder::read_tensors(&path, &mut back).unwrap();
        let bits =
            |tensors: &BTreeMap<String, NamedTensor>| -> Vec<(String, Vec<usize>, Vec<u32>)> {
                let each = tensors.iter();
                each.map(|(name, tensor)| {
                    let bits = tensor.values.iter().map(|v| v.to_bits()).collect();
                    (name.clone(), tensor.shape.clone(), bits)
                })
                .collect()
            };
        assert_eq!(bits(&back), bits(&moments.tensors));
    }
}
