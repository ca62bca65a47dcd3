//! The end that every training passes, whatever made it end.
//!
//! A [`TrainEnd`] is made by one function, [`TrainEnd::pass`], which makes it durable: it is part of the record of the
//! last step. Reports read it back from there, so that what `train submit` prints is what `train info` prints.

use osmosis_core::{JsonText, PolicyVersion};
use osmosis_store::{StepRecord, Store};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::journal::joined;
use crate::{TrainError, clock};

/// Why a training ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end/cause", rename_all = "snake_case")]
pub enum EndCause {
    /// Every planned step is done.
    Complete,
    /// The rewards of so many groups in a row did not differ.
    NoVariance {
        #[serde(rename = "end/groups")]
        groups: u64,
    },
    /// Before the first step, every one of so many rollouts failed in the same way. A resume runs them again.
    FailedAlike {
        #[serde(rename = "end/rollouts")]
        rollouts: u64,
    },
    /// It was asked to stop. A resume goes on.
    Stopped,
    /// An error ended it. A resume goes on.
    Failed {
        #[serde(rename = "end/error")]
        error: String,
    },
}

/// Whether the weights after the last step were evaluated on held-out rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinalEvaluation {
    Done,
    NoHeldOutRows,
    /// The run was stopped or failed before.
    Missing,
}

/// Groups that ended after the last step, so that no step counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedGroups {
    #[serde(rename = "end/groups_no_variance")]
    pub no_variance: u64,
    /// Of these, the last in a row whose attempts sampled the very same tokens.
    #[serde(rename = "end/groups_identical")]
    pub identical: u64,
    #[serde(rename = "end/groups_incomplete")]
    pub incomplete: u64,
    #[serde(rename = "end/groups_stale")]
    pub stale: u64,
}

/// How a training ended, as its store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainEnd(Recorded);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Recorded {
    // The first field, because `without_end` looks for its name.
    #[serde(flatten)]
    cause: EndCause,
    #[serde(rename = "end/step")]
    step: u64,
    #[serde(rename = "end/planned_steps")]
    planned_steps: u64,
    #[serde(rename = "end/evaluation")]
    evaluation: FinalEvaluation,
    #[serde(flatten)]
    unused: UnusedGroups,
}

/// What an end is made of.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) cause: EndCause,
    /// Steps that are done.
    pub(crate) step: u64,
    pub(crate) planned_steps: u64,
    pub(crate) evaluation: FinalEvaluation,
    pub(crate) unused: UnusedGroups,
}

impl EndCause {
    /// Whether the weights after the last step are still evaluated. A run that was asked to stop stops, and after an
    /// error nothing can be run.
    pub(crate) fn is_evaluated(&self) -> bool {
        match self {
            Self::Complete | Self::NoVariance { .. } | Self::FailedAlike { .. } => true,
            Self::Stopped | Self::Failed { .. } => false,
        }
    }
}

impl TrainEnd {
    pub(crate) async fn pass(store: &dyn Store, ending: Ending) -> Result<Self, TrainError> {
        let Ending {
            cause,
            step,
            planned_steps,
            evaluation,
            unused,
        } = ending;
        let end = Recorded {
            cause,
            step,
            planned_steps,
            evaluation,
            unused,
        };
        forget(store).await?;
        let steps = store.steps().await?;
        let record = match steps.into_iter().find(|record| record.step == step) {
            Some(record) => record,
            // Nothing was evaluated before training.
            None => StepRecord {
                step,
                version: PolicyVersion(step),
                metrics: JsonText::of(&json!({"step": step, "version": step})).map_err(internal)?,
                finished_at_ms: clock::now_ms(),
            },
        };
        let metrics = joined(&record.metrics, &JsonText::of(&end).map_err(internal)?)?;
        store.record_step(StepRecord { metrics, ..record }).await?;
        Ok(Self(end))
    }

    /// The end of a training whose loop did not come to one: it failed, or was stopped before it began.
    pub async fn pass_without_loop(
        store: &dyn Store,
        cause: EndCause,
        planned_steps: u64,
        has_held_out_rows: bool,
    ) -> Result<Self, TrainError> {
        let steps = store.steps().await?;
        let last = steps.last();
        let evaluated = last.is_some_and(|record| record.metrics.as_str().contains(r#""eval/"#));
        let ending = Ending {
            cause,
            step: last.map_or(0, |record| record.step),
            planned_steps,
            evaluation: match (has_held_out_rows, evaluated) {
                (false, _) => FinalEvaluation::NoHeldOutRows,
                (true, true) => FinalEvaluation::Done,
                (true, false) => FinalEvaluation::Missing,
            },
            unused: UnusedGroups::default(),
        };
        Self::pass(store, ending).await
    }

    /// The end that these steps record; `None` while a run goes on, after a `kill -9`, and for runs of older versions.
    pub fn recorded(steps: &[StepRecord]) -> Option<Self> {
        let ended = steps
            .iter()
            .rev()
            .find(|record| record.metrics.as_str().contains(MARK))?;
        ended.metrics.read().ok().map(Self)
    }

    pub fn cause(&self) -> &EndCause {
        &self.0.cause
    }

    /// Steps that are done.
    pub fn steps(&self) -> u64 {
        self.0.step
    }

    pub fn planned_steps(&self) -> u64 {
        self.0.planned_steps
    }

    pub fn evaluation(&self) -> FinalEvaluation {
        self.0.evaluation
    }

    pub fn unused(&self) -> UnusedGroups {
        self.0.unused
    }
}

/// How the end begins in the record of a step. No text of a user stands before it there.
const MARK: &str = r#","end/cause":"#;

/// A run goes on: it has no end any more.
pub(crate) async fn forget(store: &dyn Store) -> Result<(), TrainError> {
    for record in store.steps().await? {
        if let Some(metrics) = without_end(&record.metrics)? {
            store.record_step(StepRecord { metrics, ..record }).await?;
        }
    }
    Ok(())
}

/// By text: numbers that are read and written again may come back with another last digit.
fn without_end(metrics: &JsonText) -> Result<Option<JsonText>, TrainError> {
    let Some((numbers, _)) = metrics.as_str().split_once(MARK) else {
        return Ok(None);
    };
    let numbers = JsonText::parse(format!("{numbers}}}")).map_err(internal)?;
    Ok(Some(numbers))
}

fn internal(error: impl std::fmt::Display) -> TrainError {
    TrainError::Internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(cause: EndCause) -> Recorded {
        Recorded {
            cause,
            step: 3,
            planned_steps: 9,
            evaluation: FinalEvaluation::Done,
            unused: UnusedGroups {
                no_variance: 20,
                ..UnusedGroups::default()
            },
        }
    }

    #[test]
    fn an_end_is_read_back_from_the_step_and_leaves_no_trace_when_it_is_forgotten() {
        let causes = [
            EndCause::Complete,
            EndCause::NoVariance { groups: 20 },
            EndCause::FailedAlike { rollouts: 8 },
            EndCause::Stopped,
            EndCause::Failed {
                error: r#"a text with ","end/cause":" in it"#.to_owned(),
            },
        ];
        for cause in causes {
            let end = recorded(cause);
            let step = JsonText::parse(r#"{"step":3,"loss":-2.516433819654829e-8}"#).unwrap();
            let metrics = joined(&step, &JsonText::of(&end).unwrap()).unwrap();
            let record = StepRecord {
                step: 3,
                version: PolicyVersion(3),
                metrics: metrics.clone(),
                finished_at_ms: 0,
            };
            assert_eq!(TrainEnd::recorded(&[record]), Some(TrainEnd(end)));
            assert_eq!(without_end(&metrics).unwrap(), Some(step.clone()));
            assert_eq!(without_end(&step).unwrap(), None);
        }
    }
}
