//! What a training starts from.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use camino::Utf8Path;
use osmosis_core::PolicyVersion;
use osmosis_core::config::Lora;
use osmosis_core::learner::{
    Learner, LearnerError, LearnerErrorKind, ModelFiles, TrainableModel, Weights,
};
use parking_lot::Mutex;

use crate::{EmbeddedModel, LoraModel, PolicyError, Sampler, SamplerOptions};

/// A model whose weights go as soon as the learner and the sampler have theirs: a training of hours must not hold
/// a copy that nobody reads.
#[derive(Debug)]
pub struct StartModel {
    /// Without weights.
    parts: EmbeddedModel,
    weights: Mutex<Option<Arc<Weights>>>,
    /// Training may be begun again.
    kept: AtomicBool,
    digest: OnceLock<String>,
    /// The weights stay as they are, and adapters are trained.
    lora: Option<Lora>,
    adapted: OnceLock<Arc<LoraModel>>,
}

impl StartModel {
    pub fn new(model: EmbeddedModel, lora: Option<Lora>) -> Self {
        Self {
            parts: model.with(Weights::default()),
            weights: Mutex::new(Some(model.weights)),
            kept: AtomicBool::new(false),
            digest: OnceLock::new(),
            lora,
            adapted: OnceLock::new(),
        }
    }

    /// Everything but the weights.
    pub fn parts(&self) -> &EmbeddedModel {
        &self.parts
    }

    pub fn lora(&self) -> Option<&Lora> {
        self.lora.as_ref()
    }

    /// Numbers of the adapters that are trained.
    pub fn adapter_parameters(&self) -> Option<usize> {
        let lora = self.lora.as_ref()?;
        Some(crate::lora::parameters(&self.parts.config, lora))
    }

    /// Keeps the weights when training has begun, because it may have to begin again in this process: a run in a
    /// database that is lost for a while does.
    pub fn keep(&self) {
        self.kept.store(true, Ordering::SeqCst);
    }

    /// The whole model, until training has begun.
    pub fn whole(&self) -> Result<EmbeddedModel, LearnerError> {
        let weights = self.weights.lock().clone().ok_or_else(gone)?;
        Ok(EmbeddedModel {
            weights,
            ..self.parts.clone()
        })
    }

    /// The model's identity. It is computed once, while the weights are there.
    pub fn digest(&self) -> Result<&str, LearnerError> {
        if let Some(digest) = self.digest.get() {
            return Ok(digest);
        }
        let digest = self.whole()?.digest();
        Ok(self.digest.get_or_init(|| digest))
    }

    /// Freezes the weights, when adapters are to be trained: packs them, and lets the others go. `base_folder` is
    /// where checkpoints find them if they come from no model folder.
    pub fn freeze(&self, seed: u64, base_folder: &Utf8Path) -> Result<(), PolicyError> {
        let (Some(lora), None) = (&self.lora, self.adapted.get()) else {
            return Ok(());
        };
        let (Ok(whole), Ok(digest)) = (self.whole(), self.digest()) else {
            return Ok(());
        };
        *self.weights.lock() = None;
        let model = LoraModel::new(whole, digest.to_owned(), lora.clone(), seed, base_folder)?;
        self.adapted.get_or_init(|| Arc::new(model));
        Ok(())
    }

    /// Samples with the weights as they are. Adapters are sampled with once the model is frozen.
    pub fn sampler(
        &self,
        version: PolicyVersion,
        options: SamplerOptions,
    ) -> Result<Sampler, LearnerError> {
        match self.adapted.get() {
            Some(adapted) => Ok(Sampler::start_adapted(adapted, version, options)?),
            None => Ok(Sampler::start(&self.whole()?, version, options)?),
        }
    }
}

fn gone() -> LearnerError {
    LearnerError {
        kind: LearnerErrorKind::Fault,
        message: "the weights that training started from were let go".to_owned(),
        hint: None,
    }
}

impl TrainableModel for StartModel {
    fn learner(&self, lr: f64) -> Result<Box<dyn Learner>, LearnerError> {
        match self.adapted.get() {
            Some(adapted) => adapted.learner(lr),
            None => self.whole()?.learner(lr),
        }
    }

    fn weights(&self) -> Arc<Weights> {
        match self.adapted.get() {
            Some(adapted) => adapted.weights(),
            None => self.weights.lock().clone().unwrap_or_default(),
        }
    }

    fn files(&self) -> Arc<dyn ModelFiles> {
        match self.adapted.get() {
            Some(adapted) => adapted.files(),
            None => self.parts.files(),
        }
    }

    fn begun(&self) {
        if !self.kept.load(Ordering::SeqCst) {
            *self.weights.lock() = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learner_takes_the_weights_over_and_they_are_let_go() {
        let model = EmbeddedModel::builtin("tiny").unwrap();
        let start = StartModel::new(model.clone(), None);
        assert_eq!(start.digest().unwrap(), model.digest());
        let watched = Arc::downgrade(&model.weights);
        drop(model);
        let learner = start.learner(0.1).unwrap();
        start.begun();
        assert!(watched.upgrade().is_none(), "somebody still has them");
        assert!(start.learner(0.1).is_err());
        assert!(!learner.weights().unwrap().tensors.is_empty());
        assert!(start.digest().is_ok(), "it was computed before");
    }

    #[test]
    fn weights_that_are_kept_make_another_learner() {
        let start = StartModel::new(EmbeddedModel::builtin("tiny").unwrap(), None);
        start.keep();
        start.begun();
        assert!(start.learner(0.1).is_ok());
    }
}
