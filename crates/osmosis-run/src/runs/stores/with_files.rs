//! Runs whose records are in a database: their files stay in the workspace, and go where the records go.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{RunName, RunTag};
use osmosis_store::{
    ArchivedRun, Catalogue, Holder, ProgressVisitor, RunCredentials, RunEntry, RunKey, RunKind,
    RunLabels, RunPlace, RunSize, SalvageReport, Store, StoreError, StoreUrl, VerifyReport,
};
use osmosis_store_sqlite::SqliteStore;

use crate::workspace::Workspace;

/// A catalogue with the folders of its runs in a workspace. Another machine's folders are that machine's.
#[derive(Debug)]
pub(super) struct CatalogueWithFiles {
    records: Arc<dyn Catalogue>,
    workspace: Workspace,
}

impl CatalogueWithFiles {
    pub(super) fn new(records: Arc<dyn Catalogue>, workspace: Workspace) -> Self {
        Self { records, workspace }
    }

    fn refuse_run_in_workspace(&self, run: &RunKey) -> Result<(), StoreError> {
        let folder = self.folder(run);
        if SqliteStore::is_in(&folder) {
            return Err(StoreError::refused(format!(
                "`{folder}` holds a run of this name whose records are in the workspace; choose another name"
            )));
        }
        Ok(())
    }

    fn folder(&self, run: &RunKey) -> Utf8PathBuf {
        self.workspace.runs_dir(run.kind).join(run.name.as_str())
    }

    fn archived_folder(&self, id: &str) -> Utf8PathBuf {
        self.workspace.archive_dir().join(id)
    }

    /// Files of a run are about to be written.
    fn make_folder(&self, run: &RunKey) -> Result<(), StoreError> {
        make_private(&self.folder(run))
    }
}

fn make_private(folder: &Utf8Path) -> Result<(), StoreError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| StoreError::io(folder, &error))
}

/// Where there is nothing, nothing is moved. What is at the new place already is not touched: then the files stay. So do
/// those of a run of the same name whose records are in the workspace.
fn move_files(from: &Utf8Path, to: &Utf8Path) -> Result<(), StoreError> {
    if !from.exists() || to.exists() || SqliteStore::is_in(from) {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        make_private(parent)?;
    }
    fs::rename(from, to).map_err(|error| StoreError::io(to, &error))
}

fn bytes_below(folder: &Utf8Path) -> u64 {
    let mut bytes = 0;
    let mut left = vec![folder.to_owned()];
    while let Some(path) = left.pop() {
        // What is gone meanwhile takes no room; links count as themselves.
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if metadata.is_dir() {
            let entries = path.read_dir_utf8().into_iter().flatten().flatten();
            left.extend(entries.map(camino::Utf8DirEntry::into_path));
        } else {
            bytes += metadata.len();
        }
    }
    bytes
}

#[async_trait]
impl Catalogue for CatalogueWithFiles {
    fn url(&self) -> &StoreUrl {
        self.records.url()
    }

    fn url_of(&self, run: &RunKey) -> Result<StoreUrl, StoreError> {
        self.records.url_of(run)
    }

    async fn list(&self, kind: RunKind) -> Result<Vec<RunEntry>, StoreError> {
        self.records.list(kind).await
    }

    async fn contains(&self, run: &RunKey) -> Result<bool, StoreError> {
        self.records.contains(run).await
    }

    async fn create(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        self.refuse_run_in_workspace(run)?;
        let store = self.records.create(run).await?;
        self.make_folder(run)?;
        Ok(store)
    }

    async fn create_unauthenticated(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        self.refuse_run_in_workspace(run)?;
        let store = self.records.create_unauthenticated(run).await?;
        self.make_folder(run)?;
        Ok(store)
    }

    async fn open(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        let store = self.records.open(run).await?;
        self.make_folder(run)?;
        Ok(store)
    }

    async fn open_read_only(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        self.records.open_read_only(run).await
    }

    async fn join(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        self.records.join(run).await
    }

    async fn create_credentials(&self, run: &RunKey) -> Result<RunCredentials, StoreError> {
        self.records.create_credentials(run).await
    }

    async fn holder(&self, run: &RunKey) -> Result<Option<Holder>, StoreError> {
        self.records.holder(run).await
    }

    async fn archive(&self, run: &RunKey) -> Result<ArchivedRun, StoreError> {
        let archived = self.records.archive(run).await?;
        move_files(&self.folder(run), &self.archived_folder(&archived.id))?;
        Ok(archived)
    }

    async fn archived(&self, kind: RunKind) -> Result<Vec<ArchivedRun>, StoreError> {
        self.records.archived(kind).await
    }

    async fn open_archived(&self, id: &str) -> Result<Arc<dyn Store>, StoreError> {
        self.records.open_archived(id).await
    }

    async fn restore(&self, id: &str, name: Option<&RunName>) -> Result<RunKey, StoreError> {
        let run = self.records.restore(id, name).await?;
        move_files(&self.archived_folder(id), &self.folder(&run))?;
        Ok(run)
    }

    async fn rename(&self, run: &RunKey, to: &RunName) -> Result<(), StoreError> {
        self.records.rename(run, to).await?;
        let named = RunKey {
            kind: run.kind,
            name: to.clone(),
        };
        move_files(&self.folder(run), &self.folder(&named))
    }

    async fn labels(&self, run: &RunKey) -> Result<RunLabels, StoreError> {
        self.records.labels(run).await
    }

    async fn tag(
        &self,
        run: &RunKey,
        add: &[RunTag],
        remove: &[RunTag],
    ) -> Result<RunLabels, StoreError> {
        self.records.tag(run, add, remove).await
    }

    async fn size(&self, place: &RunPlace) -> Result<RunSize, StoreError> {
        let mut size = self.records.size(place).await?;
        let folder = match place {
            RunPlace::Listed(run) => self.folder(run),
            RunPlace::Archived(id) => self.archived_folder(id),
        };
        for entry in folder.read_dir_utf8().into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let part = if is_folder {
                entry.file_name()
            } else {
                "other"
            };
            let bytes = bytes_below(entry.path());
            *size.parts.entry(part.to_owned()).or_default() += bytes;
            size.bytes += bytes;
        }
        Ok(size)
    }

    async fn remove(&self, place: &RunPlace) -> Result<(), StoreError> {
        self.records.remove(place).await?;
        let folder = match place {
            RunPlace::Listed(run) => self.folder(run),
            RunPlace::Archived(id) => self.archived_folder(id),
        };
        if SqliteStore::is_in(&folder) {
            return Ok(());
        }
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::io(&folder, &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    async fn verify(
        &self,
        run: &RunKey,
        progress: ProgressVisitor,
    ) -> Result<VerifyReport, StoreError> {
        self.records.verify(run, progress).await
    }

    async fn salvage(&self, run: &RunKey, into: &RunName) -> Result<SalvageReport, StoreError> {
        self.records.salvage(run, into).await
    }
}
