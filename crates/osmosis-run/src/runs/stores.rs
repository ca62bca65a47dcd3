//! Where the records of runs are: the one module that names a backend.
//!
//! A run is in two places. Its *records* (rows, rollouts, samples, calls, steps) are in a store, which is opened through a
//! [`Catalogue`] by URL. Its *files* (log, metrics, artifacts, checkpoints) are in its folder in the workspace, a
//! [`RunFolder`](crate::run_folder::RunFolder), whatever the store is. The backend of `file:` URLs keeps its own files in that
//! folder too, so that both are moved and deleted as one.
//!
//! Everything that opens, makes, checks or moves a run passes here. Another backend is another arm of [`catalogue_at`].

mod with_files;

use std::sync::Arc;

use camino::Utf8PathBuf;
use osmosis_store::{
    ArchivedRun, Catalogue, Holder, KeyFolder, RunKey, RunLabels, Store, StoreError, StoreUrl,
};
use osmosis_store_postgres::{PostgresCatalogue, PostgresOptions};
use osmosis_store_sqlite::{SqliteCatalogue, SqliteOptions, SqliteStore};

use self::with_files::CatalogueWithFiles;
use crate::execution;
use crate::workspace::Workspace;

/// The runs of a workspace.
pub fn catalogue(workspace: &Workspace) -> Result<Arc<dyn Catalogue>, StoreError> {
    match &workspace.store {
        None => catalogue_at(StoreUrl::of_folder(&workspace.root)?),
        Some(url) => {
            let records = catalogue_at(url.clone())?;
            Ok(Arc::new(CatalogueWithFiles::new(
                records,
                workspace.clone(),
            )))
        }
    }
}

/// The runs at a URL.
pub fn catalogue_at(url: StoreUrl) -> Result<Arc<dyn Catalogue>, StoreError> {
    match url.scheme().to_ascii_lowercase().as_str() {
        "file" => {
            let catalogue = SqliteCatalogue::at(url, sqlite_options())?;
            Ok(Arc::new(catalogue))
        }
        "postgres" | "postgresql" => {
            let catalogue = PostgresCatalogue::at(&url, postgres_options())?;
            Ok(Arc::new(catalogue))
        }
        scheme => Err(StoreError::InvalidUrl {
            message: format!(
                "there is no store for `{scheme}:`; write `postgres://HOST/DATABASE` or `file:///folder`"
            ),
            url: url.to_string(),
        }),
    }
}

/// Records are authenticated with a key of this user.
fn sqlite_options() -> SqliteOptions {
    SqliteOptions {
        keys: KeyFolder::of_user(),
        ..SqliteOptions::default()
    }
}

/// Whoever is silent for half a lease is taken for dead, and says that it is not six times as often.
fn postgres_options() -> PostgresOptions {
    let lease = execution::lease();
    PostgresOptions {
        presence_every: lease / 12,
        silent_after: lease / 2,
        ..PostgresOptions::default()
    }
}

/// Where the records of one run are.
#[derive(Debug, Clone)]
pub(crate) enum RunRecords {
    /// In the workspace's catalogue.
    Listed { workspace: Workspace, run: RunKey },
    /// In the workspace's archive, where they are only read.
    Archived {
        workspace: Workspace,
        run: ArchivedRun,
    },
    /// In a folder that no catalogue lists: a temporary one, or one that somebody named.
    Unlisted(Utf8PathBuf),
}

impl RunRecords {
    /// Whether there is such a run.
    pub(crate) async fn exist(&self) -> Result<bool, StoreError> {
        match self {
            Self::Listed { workspace, run } => catalogue(workspace)?.contains(run).await,
            Self::Archived { .. } => Ok(true),
            Self::Unlisted(folder) => Ok(SqliteStore::is_in(folder)),
        }
    }

    /// Opens the run for writing; makes it if there is none.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        match self {
            Self::Listed { workspace, run } => {
                let catalogue = catalogue(workspace)?;
                if catalogue.contains(run).await? {
                    return catalogue.open(run).await;
                }
                match catalogue.create(run).await {
                    // Another process was faster.
                    Err(StoreError::AlreadyExists(_)) => catalogue.open(run).await,
                    created => created,
                }
            }
            Self::Archived { run, .. } => Err(StoreError::refused(format!(
                "run `{}` is archived, and nothing is written to it; restore it first",
                run.id
            ))),
            Self::Unlisted(folder) => {
                let store = SqliteStore::open(folder, sqlite_options())?;
                Ok(Arc::new(store))
            }
        }
    }

    /// Opens the run for reading, whoever writes to it.
    pub(crate) async fn open_read_only(&self) -> Result<Arc<dyn Store>, StoreError> {
        match self {
            Self::Listed { workspace, run } => catalogue(workspace)?.open_read_only(run).await,
            Self::Archived { workspace, run } => catalogue(workspace)?.open_archived(&run.id).await,
            Self::Unlisted(folder) => Ok(Arc::new(SqliteStore::open_read_only(
                folder,
                &KeyFolder::of_user(),
            )?)),
        }
    }

    /// The living process that writes to the run, if there is one.
    pub(crate) async fn holder(&self) -> Result<Option<Holder>, StoreError> {
        match self {
            Self::Listed { workspace, run } => catalogue(workspace)?.holder(run).await,
            Self::Archived { .. } => Ok(None),
            Self::Unlisted(folder) => Ok(SqliteStore::holder(folder)),
        }
    }

    /// What people noted on it; nothing when that can't be read, which is no reason not to show the run.
    pub(crate) async fn labels(&self) -> RunLabels {
        let labels = match self {
            Self::Listed { workspace, run } => match catalogue(workspace) {
                Ok(catalogue) => catalogue.labels(run).await,
                Err(error) => Err(error),
            },
            Self::Archived { run, .. } => return run.labels.clone(),
            Self::Unlisted(_) => return RunLabels::default(),
        };
        labels.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_backend_is_refused_with_its_scheme() {
        let url = StoreUrl::parse("gopher://host/runs").unwrap();
        let error = catalogue_at(url).unwrap_err();
        insta::assert_snapshot!(
            error,
            @"`gopher://host/runs` is no place for runs: there is no store for `gopher:`; write `postgres://HOST/DATABASE` or `file:///folder`"
        );
    }
}
