//! A database that is out of reach for a while: what was under way is given up, and the work goes on when it is back.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use osmosis_engine::EngineError;
use osmosis_store::{Recovery, Store, StoreErrorKind};
use osmosis_train::TrainError;

use crate::RunError;
use crate::notices::Notices;
use crate::stop_signals::StopSignals;

/// How long somebody who works on a shared run waits for its database, before it gives up.
const PATIENCE: Duration = Duration::from_mins(10);
/// Between two tries.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// A failure that may be the database's alone.
pub trait MayPass: fmt::Display + Into<RunError> {
    /// Whether the database is down, or the network to it.
    fn is_out_of_reach(&self) -> bool;
}

/// Waits until a database is back that an engine or a trainer failed for; any other error comes back as it is. `owner` is
/// who holds the engine's leases, which are given back. Where one process has the run alone, its files are on this machine, and what is
/// wrong with them does not pass.
pub async fn wait_out(
    error: impl MayPass,
    store: &Arc<dyn Store>,
    owner: &str,
    stop: &StopSignals,
    notices: &dyn Notices,
) -> Result<(), RunError> {
    let may_pass = store.shared().is_some() && error.is_out_of_reach();
    if !may_pass || stop.stop.drain.is_cancelled() {
        return Err(error.into());
    }
    notices.warn(format_args!(
        "{error}; what was under way here is given up, and tried again when it is back"
    ));
    stop.unless_stopped(back_in_reach(store, owner)).await?;
    notices.note("The database is back");
    Ok(())
}

impl MayPass for EngineError {
    fn is_out_of_reach(&self) -> bool {
        match self {
            Self::StoreSilent { .. } => true,
            Self::Store(error) => error.kind() == StoreErrorKind::Unreachable,
            Self::Row { .. }
            | Self::Artifacts { .. }
            | Self::NotRecorded { .. }
            | Self::CopyArtifacts { .. }
            | Self::Task(_)
            | Self::PolicyUnusable(_) => false,
        }
    }
}

impl MayPass for TrainError {
    fn is_out_of_reach(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_out_of_reach(),
            Self::Store(error) => error.kind() == StoreErrorKind::Unreachable,
            Self::NoRows
            | Self::TooManySteps { .. }
            | Self::NoPolicyCall { .. }
            | Self::UnusableSequence { .. }
            | Self::NothingRan { .. }
            | Self::Mismatch { .. }
            | Self::Update { .. }
            | Self::Tokens { .. }
            | Self::Learner(_)
            | Self::File { .. }
            | Self::Checkpoint { .. }
            | Self::NoCheckpoint { .. }
            | Self::Internal(_) => false,
        }
    }
}

/// Waits until the database answers, and puts back what is still held there.
async fn back_in_reach(store: &Arc<dyn Store>, owner: &str) -> Result<(), RunError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match store.recover(Recovery::OwnedBy(owner)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() != StoreErrorKind::Unreachable => return Err(error.into()),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => tokio::time::sleep(TRY_EVERY).await,
        }
    }
}
