//! A run into another store: from the workspace into a database, and back.

use camino::Utf8Path;
use osmosis_store::{CopiedCounts, RunPlace, StoreError, StoreUrl, copy_run};

use super::salvage::copy_rest;
use super::{FoundRun, stores};
use crate::run_folder::RunFolder;
use crate::workspace::{Workspace, absolute};
use crate::{RunError, RunErrorKind, private_files};

/// The store's own files; the others of the run go with it.
const NOT_COPIED: [&str; 6] = [
    "run.db",
    "run.db-wal",
    "run.db-shm",
    "run.lock",
    "segments",
    "labels.json",
];

/// A run that is in another store too.
#[derive(Debug)]
pub struct CopiedRun {
    pub from: FoundRun,
    /// Where the copy is.
    pub to: StoreUrl,
    pub counts: CopiedCounts,
}

/// Copies a run to `to`, a URL or the folder of a workspace. The run itself is only read; a copy that fails leaves nothing.
pub async fn copy(workspace: &Workspace, run: &str, to: &str) -> Result<CopiedRun, RunError> {
    let from = FoundRun::of_any_kind(workspace, run).await?;
    let key = from.key();
    if let Some(holder) = from.folder.records.holder().await? {
        return Err(RunError::failed(
            RunErrorKind::RunHeld,
            format!("run `{from}` is held by {holder}"),
        )
        .hint("copy it when it is over, or stop it first"));
    }
    let target = target(workspace, to)?;
    // Without the files: they are in this workspace, or are copied below.
    let catalogue = match &target.store {
        Some(url) => stores::catalogue_at(url.clone())?,
        None => stores::catalogue(&target)?,
    };
    let source = from.folder.records.open_read_only().await?;
    // A copy must not look more trustworthy than what it is made of.
    let created = if source.authenticity().is_authenticated() {
        catalogue.create(&key).await
    } else {
        catalogue.create_unauthenticated(&key).await
    };
    let store = created.map_err(|error| match error {
        StoreError::AlreadyExists(name) => RunError::failed(
            RunErrorKind::FileExists,
            format!("there is a run `{name}` at `{}` already", catalogue.url()),
        )
        .hint("rename one of them with `osmosis run rename`"),
        error => error.into(),
    })?;
    let copied = copy_run(&*source, &*store).await;
    let closed = store.close().await;
    source.close().await?;
    let counts = match copied.and_then(|counts| closed.map(|()| counts)) {
        Ok(counts) => counts,
        Err(error) => {
            catalogue.remove(&RunPlace::Listed(key)).await?;
            return Err(error.into());
        }
    };
    let labels = from.folder.labels().await;
    let tags: Vec<_> = labels.tags.into_iter().collect();
    catalogue.tag(&key, &tags, &[]).await?;
    let folder = RunFolder::of(&target, from.kind, &from.name);
    if folder.path != from.folder.path {
        copy_rest(&from.folder.path, &folder.path, &NOT_COPIED)?;
        private_files::opened(&folder.path);
    }
    Ok(CopiedRun {
        to: catalogue.url_of(&key)?,
        from,
        counts,
    })
}

fn target(workspace: &Workspace, to: &str) -> Result<Workspace, RunError> {
    if to.contains("://") {
        let url = StoreUrl::parse(to)
            .map_err(|error| RunError::usage(RunErrorKind::Usage, error.to_string()))?;
        if url.is_postgres() {
            return Ok(Workspace {
                root: workspace.root.clone(),
                store: Some(url),
            });
        }
        return in_folder(&url.folder()?);
    }
    in_folder(Utf8Path::new(to))
}

fn in_folder(folder: &Utf8Path) -> Result<Workspace, RunError> {
    let root = absolute(folder)?;
    if !root.is_dir() {
        return Err(
            RunError::usage(RunErrorKind::Usage, format!("`{root}` is no folder"))
                .hint("`--to` takes the folder of a workspace or `postgres://HOST/DATABASE`"),
        );
    }
    Ok(Workspace { root, store: None })
}
