//! Makes a new run of everything in a damaged one that is whole. The damaged run stays as it is.

use std::fs;

use camino::Utf8Path;
use osmosis_core::RunName;
use osmosis_store::SalvageReport;

use super::{FoundRun, stores};
use crate::private_files;
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind, io_error as io};

/// The store's own files, which are written anew, and what a resume writes anew from them.
const NOT_COPIED: [&str; 8] = [
    "run.db",
    "run.db-wal",
    "run.db-shm",
    "run.lock",
    "segments",
    "metrics.json",
    "labels.json",
    "index.jsonl",
];

/// A run that was made of another.
#[derive(Debug)]
pub struct Salvaged {
    pub from: FoundRun,
    pub name: RunName,
    pub folder: RunFolder,
    /// What is in it, and what was lost.
    pub report: SalvageReport,
}

/// Makes a run of this name, or of the damaged one's name and `-salvaged`.
pub async fn salvage(
    workspace: &Workspace,
    run: &str,
    name: Option<RunName>,
) -> Result<Salvaged, RunError> {
    let from = FoundRun::of_any_kind(workspace, run).await?;
    let name = match name {
        Some(name) => name,
        None => RunName::new(format!("{}-salvaged", from.name)).map_err(|error| {
            RunError::usage(
                RunErrorKind::Usage,
                format!("choose a name with --to: {error}"),
            )
        })?,
    };
    let folder = RunFolder::of(workspace, from.kind, &name);
    if folder.path.exists() {
        return Err(RunError::failed(
            RunErrorKind::FileExists,
            format!("`{}` is there already", folder.path),
        )
        .hint("choose another name with `--to NAME`"));
    }
    let report = stores::catalogue(workspace)?
        .salvage(&from.key(), &name)
        .await?;
    let copied = copy_rest(&from.folder.path, &folder.path, &NOT_COPIED);
    private_files::opened(&folder.path);
    copied?;
    Ok(Salvaged {
        from,
        name,
        folder,
        report,
    })
}

/// Artifacts, checkpoints, logs: everything beside the store's own files. Links are made anew and never followed.
pub(super) fn copy_rest(
    from: &Utf8Path,
    to: &Utf8Path,
    not_copied: &[&str],
) -> Result<(), RunError> {
    if !from.exists() {
        // Of a run that another machine made: its files are there.
        return Ok(());
    }
    let mut folders = vec![(from.as_std_path().to_owned(), to.as_std_path().to_owned())];
    let failed = |error: std::io::Error| io(to, &error);
    fs::create_dir_all(to).map_err(failed)?;
    let mut at_top = true;
    while let Some((from, to)) = folders.pop() {
        for entry in fs::read_dir(&from).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if at_top && not_copied.iter().any(|ours| name == *ours) {
                continue;
            }
            let (source, target) = (entry.path(), to.join(&name));
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                fs::create_dir_all(&target).map_err(failed)?;
                folders.push((source, target));
            } else if kind.is_symlink() {
                let leads_to = fs::read_link(&source).map_err(failed)?;
                std::os::unix::fs::symlink(leads_to, &target).map_err(failed)?;
            } else if kind.is_file() {
                fs::copy(&source, &target).map_err(failed)?;
            }
        }
        at_top = false;
    }
    Ok(())
}
