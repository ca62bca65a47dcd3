use std::fs;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::Lora;
use osmosis_core::learner::{Learner, LearnerError, ModelFiles, TrainableModel, Weights};

use super::{initial, peft};
use crate::decoder::{LayerAdapters, PackedBase, PackedWeights, pack_adapters};
use crate::{EmbeddedLearner, EmbeddedModel, LearnerOptions, PolicyError};

/// A model whose weights are frozen, and adapters that have changed nothing yet.
#[derive(Debug)]
pub struct LoraModel {
    pub(crate) frozen: FrozenModel,
    /// Without weights.
    pub(crate) parts: EmbeddedModel,
    start: Arc<Weights>,
}

/// Weights that stay as they are, and what adapters of them look like. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct FrozenModel {
    pub(crate) base: Arc<PackedBase>,
    pub(crate) lora: Arc<Lora>,
    pub(crate) origin: Arc<BaseOrigin>,
}

/// Where others find the base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BaseOrigin {
    /// A model folder.
    pub(crate) folder: Utf8PathBuf,
    /// The identity of the model in it.
    pub(crate) sha256: String,
}

impl LoraModel {
    /// Packs the base, whose digest is known, and lets go of the weights it was given. A base that is no model folder is written to
    /// `base_folder` unless it is there already: checkpoints name the folder that their adapters belong to.
    pub fn new(
        model: EmbeddedModel,
        digest: String,
        lora: Lora,
        seed: u64,
        base_folder: &Utf8Path,
    ) -> Result<Self, PolicyError> {
        let origin = BaseOrigin {
            folder: origin_folder(&model, base_folder)?,
            sha256: digest,
        };
        Self::of(model, origin, lora, seed)
    }

    /// For one whose adapters are never written.
    pub(crate) fn unsaved(model: EmbeddedModel, lora: Lora) -> Result<Self, PolicyError> {
        let origin = BaseOrigin {
            folder: Utf8PathBuf::new(),
            sha256: String::new(),
        };
        Self::of(model, origin, lora, 0)
    }

    fn of(
        model: EmbeddedModel,
        origin: BaseOrigin,
        lora: Lora,
        seed: u64,
    ) -> Result<Self, PolicyError> {
        let parts = model.with(Weights::default());
        let weights = Arc::unwrap_or_clone(model.weights);
        let base = PackedBase::pack_alone(&parts.config, weights, lora.base)?;
        Ok(Self {
            start: Arc::new(initial(&parts.config, &lora, seed)),
            parts,
            frozen: FrozenModel {
                base: Arc::new(base),
                lora: Arc::new(lora),
                origin: Arc::new(origin),
            },
        })
    }

    /// Bytes of the frozen weights in memory.
    pub fn base_bytes(&self) -> usize {
        self.frozen.base.bytes()
    }

    /// A learner with other settings than those for rewards.
    pub fn learner_with(&self, options: LearnerOptions) -> Result<EmbeddedLearner, PolicyError> {
        EmbeddedLearner::of_adapters(self, options)
    }

    pub(crate) fn packed_start(&self) -> Result<PackedWeights, PolicyError> {
        self.frozen.packed(&self.parts, &self.start)
    }
}

impl FrozenModel {
    /// The base with adapters, as the sampler takes them.
    pub(crate) fn packed(
        &self,
        parts: &EmbeddedModel,
        adapters: &Weights,
    ) -> Result<PackedWeights, PolicyError> {
        let adapters = super::checked(&parts.config, &self.lora, adapters.tensors.clone())?;
        let adapters: Vec<LayerAdapters> = pack_adapters(&self.base, &self.lora, &adapters)?;
        Ok(PackedWeights {
            base: Arc::clone(&self.base),
            adapters,
        })
    }
}

fn origin_folder(
    model: &EmbeddedModel,
    base_folder: &Utf8Path,
) -> Result<Utf8PathBuf, PolicyError> {
    let own = Utf8Path::new(&model.name);
    let folder = if own.join("config.json").is_file() {
        own
    } else {
        if !base_folder.join("config.json").is_file() {
            model.save(base_folder)?;
        }
        base_folder
    };
    let whole = fs::canonicalize(folder).map_err(|error| PolicyError::io(folder, &error))?;
    Utf8PathBuf::from_path_buf(whole).map_err(|path| PolicyError::NotAModel {
        path: folder.to_owned(),
        message: format!("its path `{}` is not UTF-8", path.display()),
    })
}

impl TrainableModel for LoraModel {
    fn learner(&self, lr: f64) -> Result<Box<dyn Learner>, LearnerError> {
        let options = LearnerOptions::for_adapters(lr, &self.parts.config);
        Ok(Box::new(self.learner_with(options)?))
    }

    fn weights(&self) -> Arc<Weights> {
        Arc::clone(&self.start)
    }

    fn files(&self) -> Arc<dyn ModelFiles> {
        Arc::new(peft::AdapterFiles {
            parts: self.parts.clone(),
            frozen: self.frozen.clone(),
        })
    }
}
