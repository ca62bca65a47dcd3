//! Ctrl-C once drains, twice stops now; SIGTERM stops now.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{RunError, RunErrorKind};

/// Signals as tokens that the parts of a run wait on.
#[derive(Debug)]
pub struct StopSignals {
    pub drain: CancellationToken,
    pub now: CancellationToken,
    _listener: tokio::task::JoinSet<()>,
}

impl StopSignals {
    pub fn listen() -> Result<Self, RunError> {
        let failed =
            |error: std::io::Error| RunError::failed(RunErrorKind::Signals, error.to_string());
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let drain = CancellationToken::new();
        let now = CancellationToken::new();
        let tokens = (drain.clone(), now.clone());
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let (drain, now) = tokens;
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {
                        if drain.is_cancelled() {
                            now.cancel();
                        }
                        drain.cancel();
                    }
                    _ = terminate.recv() => {
                        drain.cancel();
                        now.cancel();
                    }
                }
            }
        });
        Ok(Self {
            drain,
            now,
            _listener: tasks,
        })
    }

    /// Runs a part of the preparation, which a signal ends at once.
    pub async fn unless_stopped<T>(
        &self,
        part: impl Future<Output = Result<T, RunError>>,
    ) -> Result<T, RunError> {
        tokio::select! {
            biased;
            () = self.drain.cancelled() => Err(RunError::failed(RunErrorKind::Interrupted, "interrupted before any rollout was run")),
            done = part => done,
        }
    }
}
