//! Runs by the names they had: what was written down before a rename stays true.

use osmosis_core::RunName;
use osmosis_store::RunKind;

use crate::RunError;
use crate::runs::stores::catalogue;
use crate::workspace::Workspace;

/// The runs of a kind that were called so once, newest first.
pub async fn runs_once_called(
    workspace: &Workspace,
    kind: RunKind,
    name: &str,
) -> Result<Vec<RunName>, RunError> {
    let catalogue = catalogue(workspace)?;
    let mut found = vec![];
    for entry in catalogue.list(kind).await? {
        let run = entry.key;
        // What can't be read names nothing.
        let labels = catalogue.labels(&run).await.unwrap_or_default();
        let mut former = labels.former_names.iter();
        if run.name.as_str() != name && former.any(|former| former.as_str() == name) {
            found.push(run.name);
        }
    }
    Ok(found)
}

/// The run that was called so, when there is just one and no run has the name now.
pub async fn renamed_from(
    workspace: &Workspace,
    kind: RunKind,
    name: &str,
) -> Result<Option<RunName>, RunError> {
    let mut found = runs_once_called(workspace, kind, name).await?;
    Ok(found.pop().filter(|_| found.is_empty()))
}
