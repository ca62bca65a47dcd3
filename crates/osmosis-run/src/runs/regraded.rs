//! What a run that only grades knows of the one whose samples it grades.

use std::sync::Arc;

use osmosis_core::RunName;
use osmosis_store::{RunKind, RunRecord, Store};

use super::{Pinned, ReadRun, kept};
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;

/// Facts of a run that was made by `eval regrade`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegradedFrom {
    /// The run whose samples it grades.
    pub run: String,
    /// When it was made: another may have its name by now.
    pub(super) created_at_ms: i64,
    /// The run that has the policy's calls: the same, unless that one was regraded too.
    pub calls_in: String,
}

impl RegradedFrom {
    pub fn new(source: &RunRecord, pinned: &Pinned) -> Self {
        let run = source.name.to_string();
        let calls_in = pinned
            .regraded_from
            .as_ref()
            .map(|from| from.calls_in.clone());
        Self {
            calls_in: calls_in.unwrap_or_else(|| run.clone()),
            run,
            created_at_ms: source.created_at_ms,
        }
    }

    /// The run itself, whatever it is called now.
    async fn open_run(&self, workspace: &Workspace) -> Option<(Arc<dyn Store>, RunRecord)> {
        let kind = RunKind::Evaluation;
        let mut names = kept::runs_once_called(workspace, kind, &self.run)
            .await
            .ok()?;
        names.insert(0, RunName::new(self.run.clone()).ok()?);
        for name in names {
            let folder = RunFolder::of(workspace, kind, &name);
            let Ok(ReadRun { store, .. }) = ReadRun::open(folder).await else {
                continue;
            };
            if let Ok(Some(record)) = store.run().await
                && record.created_at_ms == self.created_at_ms
            {
                return Some((store, record));
            }
        }
        None
    }

    /// The run that has the policy's calls. `None` when it is gone, or another has its name by now; for
    /// what was regraded several times, also when one of the runs between is.
    pub async fn open_calls(&self, workspace: &Workspace) -> Option<Arc<dyn Store>> {
        let mut from = self.clone();
        loop {
            let (store, record) = from.open_run(workspace).await?;
            match Pinned::read(&record.pinned).ok()?.regraded_from {
                Some(before) => from = before,
                None => return Some(store),
            }
        }
    }
}
