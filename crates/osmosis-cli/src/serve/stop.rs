//! How a server is asked to end: the first signal drains, the second stops now. A process that is served
//! can also just go, which closes our standard input.

use std::io::Read as _;
use std::time::Duration;

use osmosis_run::stop_signals::{OnTerminate, StopSignals};
use osmosis_run::{RunError, RunErrorKind};
use tokio_util::sync::CancellationToken;

/// How long callbacks get when whoever started us is gone.
const ORPHANED_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct ServeStop {
    pub(super) signals: StopSignals,
    _orphaned: tokio::task::JoinSet<()>,
}

impl ServeStop {
    /// When `attached`, the end of standard input counts as well.
    pub(super) fn listen(attached: bool) -> Result<Self, RunError> {
        let signals = StopSignals::listen(OnTerminate::Drain)?
            .told_as("interrupted before anything was served");
        let mut tasks = tokio::task::JoinSet::new();
        if attached {
            let orphaned = end_of_standard_input()?;
            let asked = signals.stop.clone();
            tasks.spawn(async move {
                orphaned.cancelled().await;
                asked.drain.cancel();
                tokio::time::sleep(ORPHANED_LIMIT).await;
                asked.now.cancel();
            });
        }
        Ok(Self {
            signals,
            _orphaned: tasks,
        })
    }
}

/// Cancelled when standard input ends.
fn end_of_standard_input() -> Result<CancellationToken, RunError> {
    let ended = CancellationToken::new();
    let told = ended.clone();
    // Not a task: nothing can interrupt the reading, and the thread goes with the process.
    std::thread::Builder::new()
        .name("osmosis-stdin".to_owned())
        .spawn(move || {
            let mut ignored = [0; 1024];
            while matches!(std::io::stdin().read(&mut ignored), Ok(1..)) {}
            told.cancel();
        })
        .map_err(|error| RunError::failed(RunErrorKind::Io, error.to_string()))?;
    Ok(ended)
}
