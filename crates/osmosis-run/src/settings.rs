//! Settings of a run that are no part of what it is: how fast it goes, where else its numbers are kept.

use camino::Utf8PathBuf;

use crate::tracking::TrackerKind;

/// Settings that change how fast a run goes, never what it means.
#[derive(Debug, Clone, Default)]
pub struct Throughput {
    /// Rollouts under way at once.
    pub max_in_flight: Option<u32>,
    /// Agent worker processes.
    pub workers: Option<u32>,
    /// Bytes of address space of each worker process.
    pub worker_memory: Option<u64>,
    /// Processes and threads that workers may have in all.
    pub worker_processes: Option<u64>,
    /// Python interpreter for the project.
    pub python: Option<Utf8PathBuf>,
}

/// Where else the numbers of a run go.
#[derive(Debug, Clone, Default)]
pub struct Trackers {
    pub kinds: Vec<TrackerKind>,
    /// Python interpreter that has their packages; the project's when there is none.
    pub python: Option<Utf8PathBuf>,
}

impl Trackers {
    /// Those of a training, which writes TensorBoard's files itself, with the steps of a resume in order.
    #[must_use]
    pub fn beside_trainer(&self) -> Self {
        let mut elsewhere = self.clone();
        elsewhere
            .kinds
            .retain(|kind| *kind != TrackerKind::Tensorboard);
        elsewhere
    }

    pub fn has_tensorboard(&self) -> bool {
        self.kinds.contains(&TrackerKind::Tensorboard)
    }
}
