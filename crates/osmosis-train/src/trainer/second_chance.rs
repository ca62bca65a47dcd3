//! A run that stopped because everything failed alike goes on by running that again: the model server is up again, or
//! a missing file is there.

use std::collections::HashSet;

use osmosis_core::RolloutId;
use osmosis_store::{RolloutPages, RolloutRecord};

use super::Trainer;
use crate::TrainError;
use crate::failed_alike::{failed, failed_alike};
use crate::frontier::RowRecords;

impl Trainer {
    /// Puts the rollouts of the first step back into the queue when all of them failed alike, and with them what
    /// failed in the evaluation before it.
    pub(super) async fn retry_what_failed_alike(&mut self) -> Result<(), TrainError> {
        if self.step > 0 || self.journal.settled() > 0 {
            return Ok(());
        }
        let mut trained_on: Vec<RolloutRecord> = vec![];
        let mut held_out: Vec<RolloutRecord> = vec![];
        let mut pages = RolloutPages::finished(&*self.parts.store);
        while let Some(page) = pages.next().await? {
            for rollout in page {
                if self.held_out.indices.contains(&rollout.row_index) {
                    held_out.push(rollout);
                } else {
                    trained_on.push(rollout);
                }
            }
        }
        let whole_step = self.schedule.step(1, &RowRecords::new()).rollouts.len();
        if trained_on.len() < whole_step || failed_alike(&trained_on).is_none() {
            return Ok(());
        }
        let again: Vec<RolloutId> = trained_on
            .iter()
            .chain(&held_out)
            .filter(|rollout| failed(rollout))
            .map(|rollout| rollout.id.clone())
            .collect();
        let requeued = self.parts.store.requeue_these(&again).await?;
        let requeued: HashSet<RolloutId> = requeued.into_iter().collect();
        self.evaluates_again = held_out.iter().any(|one| requeued.contains(&one.id));
        tracing::info!(
            rollouts = requeued.len(),
            "what failed alike before the first step runs again"
        );
        Ok(())
    }
}
