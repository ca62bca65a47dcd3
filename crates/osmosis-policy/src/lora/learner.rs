use std::collections::BTreeMap;

use osmosis_core::learner::{
    Learner, LearnerError, LearnerFiles, LossFunction, LossRow, ModelFiles as _, UpdateReport,
    Weights,
};

use super::LoraModel;
use super::peft::AdapterFiles;
use crate::checkpoint::folder;
use crate::training::{not_written, write_optimizer};
use crate::{DecoderLearner, LearnerOptions, PolicyError};

/// Trains the adapters of a model, and keeps its state in PEFT's folders.
#[derive(Debug)]
pub struct LoraLearner {
    learner: DecoderLearner,
    files: AdapterFiles,
}

impl LoraLearner {
    pub(super) fn new(
        model: &LoraModel,
        start: &Weights,
        options: LearnerOptions,
    ) -> Result<Self, PolicyError> {
        let config = &model.parts.config;
        let learner = DecoderLearner::of_adapters(config, &model.frozen, start, options)?;
        Ok(Self {
            learner: learner.with_chat(&model.parts.chat),
            files: AdapterFiles {
                parts: model.parts.clone(),
                frozen: model.frozen.clone(),
            },
        })
    }
}

impl Learner for LoraLearner {
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
        let adapters = self.files.read(files.model)?;
        let mut moments = BTreeMap::new();
        folder::read_tensors(files.optimizer, &mut moments)?;
        Ok(self.learner.restore(&adapters, updates, moments)?)
    }
}
