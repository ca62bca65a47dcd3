//! Runs by the names they had: what was written down before a rename stays true.

use osmosis_core::RunName;
use osmosis_store::RunKind;
use osmosis_store_sqlite::SqliteCatalogue;

use crate::run_folder::RunFolder;
use crate::workspace::Workspace;

/// The runs of a kind that were called so once, newest first.
pub fn runs_once_called(workspace: &Workspace, kind: RunKind, name: &str) -> Vec<RunName> {
    RunFolder::names(workspace, kind)
        .into_iter()
        .filter_map(|now| RunName::new(now).ok())
        .filter(|now| {
            let folder = RunFolder::of(workspace, kind, now).path;
            let labels = SqliteCatalogue::labels_in(&folder).unwrap_or_default();
            let mut former = labels.former_names.iter();
            now.as_str() != name && former.any(|former| former.as_str() == name)
        })
        .collect()
}

/// The run that was called so, when there is just one and no run has the name now.
pub fn renamed_from(workspace: &Workspace, kind: RunKind, name: &str) -> Option<RunName> {
    match runs_once_called(workspace, kind, name).as_slice() {
        [one] => Some(one.clone()),
        _ => None,
    }
}
