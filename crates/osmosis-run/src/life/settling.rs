//! The record of a run at its end: its status, and the files that people and programs read.

use osmosis_store::RunStatus;
use serde::Serialize;
use serde_json::Value;

use super::{Lived, OpenRun, Work};
use crate::{RunError, RunErrorKind};

/// A run whose record is complete but for its closing.
pub(super) struct Settled<W: Work> {
    pub(super) lived: Lived<W>,
    pub(super) metrics: Option<Value>,
    pub(super) complete: bool,
}

/// A run that failed, while it was driven or while its numbers were written.
pub(super) struct Unsettled {
    pub(super) error: RunError,
    pub(super) metrics: Option<Value>,
}

impl From<RunError> for Unsettled {
    fn from(error: RunError) -> Self {
        Self {
            error,
            metrics: None,
        }
    }
}

/// Marks the run, and writes its files.
pub(super) async fn settle<W: Work>(
    work: &W,
    run: &OpenRun,
    end: W::End,
) -> Result<Settled<W>, Unsettled> {
    let status = work.status(&end);
    run.store.set_status(status).await.map_err(RunError::from)?;
    let report = work.report(run).await?;
    let report = work.write_files(run, report).await?;
    let metrics = metrics(&report)?;
    write_results(work, run, metrics.as_ref()).await?;
    Ok(Settled {
        lived: Lived {
            end,
            report,
            already_complete: false,
        },
        metrics,
        complete: status == RunStatus::Finished,
    })
}

/// The numbers of a run that was complete before. Its files stay as the process left them that ran it, unless
/// they are gone.
pub(super) async fn look_again<W: Work>(
    work: &W,
    run: &OpenRun,
    end: W::End,
) -> Result<Settled<W>, Unsettled> {
    let report = work.report(run).await?;
    let report = work.write_files(run, report).await?;
    let metrics = metrics(&report)?;
    let folder = work.identity().folder;
    if !folder.metrics().exists() || !folder.index().exists() {
        write_results(work, run, metrics.as_ref()).await?;
    }
    Ok(Settled {
        lived: Lived {
            end,
            report,
            already_complete: true,
        },
        metrics,
        complete: true,
    })
}

/// Marks a run that failed, and leaves what files it can: whoever looks at it finds its numbers so far.
pub(super) async fn leave_files<W: Work>(
    work: &W,
    run: &OpenRun,
    error: &RunError,
) -> Option<Value> {
    let left = async {
        run.store.set_status(RunStatus::Interrupted).await?;
        work.record_failure(run, error).await?;
        let report = work.report(run).await?;
        let metrics = metrics(&report)?;
        write_results(work, run, metrics.as_ref()).await?;
        Ok::<_, RunError>(metrics)
    };
    left.await.unwrap_or_else(|error| {
        tracing::warn!(
            error = error.message(),
            "the run's files are not up to date"
        );
        None
    })
}

/// The numbers as `metrics.json` has them; `None` where there are none.
fn metrics(report: &impl Serialize) -> Result<Option<Value>, RunError> {
    let metrics = serde_json::to_value(report)
        .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
    Ok((!metrics.is_null()).then_some(metrics))
}

async fn write_results<W: Work>(
    work: &W,
    run: &OpenRun,
    metrics: Option<&Value>,
) -> Result<(), RunError> {
    let folder = work.identity().folder;
    folder.write_index(&*run.store).await?;
    metrics.map_or(Ok(()), |metrics| folder.write_metrics(metrics))
}
