//! How a server is asked to end: the first signal drains, the second stops now. A process that is served
//! can also just go, which closes our standard input.

use std::future::Future;
use std::io::Read as _;
use std::pin::pin;
use std::time::Duration;

use osmosis_engine::Stop;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use osmosis_run::{RunError, RunErrorKind};

/// How long callbacks get when whoever started us is gone.
const ORPHANED_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct ServeStop {
    pub(super) stop: Stop,
    _listener: tokio::task::JoinSet<()>,
}

impl ServeStop {
    /// When `attached`, the end of standard input counts as well.
    pub(super) fn listen(attached: bool) -> Result<Self, RunError> {
        let failed =
            |error: std::io::Error| RunError::failed(RunErrorKind::Signals, error.to_string());
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let stop = Stop::default();
        let asked = stop.clone();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if asked.drain.is_cancelled() {
                    asked.now.cancel();
                }
                asked.drain.cancel();
            }
        });
        if attached {
            let orphaned = end_of_standard_input()?;
            let asked = stop.clone();
            tasks.spawn(async move {
                orphaned.cancelled().await;
                asked.drain.cancel();
                tokio::time::sleep(ORPHANED_LIMIT).await;
                asked.now.cancel();
            });
        }
        Ok(Self {
            stop,
            _listener: tasks,
        })
    }

    /// Runs a part of the preparation, which a signal ends at once.
    pub(super) async fn unless_stopped<T>(
        &self,
        part: impl Future<Output = Result<T, RunError>>,
    ) -> Result<T, RunError> {
        tokio::select! {
            biased;
            () = self.stop.drain.cancelled() => Err(RunError::failed(RunErrorKind::Interrupted, "interrupted before anything was served")),
            done = part => done,
        }
    }

    /// Serves to the end. The second value says why there are no workers any more, when that is what
    /// ended it rather than somebody's wish.
    pub(super) async fn until_served<T>(
        &self,
        serving: impl Future<Output = T>,
        lost: impl Future<Output = String>,
    ) -> (T, Option<String>) {
        let mut serving = pin!(serving);
        let detail = tokio::select! {
            biased;
            served = &mut serving => return (served, None),
            () = self.stop.drain.cancelled() => return (serving.await, None),
            detail = lost => detail,
        };
        (serving.await, Some(detail))
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
