//! Runs by the names they had: what was written down before a rename stays true.

use osmosis_core::RunName;
use osmosis_store::{RunKey, RunKind};

use super::catalogue;
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;

/// The runs of a kind that were called so once, newest first.
pub fn runs_once_called(workspace: &Workspace, kind: RunKind, name: &str) -> Vec<RunName> {
    let Ok(catalogue) = catalogue(workspace) else {
        return vec![];
    };
    RunFolder::names(workspace, kind)
        .into_iter()
        .filter_map(|now| RunName::new(now).ok())
        .filter(|now| {
            let run = RunKey {
                kind,
                name: now.clone(),
            };
            now.as_str() != name
                && catalogue.labels_blocking(&run).is_ok_and(|labels| {
                    labels
                        .former_names
                        .iter()
                        .any(|former| former.as_str() == name)
                })
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
