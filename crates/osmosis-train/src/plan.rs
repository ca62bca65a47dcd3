//! What a trainer is given: the plan, and the running parts.

use std::fmt;
use std::sync::Arc;

use camino::Utf8PathBuf;
use osmosis_core::config::{Checkpoints, Training};
use osmosis_core::learner::{TrainableModel, WeightSink};
use osmosis_engine::{EngineOptions, Executor, Sessions};
use osmosis_store::{NewRow, Store};

/// What is trained on, and how. Equal plans give equal runs.
#[derive(Debug, Clone)]
pub struct TrainPlan {
    pub rows: Vec<NewRow>,
    /// Never trained on. Their row indices do not occur in `rows`.
    pub held_out: Vec<NewRow>,
    pub training: Training,
    pub checkpoints: Checkpoints,
    /// The seed that was chosen when the config has none.
    pub seed: u64,
}

/// The running parts a trainer works with. The policy behind the sessions is backed by `sampler`.
#[derive(Debug, Clone)]
pub struct TrainParts {
    pub store: Arc<dyn Store>,
    pub sessions: Arc<dyn Sessions>,
    pub executor: Arc<dyn Executor>,
    /// What training starts from; a resume loads the last good checkpoint instead.
    pub model: Arc<dyn TrainableModel>,
    /// Takes the weights after every step.
    pub sampler: Arc<dyn WeightSink>,
    pub engine: EngineOptions,
    /// The run's folder: `metrics.jsonl` and `checkpoints/step_N/` go below it.
    pub folder: Utf8PathBuf,
    /// Also write TensorBoard event files below `folder/tensorboard`.
    pub tensorboard: bool,
    /// Opens the policy to the nodes of the run, where it may have some.
    pub nodes: Option<Arc<dyn NodeGate>>,
}

/// Lets the nodes of a run sample, or has them wait. A node goes on while the run is resumed after a crash: what it
/// still holds is sampled with the weights that it was begun for, which the trainer may first have to compute again.
pub trait NodeGate: Send + Sync + fmt::Debug {
    fn set_open(&self, open: bool);

    /// Ends what nodes sample at this moment, because the weights are about to go back to an earlier step's.
    fn interrupt(&self);
}

/// Nodes may sample while this lives.
#[derive(Debug)]
pub(crate) struct OpenToNodes(Option<Arc<dyn NodeGate>>);

impl TrainParts {
    pub(crate) fn open_to_nodes(&self) -> OpenToNodes {
        if let Some(nodes) = &self.nodes {
            nodes.set_open(true);
        }
        OpenToNodes(self.nodes.clone())
    }
}

impl Drop for OpenToNodes {
    fn drop(&mut self) {
        if let Some(nodes) = &self.0 {
            nodes.set_open(false);
        }
    }
}
