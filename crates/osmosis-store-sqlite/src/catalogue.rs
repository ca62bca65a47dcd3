//! The runs of a workspace: `.osmosis/{evals,training,serve}/NAME/`, and `.osmosis/archive/` for those put away.

mod kept;
mod labels;

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{RunName, RunTag};
use osmosis_store::{
    ArchivedRun, Catalogue, Holder, KeyFolder, ProgressVisitor, Records as _, RunEntry, RunKey,
    RunKind, RunLabels, RunPlace, RunSize, SalvageReport, Store, StoreError, StoreUrl,
    VerifyReport,
};

pub(crate) use kept::name_in_workspace;

use crate::store::{DATABASE_FILE, SqliteOptions, SqliteStore};

/// Our folder in a workspace.
const STATE_FOLDER: &str = ".osmosis";
/// In [`STATE_FOLDER`]: runs that made way for others of their names.
const ARCHIVE: &str = "archive";

/// The runs of a workspace, each in a folder of its own.
#[derive(Debug, Clone)]
pub struct SqliteCatalogue {
    url: StoreUrl,
    root: Utf8PathBuf,
    options: SqliteOptions,
}

impl SqliteCatalogue {
    /// The runs in the workspace at `url`, a `file:` URL.
    pub fn at(url: StoreUrl, options: SqliteOptions) -> Result<Self, StoreError> {
        Ok(Self {
            root: url.folder()?,
            url,
            options,
        })
    }

    /// The folder of a run, whether it is there or not: other files of the run are kept beside the store's.
    pub fn folder_of(&self, run: &RunKey) -> Utf8PathBuf {
        self.folder(run.kind).join(run.name.as_str())
    }

    fn folder(&self, kind: RunKind) -> Utf8PathBuf {
        self.root.join(STATE_FOLDER).join(kind_folder(kind))
    }

    /// The folder of a run that must be there.
    fn existing(&self, run: &RunKey) -> Result<Utf8PathBuf, StoreError> {
        let folder = self.folder_of(run);
        if holds_run(&folder) {
            return Ok(folder);
        }
        Err(StoreError::NotFound {
            name: run.name.clone(),
            at: self.folder(run.kind).into_string(),
        })
    }

    fn open_blocking(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        let folder = self.existing(run)?;
        Ok(Arc::new(SqliteStore::open(&folder, self.options.clone())?))
    }

    fn create_blocking(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        let folder = self.folder_of(run);
        if holds_run(&folder) {
            return Err(StoreError::AlreadyExists(run.name.clone()));
        }
        Ok(Arc::new(SqliteStore::open(&folder, self.options.clone())?))
    }

    fn list_blocking(&self, kind: RunKind) -> Result<Vec<RunEntry>, StoreError> {
        let folder = self.folder(kind);
        let mut found = Vec::new();
        let entries = match folder.read_dir_utf8() {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(StoreError::io(&folder, &error)),
        };
        for entry in entries.filter_map(Result::ok) {
            // Other folders, and what is gone meanwhile.
            let (Ok(name), Some(made)) = (RunName::new(entry.file_name()), made_at(entry.path()))
            else {
                continue;
            };
            found.push((made, name));
        }
        newest_first(&mut found);
        found
            .into_iter()
            .map(|(made_at, name)| {
                let key = RunKey { kind, name };
                let url = self.url_of(&key)?;
                Ok(RunEntry { key, url, made_at })
            })
            .collect()
    }

    fn salvage_blocking(&self, run: &RunKey, into: &RunName) -> Result<SalvageReport, StoreError> {
        let from = self.existing(run)?;
        let to = self.folder_of(&RunKey {
            kind: run.kind,
            name: into.clone(),
        });
        if to.exists() {
            return Err(StoreError::AlreadyExists(into.clone()));
        }
        SqliteStore::salvage(&from, &to, into, &self.options.keys)
    }

    /// What an archived run is: as it was noted, or as its own record says.
    async fn kind_of_archived(&self, id: &str) -> Option<RunKind> {
        if let Some(kind) = self.archived_kind(id) {
            return Some(kind);
        }
        let store =
            SqliteStore::open_read_only(&self.archive_folder().join(id), &self.options.keys)
                .ok()?;
        Some(store.run().await.ok()??.kind)
    }

    /// Does what blocks where that may be.
    async fn blocking<T: Send + 'static>(
        &self,
        run: &RunKey,
        work: impl FnOnce(&Self, &RunKey) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (this, run) = (self.clone(), run.clone());
        finished(tokio::task::spawn_blocking(move || work(&this, &run))).await
    }
}

async fn finished<T>(
    work: tokio::task::JoinHandle<Result<T, StoreError>>,
) -> Result<T, StoreError> {
    work.await
        .map_err(|error| StoreError::refused(format!("it did not finish: {error}")))?
}

/// In [`STATE_FOLDER`]: the runs of a kind.
fn kind_folder(kind: RunKind) -> &'static str {
    match kind {
        RunKind::Evaluation => "evals",
        RunKind::Training => "training",
        RunKind::Serving => "serve",
    }
}

fn holds_run(folder: &Utf8Path) -> bool {
    SqliteStore::is_in(folder)
}

fn made_at(folder: &Utf8Path) -> Option<SystemTime> {
    let made = folder.join(DATABASE_FILE).metadata().ok()?;
    made.created().or_else(|_| made.modified()).ok()
}

fn newest_first(found: &mut [(SystemTime, RunName)]) {
    found.sort_by(|(made_a, name_a), (made_b, name_b)| {
        (made_b, name_b.as_str()).cmp(&(made_a, name_a.as_str()))
    });
}

/// `NAME.TIME.1`, or the next number that is free.
fn free_place(archive: &Utf8Path, name: &RunName, time: &str) -> Result<Utf8PathBuf, StoreError> {
    (1_u32..10_000)
        .map(|number| archive.join(format!("{name}.{time}.{number}")))
        .find(|target| !target.exists())
        .ok_or_else(|| StoreError::Io {
            path: archive.to_owned(),
            message: format!("no free name for `{name}`"),
            full: false,
        })
}

#[async_trait]
impl Catalogue for SqliteCatalogue {
    fn url(&self) -> &StoreUrl {
        &self.url
    }

    fn url_of(&self, run: &RunKey) -> Result<StoreUrl, StoreError> {
        StoreUrl::of_folder(&self.folder_of(run))
    }

    async fn list(&self, kind: RunKind) -> Result<Vec<RunEntry>, StoreError> {
        let this = self.clone();
        finished(tokio::task::spawn_blocking(move || {
            this.list_blocking(kind)
        }))
        .await
    }

    async fn contains(&self, run: &RunKey) -> Result<bool, StoreError> {
        Ok(holds_run(&self.folder_of(run)))
    }

    async fn create(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        self.blocking(run, Self::create_blocking).await
    }

    async fn create_unauthenticated(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        let mut this = self.clone();
        this.options.keys = KeyFolder::none();
        this.create(run).await
    }

    async fn open(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        self.blocking(run, Self::open_blocking).await
    }

    async fn open_read_only(&self, run: &RunKey) -> Result<Arc<dyn Store>, StoreError> {
        self.blocking(run, |this, run| {
            let store = SqliteStore::open_read_only(&this.existing(run)?, &this.options.keys)?;
            Ok(Arc::new(store) as Arc<dyn Store>)
        })
        .await
    }

    async fn holder(&self, run: &RunKey) -> Result<Option<Holder>, StoreError> {
        self.blocking(run, |this, run| {
            Ok(SqliteStore::holder(&this.existing(run)?))
        })
        .await
    }

    async fn archive(&self, run: &RunKey) -> Result<ArchivedRun, StoreError> {
        self.blocking(run, Self::archive_blocking).await
    }

    async fn archived(&self, kind: RunKind) -> Result<Vec<ArchivedRun>, StoreError> {
        let this = self.clone();
        let looking = tokio::task::spawn_blocking(move || this.archived_folders());
        let mut found = vec![];
        for archived in finished(looking).await? {
            if self.kind_of_archived(&archived.id).await == Some(kind) {
                found.push(self.archived_run(archived, kind)?);
            }
        }
        Ok(found)
    }

    async fn open_archived(&self, id: &str) -> Result<Arc<dyn Store>, StoreError> {
        let (_, folder) = self.existing_archived(id)?;
        let keys = self.options.keys.clone();
        let opening =
            tokio::task::spawn_blocking(move || SqliteStore::open_read_only(&folder, &keys));
        Ok(Arc::new(finished(opening).await?))
    }

    async fn restore(&self, id: &str, name: Option<&RunName>) -> Result<RunKey, StoreError> {
        let (_, folder) = self.existing_archived(id)?;
        let kind = self.kind_of_archived(id).await.ok_or_else(|| {
            StoreError::damaged(&folder, "nothing in it tells what kind of run it is")
        })?;
        let (this, id, name) = (self.clone(), id.to_owned(), name.cloned());
        finished(tokio::task::spawn_blocking(move || {
            this.restore_blocking(&id, kind, name.as_ref())
        }))
        .await
    }

    async fn rename(&self, run: &RunKey, to: &RunName) -> Result<(), StoreError> {
        let to = to.clone();
        self.blocking(run, move |this, run| this.rename_blocking(run, &to))
            .await
    }

    async fn labels(&self, run: &RunKey) -> Result<RunLabels, StoreError> {
        self.blocking(run, Self::labels_blocking).await
    }

    async fn tag(
        &self,
        run: &RunKey,
        add: &[RunTag],
        remove: &[RunTag],
    ) -> Result<RunLabels, StoreError> {
        let (add, remove) = (add.to_vec(), remove.to_vec());
        self.blocking(run, move |this, run| this.tag_blocking(run, &add, &remove))
            .await
    }

    async fn size(&self, place: &RunPlace) -> Result<RunSize, StoreError> {
        let (this, place) = (self.clone(), place.clone());
        finished(tokio::task::spawn_blocking(move || {
            this.size_blocking(&place)
        }))
        .await
    }

    async fn remove(&self, place: &RunPlace) -> Result<(), StoreError> {
        let (this, place) = (self.clone(), place.clone());
        finished(tokio::task::spawn_blocking(move || {
            this.remove_blocking(&place)
        }))
        .await
    }

    async fn verify(
        &self,
        run: &RunKey,
        progress: ProgressVisitor,
    ) -> Result<VerifyReport, StoreError> {
        self.blocking(run, move |this, run| {
            SqliteStore::verify(&this.existing(run)?, &this.options.keys, progress)
        })
        .await
    }

    async fn salvage(&self, run: &RunKey, into: &RunName) -> Result<SalvageReport, StoreError> {
        let into = into.clone();
        self.blocking(run, move |this, run| this.salvage_blocking(run, &into))
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn runs_are_listed_newest_first_and_by_name_when_they_are_of_the_same_age() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut found: Vec<_> = [(1, "b"), (2, "a"), (1, "c")]
            .map(|(seconds, name)| (at(seconds), RunName::new(name).unwrap()))
            .into();
        newest_first(&mut found);
        let names: Vec<_> = found.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["a", "c", "b"]);
    }

    #[test]
    fn an_archived_run_never_takes_the_place_of_another() {
        let keep = tempfile::tempdir().unwrap();
        let archive = Utf8Path::from_path(keep.path()).unwrap();
        let name = RunName::new("x").unwrap();
        for number in 1..=3 {
            let place = free_place(archive, &name, "20260101-000000").unwrap();
            assert_eq!(place, archive.join(format!("x.20260101-000000.{number}")));
            std::fs::create_dir(place).unwrap();
        }
    }
}
