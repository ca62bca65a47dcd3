//! Documents that take a look at every rollout of a run, kept as long as the run does not change.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use camino::Utf8PathBuf;
use osmosis_run::RunError;
use osmosis_run::reports::{RolloutGrid, RunOverview};
use osmosis_run::runs::ReadRun;
use osmosis_store::{QueueCounts, RunKind, RunRecord, RunStatus};
use parking_lot::Mutex;

/// Runs whose large documents are kept; those that were looked at longest ago go first.
const MOST_RUNS: usize = 4;

/// What is another one when the run has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    created_at_ms: i64,
    status: RunStatus,
    held: bool,
    counts: QueueCounts,
    last_step: u64,
}

impl Fingerprint {
    pub(crate) async fn of(read: &ReadRun, record: &RunRecord) -> Result<Self, RunError> {
        let last_step = match record.kind {
            RunKind::Training => read.store.steps().await?.last().map_or(0, |step| step.step),
            RunKind::Evaluation | RunKind::Serving => 0,
        };
        Ok(Self {
            created_at_ms: record.created_at_ms,
            status: record.status,
            held: read.held,
            counts: read.store.counts().await?,
            last_step,
        })
    }
}

/// What is kept of one run.
#[derive(Debug, Clone, Default)]
pub(crate) struct CachedRun {
    pub(crate) overview: Option<Arc<RunOverview>>,
    /// The run's page, as it is sent.
    pub(crate) page: Option<Bytes>,
    pub(crate) grid: Option<Arc<RolloutGrid>>,
}

#[derive(Debug, Default)]
pub(crate) struct RunCache(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    by_folder: HashMap<Utf8PathBuf, (Fingerprint, CachedRun, u64)>,
    clock: u64,
}

impl RunCache {
    pub(crate) fn get(&self, read: &ReadRun, fingerprint: &Fingerprint) -> CachedRun {
        let mut entries = self.0.lock();
        entries.clock += 1;
        let now = entries.clock;
        match entries.by_folder.get_mut(&read.folder.path) {
            Some((known, kept, used)) if known == fingerprint => {
                *used = now;
                kept.clone()
            }
            Some(_) | None => CachedRun::default(),
        }
    }

    pub(crate) fn put(
        &self,
        read: &ReadRun,
        fingerprint: Fingerprint,
        keep: impl FnOnce(&mut CachedRun),
    ) {
        let mut entries = self.0.lock();
        entries.clock += 1;
        let now = entries.clock;
        let entry = entries
            .by_folder
            .entry(read.folder.path.clone())
            .or_insert_with(|| (fingerprint.clone(), CachedRun::default(), now));
        if entry.0 != fingerprint {
            *entry = (fingerprint, CachedRun::default(), now);
        }
        entry.2 = now;
        keep(&mut entry.1);
        let is_large = |kept: &CachedRun| kept.page.is_some() || kept.grid.is_some();
        let mut large: Vec<u64> = entries
            .by_folder
            .values()
            .filter(|(_, kept, _)| is_large(kept))
            .map(|(_, _, used)| *used)
            .collect();
        if large.len() > MOST_RUNS {
            large.sort_unstable();
            let oldest = large[large.len() - MOST_RUNS];
            for (_, kept, used) in entries.by_folder.values_mut() {
                if *used < oldest {
                    kept.page = None;
                    kept.grid = None;
                }
            }
        }
    }
}
