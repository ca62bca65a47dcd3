//! How a training ended, as reports have it.

use osmosis_store::{RunStatus, Store};
use osmosis_train::{EndCause, FinalEvaluation, TrainEnd};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RunError;
use crate::figures::thousands;

/// How a training ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingEnd {
    pub cause: EndCauseWord,
    /// Steps that are done.
    pub step: u64,
    pub planned_steps: u64,
    pub evaluation: FinalEvaluationWord,
    /// All of it in a sentence.
    pub summary: String,
}

/// Why a training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndCauseWord {
    /// Every planned step is done.
    Complete,
    /// Too many groups in a row had rewards that do not differ.
    NoVariance,
    /// Every rollout of the first step failed in the same way.
    FailedAlike,
    /// It was asked to stop.
    Stopped,
    /// An error ended it.
    Failed,
}

/// Whether the weights after the last step were evaluated on held-out rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinalEvaluationWord {
    Done,
    NoHeldOutRows,
    /// The run was stopped or failed before.
    Missing,
}

impl From<&EndCause> for EndCauseWord {
    fn from(cause: &EndCause) -> Self {
        match cause {
            EndCause::Complete => Self::Complete,
            EndCause::NoVariance { .. } => Self::NoVariance,
            EndCause::FailedAlike { .. } => Self::FailedAlike,
            EndCause::Stopped => Self::Stopped,
            EndCause::Failed { .. } => Self::Failed,
        }
    }
}

impl From<FinalEvaluation> for FinalEvaluationWord {
    fn from(evaluation: FinalEvaluation) -> Self {
        match evaluation {
            FinalEvaluation::Done => Self::Done,
            FinalEvaluation::NoHeldOutRows => Self::NoHeldOutRows,
            FinalEvaluation::Missing => Self::Missing,
        }
    }
}

impl TrainingEnd {
    pub fn of(end: &TrainEnd) -> Self {
        let (step, planned) = (end.steps(), end.planned_steps());
        let why = match end.cause() {
            EndCause::Complete => None,
            EndCause::NoVariance { groups } => Some(format!(
                "the rewards of {} groups in a row did not differ",
                thousands(*groups)
            )),
            EndCause::FailedAlike { rollouts } => Some(format!(
                "all {} rollouts failed in the same way",
                thousands(*rollouts)
            )),
            EndCause::Stopped => Some("it was asked to stop".to_owned()),
            EndCause::Failed { error } => Some(format!("it failed: {error}")),
        };
        let mut summary = match why {
            None => format!("All {planned} planned steps are done."),
            Some(why) => format!("Training ended after step {step} of {planned}, because {why}."),
        };
        if end.evaluation() == FinalEvaluation::Missing {
            summary += " The weights after the last step were not evaluated on the held-out rows.";
        }
        Self {
            cause: end.cause().into(),
            step,
            planned_steps: planned,
            evaluation: end.evaluation().into(),
            summary,
        }
    }

    /// Whether planned steps are missing.
    pub fn is_early(&self) -> bool {
        self.step < self.planned_steps
    }
}

/// The end that a store has of a training; `None` while a process works on it, and when one was killed.
pub(in crate::reports) async fn recorded_end(
    store: &dyn Store,
) -> Result<Option<TrainEnd>, RunError> {
    match store.run().await? {
        // What an earlier process recorded is void while the run goes on.
        Some(record) if record.status != RunStatus::Running => {
            Ok(TrainEnd::recorded(&store.steps().await?))
        }
        Some(_) | None => Ok(None),
    }
}
