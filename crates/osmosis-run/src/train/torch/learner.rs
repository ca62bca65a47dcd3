//! A `Learner` whose model is in the trainer process.

use std::fs;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::learner::{
    Learner, LearnerError, LearnerErrorKind, LearnerFiles, LossFunction, LossRow, UpdateReport,
    Weights,
};
use parking_lot::Mutex;

use super::trainer_process::{Saved, Trainer};
use super::wire::{self, Request};
use super::{Published, failed};

/// Of a state folder: what only the trainer reads. Servers read the files beside it, and no folders.
const OPTIMIZER: &str = "trainer/optimizer.safetensors";

/// With numbers of 16 bits.
const REDUCED_TOLERANCE: f64 = 100.0;

/// Which of the models in the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The one that is trained.
    Policy,
    /// The one that training started from.
    Reference,
}

/// Has the trainer process compute. Its state after each update is on disk before the update counts.
#[derive(Debug)]
pub(super) struct TorchLearner {
    trainer: Arc<Trainer>,
    published: Arc<Published>,
    role: Role,
    /// Adapters are trained, and not all weights.
    adapters: bool,
    updates: u64,
    /// The folder with the weights as they are, when there is one.
    state: Mutex<Option<Utf8PathBuf>>,
}

impl TorchLearner {
    pub(super) fn new(
        trainer: Arc<Trainer>,
        published: Arc<Published>,
        role: Role,
        adapters: bool,
    ) -> Self {
        Self {
            trainer,
            published,
            role,
            adapters,
            updates: 0,
            state: Mutex::new(None),
        }
    }

    fn state_folder(&self, updates: u64) -> Utf8PathBuf {
        self.trainer.states().join(format!("state_{updates}"))
    }

    /// The states that neither a restarted trainer nor a restarted server needs.
    fn remove_old_states(&self) {
        if let Some(old) = self.updates.checked_sub(3) {
            // What can't be removed takes room, and goes with the others at the end.
            let _ = fs::remove_dir_all(self.state_folder(old));
        }
    }

    fn only_policy(&self) -> Result<(), LearnerError> {
        match self.role {
            Role::Policy => Ok(()),
            Role::Reference => Err(failed(
                LearnerErrorKind::Invalid,
                "the start model is not trained".to_owned(),
            )),
        }
    }

    fn write(&self, model: &Utf8Path, optimizer: &Utf8Path) -> Result<(), LearnerError> {
        let request = Request::Save {
            model: model.as_str(),
            optimizer: optimizer.as_str(),
        };
        self.trainer.ask(&request).map(drop)
    }
}

impl Learner for TorchLearner {
    fn update(
        &mut self,
        rows: &[LossRow],
        loss: LossFunction,
        accept: &mut dyn FnMut(&[Vec<f32>]) -> bool,
    ) -> Result<Option<UpdateReport>, LearnerError> {
        self.only_policy()?;
        let state = self.state_folder(self.updates + 1);
        // A trainer that died after it wrote it is asked to write it again.
        let mut accept = |logprobs: &[Vec<f32>]| {
            let _ = fs::remove_dir_all(&state);
            accept(logprobs)
        };
        let request = Request::Update {
            rows: wire::rows(rows),
            loss: wire::loss(loss),
            state: state.as_str(),
        };
        let answer = self.trainer.ask_with(&request, &mut accept)?;
        let report = wire::report(answer)?;
        if report.is_some() {
            self.updates += 1;
            self.trainer.goes_on_from(Saved {
                optimizer: state.join(OPTIMIZER),
                model: state.clone(),
                updates: self.updates,
            });
            *self.state.lock() = Some(state);
            self.remove_old_states();
        }
        Ok(report)
    }

    fn logprobs(&self, rows: &[LossRow]) -> Result<Vec<Vec<f32>>, LearnerError> {
        let answer = self.trainer.ask(&Request::Logprobs {
            rows: wire::rows(rows),
            of_start: self.role == Role::Reference,
        })?;
        wire::logprobs(answer)
    }

    fn logprob_tolerance(&self) -> f64 {
        match self.trainer.dtype() {
            "float32" => 1.0,
            // 8 bits of each number: two programs that add up in another order differ by tenths, not by millionths.
            _ => REDUCED_TOLERANCE,
        }
    }

    fn updates(&self) -> u64 {
        self.updates
    }

    /// Leaves them for the server to load; here they are never.
    fn weights(&self) -> Result<Weights, LearnerError> {
        self.only_policy()?;
        let mut state = self.state.lock();
        let folder = match &*state {
            Some(folder) => folder.clone(),
            // The server has these.
            None if self.updates == 0 && !self.adapters => self.trainer.start_model().to_owned(),
            None => {
                let folder = self.state_folder(self.updates);
                let _ = fs::remove_dir_all(&folder);
                self.write(&folder, &folder.join(OPTIMIZER))?;
                *state = Some(folder.clone());
                folder
            }
        };
        self.published.set(folder);
        Ok(Weights::default())
    }

    fn save(&self, files: LearnerFiles<'_>) -> Result<(), LearnerError> {
        self.only_policy()?;
        self.write(files.model, files.optimizer)
    }

    fn restore(&mut self, files: LearnerFiles<'_>, updates: u64) -> Result<(), LearnerError> {
        self.only_policy()?;
        self.trainer.ask(&Request::Restore {
            model: files.model.as_str(),
            optimizer: files.optimizer.as_str(),
            updates,
        })?;
        self.trainer.goes_on_from(Saved {
            model: files.model.to_owned(),
            optimizer: files.optimizer.to_owned(),
            updates,
        });
        self.updates = updates;
        *self.state.lock() = None;
        Ok(())
    }
}
