//! The embedded policy: one small decoder, sampled in batches and trained by gradients.
//!
//! Two executions of the same [`ModelConfig`] and [`Weights`]: the [`Sampler`] has kernels of its own,
//! whose result for a token does not depend on what else is in the batch, and the [`DecoderLearner`] records
//! a tape of operations that each have a backward pass. To the training loop they are a
//! [`Learner`](osmosis_core::learner::Learner) and a [`WeightSink`](osmosis_core::learner::WeightSink). It
//! must never know of rollouts: rows come in, weights go out.

mod builtin;
mod checkpoint;
mod config;
mod decoder;
mod error;
mod footprint;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod learner;
mod lora;
mod pace;
mod processor;
mod sampler;
mod start_model;
mod training;
mod weights;

pub use checkpoint::{EmbeddedModel, GgufType};
pub use config::{Architecture, ModelConfig, RopeScaling};
pub use decoder::Decoder;
pub use error::{PolicyError, PolicyErrorKind, TensorProblem, TensorProblems};
pub use footprint::{Footprint, TrainingSize};
pub use learner::{DecoderLearner, LearnerOptions};
pub use lora::LoraModel;
pub use osmosis_core::learner::{
    KlEstimator, LossFunction, LossRow, NamedTensor, PolicyGradient, Surrogate, UpdateReport,
    Weights,
};
pub use pace::Pace;
pub use processor::Processor;
pub use sampler::{Sampler, SamplerOptions, SamplerRate};
pub use start_model::StartModel;
pub use training::EmbeddedLearner;
