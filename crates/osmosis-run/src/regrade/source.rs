//! The run whose samples are graded again. It is only read.

use std::sync::Arc;

use osmosis_core::config::{ConfigSource, Override};
use osmosis_store::{RunKind, RunRecord, Store};

use crate::run_folder::RunFolder;
use crate::runs::{Pinned, record_of};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

#[derive(Debug)]
pub struct Source {
    pub folder: RunFolder,
    pub record: RunRecord,
    pub pinned: Pinned,
    pub store: Arc<dyn Store>,
}

impl Source {
    pub async fn open(workspace: &Workspace, run: &str) -> Result<Self, RunError> {
        Self::of(RunFolder::existing(workspace, RunKind::Evaluation, run).await?).await
    }

    /// The run of exactly this name, which an earlier regrade wrote down.
    pub async fn recorded(workspace: &Workspace, run: &str) -> Result<Self, RunError> {
        Self::of(RunFolder::recorded(workspace, RunKind::Evaluation, run).await?).await
    }

    async fn of(folder: RunFolder) -> Result<Self, RunError> {
        let run = folder.name();
        if let Some(holder) = folder.records.holder().await? {
            return Err(RunError::failed(
                RunErrorKind::RunHeld,
                format!("run `{run}` is under way: it is held by {holder}"),
            )
            .hint(format!(
                "wait until it is done, or stop it with `osmosis eval stop {run}`"
            )));
        }
        let record = record_of(&folder, run).await?;
        Ok(Self {
            pinned: Pinned::read(&record.pinned)?,
            store: folder.records.open_read_only().await?,
            folder,
            record,
        })
    }

    /// The config it was made with, as the file is now; as it was when the file is gone or not known.
    pub fn config(&self, workspace: &Workspace) -> Result<ConfigSource, RunError> {
        let remembered = self.pinned.remembered.config.as_deref();
        let as_it_was = || {
            let name = remembered.unwrap_or("configs/eval/run.toml");
            ConfigSource::of_file(workspace.root.join(name), self.record.config_toml.clone())
        };
        let Some(name) = remembered else {
            return Ok(as_it_was());
        };
        let path = workspace.root.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(ConfigSource {
                overrides: self.overrides()?,
                ..ConfigSource::of_file(path, text)
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(as_it_was()),
            Err(error) => Err(crate::io_error(&path, &error)),
        }
    }

    /// What was set beside the config file.
    fn overrides(&self) -> Result<Vec<Override>, RunError> {
        let settings = self.pinned.remembered.overrides.iter();
        settings
            .map(|text| Override::parse(text))
            .collect::<Result<_, _>>()
            .map_err(|error| RunError::failed(RunErrorKind::RunDamaged, error.to_string()))
    }
}
