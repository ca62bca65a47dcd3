//! Runs that are out of the lists, and back.

use osmosis_core::RunName;
use osmosis_store::{ArchivedRun, RunKey, RunKind};

use super::{KINDS, reference_of, told};
use crate::runs::stores::catalogue;
use crate::runs::{FoundRun, RunReference};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// Takes a run out of the lists; nothing is deleted.
pub async fn archive(workspace: &Workspace, run: &str) -> Result<ArchivedRun, RunError> {
    let key = FoundRun::of_any_kind(workspace, run).await?.key();
    let archived = catalogue(workspace)?.archive(&key).await;
    archived.map_err(|error| told(error, &key))
}

/// The archived runs of these kinds, newest first within each.
pub async fn archived_runs(
    workspace: &Workspace,
    kinds: &[RunKind],
) -> Result<Vec<ArchivedRun>, RunError> {
    let catalogue = catalogue(workspace)?;
    let mut found = vec![];
    for kind in kinds {
        found.extend(catalogue.archived(*kind).await?);
    }
    Ok(found)
}

/// The archived run that `text` names: by its id, or the newest of its name.
pub(super) async fn find_archived(
    workspace: &Workspace,
    text: &str,
) -> Result<ArchivedRun, RunError> {
    let RunReference { kind, name } = RunReference::parse(text)?;
    let all = archived_runs(workspace, &KINDS).await?;
    let of_kind = |run: &&ArchivedRun| kind.is_none_or(|kind| kind == run.key.kind);
    if let Some(run) = all.iter().filter(of_kind).find(|run| run.id == name) {
        return Ok(run.clone());
    }
    let named: Vec<&ArchivedRun> = all
        .iter()
        .filter(of_kind)
        .filter(|run| run.key.name.as_str() == name)
        .collect();
    let Some(first) = named.first() else {
        let ids: Vec<&str> = all.iter().map(|run| run.id.as_str()).take(5).collect();
        let hint = if ids.is_empty() {
            "nothing is archived; `osmosis run archive RUN` archives a run".to_owned()
        } else {
            format!("archived are: {}", ids.join(", "))
        };
        return Err(RunError::failed(
            RunErrorKind::RunNotFound,
            format!("no archived run `{text}`"),
        )
        .hint(hint));
    };
    if named.iter().any(|run| run.key.kind != first.key.kind) {
        let ids: Vec<String> = named.iter().map(|run| reference_of(&run.key)).collect();
        return Err(RunError::usage(
            RunErrorKind::RunAmbiguous,
            format!("`{text}` names several archived runs: {}", ids.join(", ")),
        )
        .hint("write one of these instead"));
    }
    Ok((*first).clone())
}

/// Puts an archived run back into the lists, under its own name or another.
pub async fn restore(
    workspace: &Workspace,
    run: &str,
    name: Option<&RunName>,
) -> Result<RunKey, RunError> {
    let archived = find_archived(workspace, run).await?;
    let restored = catalogue(workspace)?.restore(&archived.id, name).await;
    restored.map_err(|error| match told(error, &archived.key) {
        error if error.kind() == RunErrorKind::FileExists => {
            error.hint("give it another name with `--as NAME`")
        }
        error => error,
    })
}
