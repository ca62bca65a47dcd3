//! Rollouts that other processes of the run have under way.

use osmosis_core::RolloutId;

use super::RolloutStream;
use crate::TrainError;

impl RolloutStream {
    /// Nobody reports when nodes begin a rollout; the store has its attempts.
    pub(super) async fn note_begun_elsewhere(&mut self) -> Result<(), TrainError> {
        let Some(stragglers) = &mut self.stragglers else {
            return Ok(());
        };
        if self.store.shared().is_none() || !stragglers.asks_elsewhere() {
            return Ok(());
        }
        let running = self.running.iter();
        let asked: Vec<RolloutId> = running
            .filter(|(_, member)| stragglers.may_be_elsewhere(**member))
            .map(|(id, _)| id.clone())
            .collect();
        for record in self.store.rollouts_by_id(&asked).await? {
            if let Some(member) = self.running.get(&record.id)
                && record.outcome.is_none()
            {
                stragglers.attempted(*member, record.attempts);
            }
        }
        Ok(())
    }
}
