//! A process that dialled in as a worker that it is not, and the end of the pool that follows.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::worker::Worker;
use super::{Inner, WorkerPool};

/// A process dialled with a token that is not, or no longer, its own to use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Intrusion {
    #[error(
        "{dialler} dialled in with the token of worker {worker}, which is process {started}: nothing that worker answers can be trusted"
    )]
    AnotherProcess {
        dialler: String,
        worker: u64,
        started: u32,
    },
    #[error(
        "{dialler} dialled in with the token of worker {worker}, which had used it already: nothing that worker answers can be trusted"
    )]
    UsedToken { dialler: String, worker: u64 },
}

impl WorkerPool {
    /// Cancels the token when a process dials in with the token of another. From then on the pool takes no task.
    pub fn alarm(&self, alarm: CancellationToken) {
        let listener = Arc::clone(&self.inner.listener);
        let raising = async move {
            listener.intruded().await;
            alarm.cancel();
        };
        self.inner.tasks.spawn(self.inner.unless_abandoned(raising));
    }

    /// Why nothing that workers answered from then on can be trusted, when a process dialled in with the token of
    /// another.
    pub fn intrusion(&self) -> Option<Intrusion> {
        self.inner.listener.intrusion()
    }
}

impl Inner {
    pub(super) fn watch_for_intruders(self: &Arc<Self>) {
        let inner = Arc::clone(self);
        self.tasks.spawn(self.unless_abandoned(async move {
            let intrusion = inner.listener.intruded().await;
            inner.end_intruded(&intrusion);
        }));
    }

    /// A false worker may have answered: nothing that any of them says from here on counts.
    fn end_intruded(&self, intrusion: &Intrusion) {
        let message = intrusion.to_string();
        tracing::info!("{message}");
        let workers: Vec<Arc<Worker>> = self.workers.lock().values().cloned().collect();
        for worker in workers {
            worker.kill(message.clone());
        }
        self.processes.kill_all();
        self.close(&message);
        self.stop.cancel();
    }
}
