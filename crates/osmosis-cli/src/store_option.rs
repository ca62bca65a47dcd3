//! `--store` and `OSMOSIS_STORE`: where the records of runs are.

use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::StoreUrl;

use crate::arguments::{Arguments, Command};
use crate::workspace::WorkspaceChoice;

/// What `--store` says when it is not given.
pub(crate) const VARIABLE: &str = "OSMOSIS_STORE";

/// The workspace and the store that were chosen. `gateway --store PATH` names a folder, as it always did.
pub(crate) fn chosen(arguments: &mut Arguments) -> Result<WorkspaceChoice, RunError> {
    let folder = arguments.workspace.clone();
    let given = arguments.store.take();
    if let Command::Gateway(gateway) = &mut arguments.command
        && let Some(text) = &given
        && !text.contains("://")
    {
        gateway.folder = Some(text.into());
        return WorkspaceChoice::new(folder, None);
    }
    // Empty is as good as unset: that is how people switch a variable off.
    let variable = || std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let Some(text) = given.or_else(variable) else {
        return WorkspaceChoice::new(folder, None);
    };
    let url = StoreUrl::parse(&text)
        .map_err(|error| RunError::usage(RunErrorKind::Usage, error.to_string()))?;
    if let Command::Node(node) = &mut arguments.command {
        node.store = Some(url);
        return WorkspaceChoice::new(folder, None);
    }
    WorkspaceChoice::new(folder, Some(url))
}
