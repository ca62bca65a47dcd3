//! The embedded policy: one small decoder, sampled in batches and trained by gradients.
//!
//! Two executions of the same [`ModelConfig`] and [`Weights`]: the [`Sampler`] has kernels of its own,
//! whose result for a token does not depend on what else is in the batch, and the [`Learner`] records a
//! tape of operations that each have a backward pass. It knows nothing of rollouts.

mod builtin;
mod checkpoint;
mod config;
mod decoder;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod learner;
mod processor;
mod sampler;
mod weights;

pub use checkpoint::EmbeddedModel;
pub use config::{Architecture, ModelConfig, RopeScaling};
pub use decoder::Decoder;
pub use error::{PolicyError, PolicyErrorKind, TensorProblem, TensorProblems};
pub use learner::{Learner, LearnerOptions, LossRow, Objective, UpdateReport};
pub use processor::Processor;
pub use sampler::{Sampler, SamplerOptions, SamplerRate};
pub use weights::{NamedTensor, Weights};
