//! A database that is out of reach for a while: what was under way is given up, and the work goes on when it is back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use osmosis_engine::EngineError;
use osmosis_store::{Recovery, Store, StoreErrorKind};

use crate::RunError;
use crate::notices::Notices;
use crate::stop_signals::StopSignals;

/// How long somebody who works on a shared run waits for its database, before it gives up.
const PATIENCE: Duration = Duration::from_mins(10);
/// Between two tries.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Waits until a database is back that an engine failed for; any other error comes back as it is. `owner` is who holds the
/// engine's leases, which are given back. Where one process has the run alone, its files are on this machine, and what is
/// wrong with them does not pass.
pub async fn wait_out(
    error: EngineError,
    store: &Arc<dyn Store>,
    owner: &str,
    stop: &StopSignals,
    notices: &dyn Notices,
) -> Result<(), RunError> {
    let may_pass = store.shared().is_some() && is_out_of_reach(&error);
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

/// Whether it may pass: the database is down, or the network to it.
fn is_out_of_reach(error: &EngineError) -> bool {
    match error {
        EngineError::StoreSilent { .. } => true,
        EngineError::Store(error) => error.kind() == StoreErrorKind::Unreachable,
        EngineError::Row { .. }
        | EngineError::Artifacts { .. }
        | EngineError::NotRecorded { .. }
        | EngineError::CopyArtifacts { .. }
        | EngineError::Task(_)
        | EngineError::PolicyUnusable(_) => false,
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
