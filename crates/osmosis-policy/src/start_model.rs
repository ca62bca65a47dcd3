//! What a training starts from.

use std::sync::{Arc, OnceLock};

use osmosis_core::learner::{
    Learner, LearnerError, LearnerErrorKind, ModelFiles, TrainableModel, Weights,
};
use parking_lot::Mutex;

use crate::EmbeddedModel;

/// A model whose weights go as soon as the learner and the sampler have theirs: a training of hours must not hold
/// a copy that nobody reads.
#[derive(Debug)]
pub struct StartModel {
    /// Without weights.
    parts: EmbeddedModel,
    weights: Mutex<Option<Arc<Weights>>>,
    digest: OnceLock<String>,
}

impl StartModel {
    pub fn new(model: EmbeddedModel) -> Self {
        Self {
            parts: model.with(Weights::default()),
            weights: Mutex::new(Some(model.weights)),
            digest: OnceLock::new(),
        }
    }

    /// Everything but the weights.
    pub fn parts(&self) -> &EmbeddedModel {
        &self.parts
    }

    /// The whole model, until training has begun.
    pub fn whole(&self) -> Result<EmbeddedModel, LearnerError> {
        let weights = self.weights.lock().clone().ok_or_else(|| LearnerError {
            kind: LearnerErrorKind::Fault,
            message: "the weights that training started from were let go".to_owned(),
            hint: None,
        })?;
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
}

impl TrainableModel for StartModel {
    fn learner(&self, lr: f64) -> Result<Box<dyn Learner>, LearnerError> {
        self.whole()?.learner(lr)
    }

    fn weights(&self) -> Arc<Weights> {
        self.weights.lock().clone().unwrap_or_default()
    }

    fn files(&self) -> Arc<dyn ModelFiles> {
        self.parts.files()
    }

    fn begun(&self) {
        *self.weights.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learner_takes_the_weights_over_and_they_are_let_go() {
        let model = EmbeddedModel::builtin("tiny").unwrap();
        let start = StartModel::new(model.clone());
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
}
