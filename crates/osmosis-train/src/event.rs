use camino::Utf8PathBuf;
use osmosis_engine::RunEvent;

use crate::{EvaluationReport, StepReport};

/// Something that happened in training, in order.
#[derive(Debug, Clone)]
pub enum TrainEvent {
    /// `step` of `steps` begins; 0 is the evaluation before training.
    StepBegan { step: u64, steps: u64 },
    /// What the engine tells while it runs rollouts.
    Rollout(RunEvent),
    /// The rollouts of the step are in; the update begins.
    Updating { step: u64 },
    /// A step is durable.
    Stepped(Box<StepReport>),
    /// Held-out rows are about to be evaluated with the weights after `step`.
    Evaluating { step: u64 },
    /// Held-out rows were evaluated with the weights after `step`.
    Evaluated {
        step: u64,
        report: Box<EvaluationReport>,
    },
    /// A checkpoint is durable.
    Saved { step: u64, folder: Utf8PathBuf },
    /// Something a person should know; training goes on.
    Warning { message: String },
}
