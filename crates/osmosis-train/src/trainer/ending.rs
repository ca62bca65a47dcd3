//! The one end of every training that no error ended: save, evaluate, record.

use osmosis_engine::Stop;
use osmosis_store::NewRollout;
use tokio::sync::mpsc;

use super::Trainer;
use crate::ending::{EndCause, Ending, FinalEvaluation, TrainEnd, UnusedGroups};
use crate::{TrainError, TrainEvent};

/// What a loop came to. [`Trainer::end`] makes the end of the training of it.
#[derive(Debug)]
pub(super) struct LoopEnd {
    pub(super) cause: EndCause,
    pub(super) unused: UnusedGroups,
    /// The learner has made an update that is not recorded: its weights are not those of the last step.
    pub(super) learner_is_ahead: bool,
}

impl From<EndCause> for LoopEnd {
    fn from(cause: EndCause) -> Self {
        Self {
            cause,
            unused: UnusedGroups::default(),
            learner_is_ahead: false,
        }
    }
}

impl Trainer {
    pub(super) async fn end(
        &mut self,
        came_to: LoopEnd,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<TrainEnd, TrainError> {
        let LoopEnd {
            mut cause,
            unused,
            learner_is_ahead,
        } = came_to;
        if !learner_is_ahead {
            self.save_if_new(events).await?;
        }
        let evaluation = self.evaluate_last(&cause, stop, events).await?;
        if evaluation == FinalEvaluation::Missing && cause.is_evaluated() {
            // Asked to stop while it was evaluated: a resume comes to the same end, with its evaluation.
            cause = EndCause::Stopped;
        }
        let ending = Ending {
            cause,
            step: self.step,
            planned_steps: self.steps(),
            evaluation,
            unused,
        };
        TrainEnd::pass(&*self.parts.store, ending).await
    }

    /// Evaluates the weights after the last step, unless that was done.
    async fn evaluate_last(
        &mut self,
        cause: &EndCause,
        stop: &Stop,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<FinalEvaluation, TrainError> {
        if self.held_out.rows.is_empty() {
            return Ok(FinalEvaluation::NoHeldOutRows);
        }
        if self.journal.evaluated(self.step) {
            return Ok(FinalEvaluation::Done);
        }
        if !cause.is_evaluated() {
            return Ok(FinalEvaluation::Missing);
        }
        let rows = self.held_out_indices();
        let rollouts: Vec<NewRollout> = self.evaluations.rollouts_at_end(self.step, &rows);
        let Some(report) = self.evaluate(rollouts, stop, events).await? else {
            return Ok(FinalEvaluation::Missing);
        };
        self.journal.add_evaluation(self.step, &report).await?;
        self.retain_checkpoints();
        Ok(FinalEvaluation::Done)
    }
}
