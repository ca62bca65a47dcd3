//! Exchanging the weights of a policy in this process.

use std::fmt;

use camino::Utf8Path;
use osmosis_core::PolicyVersion;

/// Puts weights from a checkpoint folder in the place of those that answer.
pub trait WeightLoader: Send + Sync + fmt::Debug {
    /// Reads and checks the folder, then answers with its weights from the next token on, also in answers
    /// under way. Each token carries the version that sampled it. Blocks; never called on a thread that
    /// others wait for.
    fn load(&self, folder: &Utf8Path, version: PolicyVersion) -> Result<(), UnusableWeights>;
}

/// Why weights were not taken; the earlier ones still answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UnusableWeights {
    pub message: String,
    pub hint: Option<String>,
}
