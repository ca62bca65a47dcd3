//! Commands that reports suggest to their reader.

use std::fmt::Write as _;

use crate::workspace::{Workspace, current_dir};

/// A command that can be pasted into the same terminal.
pub fn suggested_command(arguments: &[&str], workspace: &Workspace) -> String {
    // Under `cargo run` there is usually no `osmosis` on the PATH.
    let by_cargo = std::env::var("CARGO_PKG_NAME").is_ok_and(|name| name == "osmosis-cli");
    let program = if by_cargo {
        "cargo run --release --"
    } else {
        "osmosis"
    };
    let mut command = format!("{program} {}", arguments.join(" "));
    let here = current_dir().unwrap_or_default();
    if !here.starts_with(&workspace.root) {
        let shown = workspace
            .root
            .strip_prefix(&here)
            .unwrap_or(&workspace.root);
        let _ = write!(command, " --workspace {shown}");
    }
    // What the variable says need not be said again; a password is not shown.
    if let Some(store) = &workspace.store
        && std::env::var("OSMOSIS_STORE").as_deref() != Ok(store.with_secrets())
    {
        let _ = write!(command, " --store '{store}'");
    }
    command
}
