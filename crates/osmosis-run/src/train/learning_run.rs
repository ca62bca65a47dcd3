//! What runs that train in this process have in common, whether rewards or conversations are learned from.

use osmosis_core::Redactor;
use osmosis_policy::Processor;
use osmosis_store::RunStatus;
use osmosis_train::checkpoints::{self, Which};
use osmosis_train::{EndCause, TrainEnd};

use crate::life::OpenRun;
use crate::notices::Notices;
use crate::run_folder::RunFolder;
use crate::{RunError, RunErrorKind};

/// What is known of a training without its loop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    pub(super) steps: u64,
    pub(super) has_held_out_rows: bool,
}

/// The end of a run that came to it before, if its last weights are there.
pub(super) async fn ended_before(
    run: &OpenRun,
    folder: &RunFolder,
    planned: Planned,
) -> Result<Option<TrainEnd>, RunError> {
    if !run.was_finished {
        return Ok(None);
    }
    let records = run.store.steps().await?;
    let steps = records.iter().map(|step| step.step).max().unwrap_or(0);
    // Weights that are gone are computed again from what is recorded.
    let last = checkpoints::resolve(&folder.path, Which::Latest);
    let is_there = last.is_ok_and(|checkpoint| checkpoint.step == steps);
    if !is_there && osmosis_train::any_update(&records) {
        return Ok(None);
    }
    let recorded = TrainEnd::recorded(&records);
    if recorded.is_some() || steps < planned.steps {
        return Ok(recorded);
    }
    // An older version recorded no end.
    Ok(Some(pass(run, EndCause::Complete, planned).await?))
}

/// Leaves in the store that an error ended a training.
pub(super) async fn record_failure(
    run: &OpenRun,
    error: &RunError,
    planned: Planned,
    redactor: &Redactor,
) -> Result<(), RunError> {
    let cause = match error.kind() {
        RunErrorKind::Interrupted => EndCause::Stopped,
        _ => EndCause::Failed {
            error: redactor.clean(error.message()),
        },
    };
    pass(run, cause, planned).await?;
    Ok(())
}

async fn pass(run: &OpenRun, cause: EndCause, planned: Planned) -> Result<TrainEnd, RunError> {
    let Planned {
        steps,
        has_held_out_rows,
    } = planned;
    Ok(TrainEnd::pass_without_loop(&*run.store, cause, steps, has_held_out_rows).await?)
}

pub(super) fn status(end: &TrainEnd) -> RunStatus {
    match end.cause() {
        EndCause::Complete | EndCause::NoVariance { .. } => RunStatus::Finished,
        EndCause::Stopped | EndCause::FailedAlike { .. } | EndCause::Failed { .. } => {
            RunStatus::Interrupted
        }
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
