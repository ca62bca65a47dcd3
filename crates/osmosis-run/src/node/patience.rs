//! A database that is out of reach for a while: what was under way is given up, and the work goes on when it is back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use osmosis_engine::EngineError;
use osmosis_store::{Recovery, Store, StoreErrorKind};

use crate::RunError;
use crate::life::Surroundings;

/// How long somebody who works on a shared run waits for its database, before it gives up.
const PATIENCE: Duration = Duration::from_mins(10);
/// Between two tries.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Drives an engine, and again after its database was out of reach. `owner` is who holds its leases. Where one process has
/// the run alone, its files are on this machine, and what is wrong with them does not pass.
pub async fn with_patience<T, E: Send + 'static>(
    store: &Arc<dyn Store>,
    owner: &str,
    around: &Surroundings<'_, E>,
    mut drive: impl AsyncFnMut() -> Result<T, EngineError>,
) -> Result<T, RunError> {
    loop {
        let error = match drive().await {
            Ok(end) => return Ok(end),
            Err(error) => error,
        };
        let may_pass = store.shared().is_some() && is_out_of_reach(&error);
        if !may_pass || around.stop.stop.drain.is_cancelled() {
            return Err(error.into());
        }
        around.notices.warn(format_args!(
            "{error}; what was under way here is given up, and tried again when it is back"
        ));
        let waiting = back_in_reach(store, owner);
        around.stop.unless_stopped(waiting).await?;
        around.notices.note("The database is back");
    }
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
