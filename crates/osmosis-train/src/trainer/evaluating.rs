//! Evaluations while training goes on.

use std::collections::HashSet;
use std::time::Instant;

use osmosis_core::RolloutId;

use super::asynchronous::AsyncTraining;
use super::tell;
use crate::rollout_phase::refuse_nothing;
use crate::{EvaluationReport, StepReport, TrainError, TrainEvent};

/// An evaluation under way. The weights stay as they are until it is done.
pub(super) struct Evaluating {
    step: u64,
    ids: Vec<RolloutId>,
    pub(super) missing: HashSet<RolloutId>,
    began: Instant,
    /// Of the step that it completes; `None` when that was published before.
    pub(super) report: Option<Box<StepReport>>,
}

impl AsyncTraining<'_> {
    /// Has the held-out rows run with the weights as they stand.
    pub(super) async fn begin_evaluation(
        &mut self,
        report: Option<Box<StepReport>>,
    ) -> Result<(), TrainError> {
        let step = self.trainer.step;
        let Some(rollouts) = self.trainer.evaluation_rollouts() else {
            return Ok(());
        };
        tell(self.events, TrainEvent::Evaluating { step }).await;
        let ids: Vec<RolloutId> = rollouts.iter().map(|r| r.id.clone()).collect();
        let known = self.trainer.parts.store.rollouts_by_id(&ids).await?;
        let done: HashSet<RolloutId> = known
            .into_iter()
            .filter(|rollout| rollout.outcome.is_some())
            .map(|rollout| rollout.id)
            .collect();
        let missing: HashSet<RolloutId> = ids
            .iter()
            .filter(|id| !done.contains(id))
            .cloned()
            .collect();
        let nothing_missing = missing.is_empty();
        self.evaluating = Some(Evaluating {
            step,
            ids,
            missing,
            began: Instant::now(),
            report,
        });
        if nothing_missing {
            return self.end_evaluation().await;
        }
        let rows = self.trainer.held_out.rows.clone();
        self.stream.run(rows, rollouts).await
    }

    pub(super) async fn end_evaluation(&mut self) -> Result<(), TrainError> {
        let Some(evaluating) = self.evaluating.take() else {
            return Ok(());
        };
        let step = evaluating.step;
        let store = &self.trainer.parts.store;
        let rollouts = store.rollouts_by_id(&evaluating.ids).await?;
        refuse_nothing(&format!("the evaluation after step {step}"), &rollouts)?;
        let seconds = evaluating.began.elapsed().as_secs_f64();
        let range = self.trainer.parts.engine.reward_range;
        let unseen = &self.trainer.held_out.unseen;
        let numbers = EvaluationReport::of(&rollouts, unseen, seconds, range);
        let told = TrainEvent::Evaluated {
            step,
            report: Box::new(numbers.clone()),
        };
        tell(self.events, told).await;
        if let Some(report) = evaluating.report {
            self.trainer.publish_step(*report, Some(numbers)).await
        } else {
            self.trainer.evaluates_again = false;
            self.trainer.journal.add_evaluation(step, &numbers).await
        }
    }
}
