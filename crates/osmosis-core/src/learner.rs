//! What the training loop needs of whatever computes: a [`Learner`] that updates weights from rows, and a
//! [`WeightSink`] that samples with them from then on.
//!
//! The loop knows these traits alone, and implementations know nothing of rollouts. Both are called on threads
//! where computing keeps nobody waiting, and return when they are done; nothing here awaits.
//!
//! The version of weights is the loop's to count (a step without an update has one too). A learner counts its
//! updates, because its optimizer depends on that number.

mod error;
mod rows;
mod weights;

use std::fmt;
use std::sync::Arc;

use camino::Utf8Path;

pub use self::error::{LearnerError, LearnerErrorKind};
pub use self::rows::{
    ConstrainedTokens, KlEstimator, LossFunction, LossRow, PolicyGradient, Surrogate, UpdateReport,
};
pub use self::weights::{NamedTensor, NumberStorage, Numbers, Weights};
use crate::PolicyVersion;

/// Updates the weights of one model from rows. Equal calls give equal bits on one kind of processor.
///
/// Every method that fails leaves the learner as it was.
pub trait Learner: Send + Sync + fmt::Debug {
    /// One update over all rows. `accept` is shown the logprobs of the weighted tokens before the update
    /// (entries of others are 0), the same as [`Self::logprobs`] gives; when it returns `false`, nothing is
    /// changed and the answer is `None`.
    fn update(
        &mut self,
        rows: &[LossRow],
        loss: LossFunction,
        accept: &mut dyn FnMut(&[Vec<f32>]) -> bool,
    ) -> Result<Option<UpdateReport>, LearnerError>;

    /// Logprobs of each token given those before it (entry 0 is 0), at each token's temperature.
    fn logprobs(&self, rows: &[LossRow]) -> Result<Vec<Vec<f32>>, LearnerError>;

    /// How many times as far as with both in float32 its logprobs may be from the sampler's, for tokens that its own
    /// weights sampled.
    fn logprob_tolerance(&self) -> f64 {
        1.0
    }

    /// Updates made so far, those before a restore included.
    fn updates(&self) -> u64;

    /// The weights as they are now; later updates don't change them.
    fn weights(&self) -> Result<Weights, LearnerError>;

    /// Writes the weights and the optimizer's state; on disk when this returns.
    fn save(&self, files: LearnerFiles<'_>) -> Result<(), LearnerError>;

    /// Goes on where [`Self::save`] was called, after that many updates.
    fn restore(&mut self, files: LearnerFiles<'_>, updates: u64) -> Result<(), LearnerError>;
}

/// Where a learner's state is on disk.
#[derive(Debug, Clone, Copy)]
pub struct LearnerFiles<'a> {
    /// A model in the form that others read too. `save` finds no such folder, or an empty one.
    pub model: &'a Utf8Path,
    /// A file for what only the learner reads. It may lie in the folder or below it; `save` makes the folders
    /// on the way.
    pub optimizer: &'a Utf8Path,
}

/// Samples with the weights it was given last.
pub trait WeightSink: Send + Sync + fmt::Debug {
    /// Puts new weights in place; every token after that has `version`. In place when this returns.
    fn load(&self, weights: &Weights, version: PolicyVersion) -> Result<(), LearnerError>;

    /// Tokens sampled so far, with whatever weights.
    fn sampled_tokens(&self) -> u64;
}

/// What training starts from.
pub trait TrainableModel: Send + Sync + fmt::Debug {
    /// A learner of the model's weights, which has made no update yet.
    fn learner(&self, lr: f64) -> Result<Box<dyn Learner>, LearnerError>;

    fn weights(&self) -> Arc<Weights>;

    /// Training has its learners and asks for no more: weights that nobody else needs can go. From here on
    /// [`Self::learner`] may fail, and [`Self::weights`] may be empty.
    fn begun(&self) {}

    /// Its files, without its weights.
    fn files(&self) -> Arc<dyn ModelFiles>;
}

/// Model folders of one shape.
pub trait ModelFiles: Send + Sync + fmt::Debug {
    /// The weights in a folder, which fit the model and are finite. It need not hold anything else.
    fn read(&self, folder: &Utf8Path) -> Result<Weights, LearnerError>;

    /// Writes a whole model with these weights; on disk when this returns. The folder does not exist, or is
    /// empty, and appears whole or not at all.
    fn write(&self, folder: &Utf8Path, weights: &Weights) -> Result<(), LearnerError>;
}
