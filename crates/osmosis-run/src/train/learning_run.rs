//! What runs that train in this process have in common, whether rewards or conversations are learned from.

use osmosis_policy::Processor;
use osmosis_store::RunStatus;
use osmosis_train::TrainEnd;
use osmosis_train::checkpoints::{self, Which};

use crate::RunError;
use crate::life::OpenRun;
use crate::notices::Notices;
use crate::run_folder::RunFolder;

/// The end of a run that was complete before, if its last weights are there.
pub(super) async fn ended_before(
    run: &OpenRun,
    folder: &RunFolder,
) -> Result<Option<TrainEnd>, RunError> {
    if !run.was_finished {
        return Ok(None);
    }
    let steps = run.store.steps().await?;
    let steps = steps.iter().map(|step| step.step).max().unwrap_or(0);
    // Weights that are gone are computed again from what is recorded.
    let last = checkpoints::resolve(&folder.path, Which::Latest);
    let is_there = last.is_ok_and(|checkpoint| checkpoint.step == steps);
    Ok(is_there.then_some(TrainEnd::Complete { steps }))
}

pub(super) fn status(end: &TrainEnd) -> RunStatus {
    match end {
        TrainEnd::Complete { .. } | TrainEnd::NothingToLearn { .. } => RunStatus::Finished,
        TrainEnd::Stopped { .. } | TrainEnd::FailedAlike { .. } => RunStatus::Interrupted,
    }
}

/// Warns when a run goes on elsewhere: the same weights, bit for bit, are promised on one kind of processor alone.
pub(super) fn compare_processors(run: &OpenRun, notices: &dyn Notices) {
    let here = Processor::here().to_string();
    let before = run.pinned.remembered.processor.as_ref();
    if let Some(before) = before.filter(|before| run.resumed && **before != here) {
        tracing::warn!(before, here, "resumed on another kind of processor");
        notices.warn(format_args!(
            "this run was begun on another kind of processor (`{before}`; here: `{here}`): it goes on, \
             but its weights will not be bit for bit what one kind alone would have given"
        ));
    }
}
