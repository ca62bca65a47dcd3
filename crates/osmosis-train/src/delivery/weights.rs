//! Weights that a trainer outside announces, for a policy in this process.

use std::fs;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::PolicyVersion;
use osmosis_core::config::Checkpoints;
use osmosis_core::learner::{LearnerError, ModelFiles, TrainableModel, WeightSink, Weights};
use osmosis_gateway::{UnusableWeights, WeightLoader};

use crate::TrainError;
use crate::checkpoints::{self, Checkpoint};

/// Puts announced weights into a sampler. A run keeps a copy of its own, `checkpoints/step_VERSION/`: the
/// trainer may do with its folder what it likes, and a resume goes on with the weights that answered last.
#[derive(Debug)]
pub struct AnnouncedWeights {
    sink: Arc<dyn WeightSink>,
    files: Arc<dyn ModelFiles>,
    run: Option<WeightCopies>,
}

/// Where copies are kept, and which of them for good.
#[derive(Debug)]
struct WeightCopies {
    folder: Utf8PathBuf,
    kept: Checkpoints,
}

impl AnnouncedWeights {
    /// Takes weights and keeps none.
    pub fn of(sink: Arc<impl WeightSink + 'static>, model: &impl TrainableModel) -> Self {
        Self {
            sink,
            files: model.files(),
            run: None,
        }
    }

    /// Keeps the newest weights below the run's folder, and those of every `checkpoint_save_freq` versions as far
    /// as `keep_last` and `keep_best` let them stay.
    pub fn kept_in(
        sink: Arc<impl WeightSink + 'static>,
        model: &impl TrainableModel,
        folder: Utf8PathBuf,
        kept: Checkpoints,
    ) -> Self {
        Self {
            run: Some(WeightCopies { folder, kept }),
            ..Self::of(sink, model)
        }
    }

    /// Goes on with the newest weights that were kept, and says which version they are. A run that has
    /// none keeps those of `first` as version 0, so that a trainer finds them.
    pub fn restore(&self, first: &impl TrainableModel) -> Result<PolicyVersion, TrainError> {
        let Some(kept) = &self.run else {
            return Ok(PolicyVersion(0));
        };
        let Some(Checkpoint { step, folder }) = checkpoints::list(&kept.folder)?.pop() else {
            kept.save(&*self.files, &first.weights(), PolicyVersion(0))?;
            return Ok(PolicyVersion(0));
        };
        let version = PolicyVersion(step);
        let weights = self.files.read(&folder);
        weights
            .and_then(|weights| self.sink.load(&weights, version))
            .map_err(|error| TrainError::Checkpoint {
                folder,
                message: error.message,
            })?;
        Ok(version)
    }

    fn swap(&self, folder: &Utf8Path, version: PolicyVersion) -> Result<(), Trouble> {
        // A trainer whose numbers ran away hears of it at once, not from failing rollouts.
        let weights = self.files.read(folder)?;
        if let Some(kept) = &self.run {
            // Before anything is sampled with them: a resume must not go back to older ones.
            kept.save(&*self.files, &weights, version)?;
        }
        self.sink.load(&weights, version)?;
        if let Some(kept) = &self.run {
            kept.clear(version)?;
        }
        Ok(())
    }
}

impl WeightLoader for AnnouncedWeights {
    fn load(&self, folder: &Utf8Path, version: PolicyVersion) -> Result<(), UnusableWeights> {
        self.swap(folder, version).map_err(|trouble| match trouble {
            Trouble::Weights(error) => UnusableWeights {
                message: error.message,
                hint: error.hint,
            },
            Trouble::Copy(error) => UnusableWeights {
                message: format!("their copy for the run: {error}"),
                hint: error.hint(),
            },
        })
    }
}

enum Trouble {
    Weights(LearnerError),
    Copy(TrainError),
}

impl From<LearnerError> for Trouble {
    fn from(error: LearnerError) -> Self {
        Self::Weights(error)
    }
}

impl From<TrainError> for Trouble {
    fn from(error: TrainError) -> Self {
        Self::Copy(error)
    }
}

impl WeightCopies {
    fn save(
        &self,
        files: &dyn ModelFiles,
        weights: &Weights,
        version: PolicyVersion,
    ) -> Result<(), TrainError> {
        let folder = self.place(version);
        // Announced once more: what is there may be other weights, and is not the newest of before.
        remove(&folder)?;
        files.write(&folder, weights)?;
        Ok(())
    }

    /// Removes copies of older versions that are not kept for good.
    fn clear(&self, newest: PolicyVersion) -> Result<(), TrainError> {
        for Checkpoint { step, folder } in checkpoints::list(&self.folder)? {
            let every = self.kept.checkpoint_save_freq.max(1);
            if step < newest.0 && !step.is_multiple_of(every) {
                remove(&folder)?;
            }
        }
        checkpoints::retain(&self.folder, &self.kept, newest.0)?;
        Ok(())
    }

    fn place(&self, version: PolicyVersion) -> Utf8PathBuf {
        let name = format!("step_{}", version.0);
        self.folder.join(checkpoints::FOLDER).join(name)
    }
}

fn remove(folder: &Utf8Path) -> Result<(), TrainError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(TrainError::file(folder, &error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
