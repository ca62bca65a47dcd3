//! Going from the last checkpoint to the last step that was recorded.
//!
//! Which rollouts a step was trained on is decided by the order in which they finished, so a resume can't
//! plan it again: it repeats the updates with the batches that are recorded. The weights are the same
//! after that, bit for bit, and no rollout has to run again. A batch whose step was not recorded is left to
//! the rollout stream, which gives it out first of all.

use osmosis_core::config::Training;

use crate::learning::Learning;
use crate::rollout_stream::BatchContent;
use crate::{TrainError, TrainParts};

/// Repeats the recorded steps after `step`; returns the last of them.
pub(super) async fn replay(
    training: &Training,
    parts: &TrainParts,
    learning: &mut Learning,
    step: u64,
) -> Result<u64, TrainError> {
    let recorded = parts.store.steps().await?;
    let last = recorded.last().map_or(0, |record| record.step);
    let self_graded = parts.executor.self_graded();
    let mut done = step;
    for record in parts.store.batches().await? {
        if record.number != done + 1 || record.number > last {
            continue;
        }
        tracing::info!(
            step = record.number,
            "repeating the update of a recorded step"
        );
        let content = BatchContent::read(&record)?;
        let lesson = content
            .lesson_again(&*parts.store, training, self_graded, record.version)
            .await?
            .lesson;
        if lesson.skipped().is_none() {
            learning.update(record.number, lesson.batch).await?;
        }
        done = record.number;
    }
    Ok(done)
}
