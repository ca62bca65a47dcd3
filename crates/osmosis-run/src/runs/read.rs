//! Runs that are only looked at.

use std::sync::Arc;

use osmosis_store::{RunRecord, Store};

use crate::run_folder::RunFolder;
use crate::{RunError, RunErrorKind};

/// A run that is open for reading, whoever writes to it.
#[derive(Debug, Clone)]
pub struct ReadRun {
    pub folder: RunFolder,
    pub store: Arc<dyn Store>,
    /// Whether a living process writes to it.
    pub held: bool,
}

impl ReadRun {
    pub async fn open(folder: RunFolder) -> Result<Self, RunError> {
        Ok(Self {
            store: folder.records.open_read_only().await?,
            held: folder.records.holder().await?.is_some(),
            folder,
        })
    }

    /// The run's own record; `name` is what it was asked for by.
    pub async fn record(&self, name: &str) -> Result<RunRecord, RunError> {
        self.store.run().await?.ok_or_else(|| {
            RunError::failed(
                RunErrorKind::RunDamaged,
                format!("run `{name}` was never begun"),
            )
        })
    }
}
