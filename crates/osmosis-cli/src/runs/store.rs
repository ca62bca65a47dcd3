//! Opening the store of a run: a new one, or one that is resumed.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use osmosis_core::{OutcomeKind, RunName};
use osmosis_store::{RunKind, RunRecord, RunStatus, SqliteOptions, SqliteStore, Store};

use super::Pinned;
use crate::error::{CliError, io};
use crate::run_folder::RunFolder;

/// What a run is made with, or must have been made with.
#[derive(Debug)]
pub(crate) struct RunToOpen<'a> {
    pub(crate) folder: &'a RunFolder,
    pub(crate) name: &'a RunName,
    pub(crate) kind: RunKind,
    pub(crate) config_text: &'a str,
    pub(crate) pinned: &'a Pinned,
    /// Kinds of result that a resume puts back into the queue.
    pub(crate) run_again: &'a [OutcomeKind],
}

/// A store that this process holds.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) resumed: bool,
}

impl RunToOpen<'_> {
    /// A new run, or the one of that name, which must be the same experiment.
    pub(crate) async fn open(&self) -> Result<Opened, CliError> {
        let path = &self.folder.path;
        std::fs::create_dir_all(path).map_err(|error| io(path, &error))?;
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(path, SqliteOptions::default())?);
        let record = store.run().await?;
        let resumed = record.is_some();
        if let Some(record) = record {
            Pinned::read(&record.pinned)?.check(self.pinned, self.name.as_str())?;
            store.recover().await?;
            store.requeue(self.run_again).await?;
            store.set_status(RunStatus::Running).await?;
        } else {
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
        }
        Ok(Opened { store, resumed })
    }
}

/// The record of a run that somebody wants to look at or to resume.
pub(crate) async fn record_of(folder: &RunFolder, run: &str) -> Result<RunRecord, CliError> {
    let store = SqliteStore::open_read_only(&folder.path)?;
    store.run().await?.ok_or_else(|| {
        CliError::failed("run_damaged", format!("run `{run}` was never begun"))
            .hint("submit it again under the same name")
    })
}

fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}
