//! Opening the store of a run: a new one, or one that is resumed.

use std::sync::Arc;

use osmosis_core::clock::now_ms;
use osmosis_core::{OutcomeKind, RunName};
use osmosis_store::{Recovery, RunKind, RunRecord, RunStatus, Store, StoreError};

use super::reference::kind_word;
use super::{Pinned, PinnedDifferences, RowChanges};
use crate::checked_dataset::CheckedDataset;
use crate::private_files;
use crate::run_folder::RunFolder;
use crate::{RunError, RunErrorKind};

/// What a run is made with, or must have been made with.
#[derive(Debug)]
pub struct RunToOpen<'a> {
    pub folder: &'a RunFolder,
    pub name: &'a RunName,
    pub kind: RunKind,
    pub config_text: &'a str,
    pub pinned: &'a Pinned,
    /// Kinds of result that a resume puts back into the queue.
    pub run_again: &'a [OutcomeKind],
    /// What its rows are compared with when the dataset is not what it was.
    pub dataset: Option<&'a CheckedDataset>,
}

/// A store that this process holds.
#[derive(Debug)]
pub struct Opened {
    pub store: Arc<dyn Store>,
    pub resumed: bool,
    /// It was finished, and nothing of it is run again.
    pub was_finished: bool,
    /// As the run has it.
    pub pinned: Pinned,
}

/// A run as an earlier process left it.
struct Before {
    pinned: Pinned,
    was_finished: bool,
}

impl RunToOpen<'_> {
    /// A new run, or the one of that name, which must be the same experiment.
    pub async fn open(&self) -> Result<Opened, RunError> {
        let path = &self.folder.path;
        if path.exists() {
            private_files::opened(path);
        }
        let opened = self.folder.records.open().await;
        let store = opened.map_err(|error| self.explained(error))?;
        private_files::opened(path);
        match self.begin(&*store).await {
            Ok(before) => Ok(Opened {
                store,
                resumed: before.is_some(),
                was_finished: before.as_ref().is_some_and(|before| before.was_finished),
                pinned: before.map_or_else(|| self.pinned.clone(), |before| before.pinned),
            }),
            Err(error) => {
                // Closing makes what was recorded whole; the first error is the one that matters.
                let _ = store.close().await;
                Err(error)
            }
        }
    }

    /// Makes the run, or goes on with it; how it was before.
    async fn begin(&self, store: &dyn Store) -> Result<Option<Before>, RunError> {
        let Some(record) = store.run().await? else {
            store
                .create_run(RunRecord {
                    name: self.name.clone(),
                    kind: self.kind,
                    status: RunStatus::Running,
                    created_at_ms: now_ms(),
                    finished_at_ms: None,
                    config_toml: self.config_text.to_owned(),
                    pinned: self.pinned.to_json()?,
                })
                .await?;
            return Ok(None);
        };
        let pinned = Pinned::read(&record.pinned)?;
        self.check(&pinned, store).await?;
        if let Some(shared) = store.shared() {
            // What stopped the run before has no part in it now.
            shared.ask_to_stop(None).await?;
        }
        let recovered = store.recover(Recovery::AfterTakeover).await?;
        let requeued = store.requeue(self.run_again).await?;
        let was_finished = record.status == RunStatus::Finished && recovered + requeued == 0;
        if !was_finished {
            store.set_status(RunStatus::Running).await?;
        }
        Ok(Some(Before {
            pinned,
            was_finished,
        }))
    }

    /// Refuses when something differs, also naming the rows that do.
    async fn check(&self, before: &Pinned, store: &dyn Store) -> Result<(), RunError> {
        let Some(mut found) = PinnedDifferences::between(before, self.pinned) else {
            return Ok(());
        };
        if found.has("dataset_sha256")
            && let Some(dataset) = self.dataset
        {
            found.rows = Some(RowChanges::of(store, before, dataset).await?);
        }
        Err(found.refusal(self.name.as_str(), self.pinned.project()))
    }
}

impl RunToOpen<'_> {
    /// A damaged run is not written to; what to do with it is told by its name.
    fn explained(&self, error: StoreError) -> RunError {
        match error {
            StoreError::Damaged { .. } => {
                let run = format!("{}/{}", kind_word(self.kind), self.name);
                RunError::from(error).hint(format!(
                    "`osmosis run verify {run}` lists what is damaged; `osmosis run salvage {run}` makes a new run of \
                     what is whole"
                ))
            }
            other => other.into(),
        }
    }
}

/// The record of a run that somebody wants to look at or to resume.
pub async fn record_of(folder: &RunFolder, run: &str) -> Result<RunRecord, RunError> {
    let store = folder.records.open_read_only().await?;
    store.run().await?.ok_or_else(|| {
        RunError::failed(
            RunErrorKind::RunDamaged,
            format!("run `{run}` was never begun"),
        )
        .hint("submit it again under the same name")
    })
}
