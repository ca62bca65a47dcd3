//! How a run is asked to end early: by signals, or by a front end of its own.

use std::future::Future;

use osmosis_engine::Stop;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::{RunError, RunErrorKind};

/// What SIGTERM means. Ctrl-C drains, and stops now the second time, whatever this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTerminate {
    /// Like Ctrl-C: what serves others ends when those it serves have what they wait for.
    Drain,
    StopNow,
}

/// Requests to stop, as tokens that the parts of a run wait on.
#[derive(Debug)]
pub struct StopSignals {
    pub stop: Stop,
    /// What a run that was stopped while it was prepared is told as.
    not_begun: &'static str,
    listener: JoinSet<()>,
}

impl StopSignals {
    /// For a front end that asks in its own way, through these tokens.
    pub fn of(stop: Stop) -> Self {
        Self {
            stop,
            not_begun: "interrupted before any rollout was run",
            listener: JoinSet::new(),
        }
    }

    /// The same with other words for an end before the beginning.
    #[must_use]
    pub fn told_as(self, not_begun: &'static str) -> Self {
        Self { not_begun, ..self }
    }

    /// Listens for the signals that this process gets.
    pub fn listen(on_terminate: OnTerminate) -> Result<Self, RunError> {
        let failed =
            |error: std::io::Error| RunError::failed(RunErrorKind::Signals, error.to_string());
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut signals = Self::of(Stop::default());
        let Stop { drain, now } = signals.stop.clone();
        signals.listener.spawn(async move {
            loop {
                let at_once = tokio::select! {
                    _ = interrupt.recv() => false,
                    _ = terminate.recv() => on_terminate == OnTerminate::StopNow,
                };
                if at_once || drain.is_cancelled() {
                    now.cancel();
                }
                drain.cancel();
            }
        });
        Ok(signals)
    }

    /// Runs a part of the preparation, which a request to stop ends at once.
    pub async fn unless_stopped<T>(
        &self,
        part: impl Future<Output = Result<T, RunError>>,
    ) -> Result<T, RunError> {
        tokio::select! {
            biased;
            () = self.stop.drain.cancelled() => {
                Err(RunError::failed(RunErrorKind::Interrupted, self.not_begun))
            }
            done = part => done,
        }
    }
}
