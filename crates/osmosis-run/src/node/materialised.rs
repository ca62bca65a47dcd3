//! A run's package on a node: a workspace in the user's cache, by the digest of what is in it.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use osmosis_store::SharedRun;
use osmosis_worker::environment::Surroundings;

use super::package::NodePackage;
use crate::digested_files::{make_folder, put_in_place};
use crate::runs::Pinned;
use crate::source_digest::text_digest;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind, io_error};

/// The folder in the cache.
const NODES: &str = "nodes";
const FOLDER_MODE: u32 = 0o700;

/// Where everything of nodes is kept on this machine.
pub fn nodes_folder() -> Result<Utf8PathBuf, RunError> {
    let cache = Surroundings::from_environment().cache.ok_or_else(|| {
        RunError::failed(RunErrorKind::Io, "there is no cache folder for this user")
            .hint("set OSMOSIS_CACHE_DIR, XDG_CACHE_HOME or HOME")
    })?;
    Ok(cache.join(NODES))
}

/// Makes the workspace of a package, or finds the one that was made. Every file is compared with its digest, and with
/// what the run is pinned to.
pub async fn materialise(
    shared: &dyn SharedRun,
    package: &NodePackage,
    pinned: &Pinned,
    nodes: &Utf8Path,
) -> Result<Workspace, RunError> {
    check_pinned(package, pinned)?;
    for path in package.files.keys() {
        check_path(path)?;
    }
    let files = serde_json::to_string(&package.files)
        .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
    let name = &text_digest(&files)[..16];
    let root = nodes.join("workspaces").join(name);
    let rollouts = root.join("rollouts");
    make_folder(&rollouts, FOLDER_MODE).map_err(|error| io_error(&rollouts, &error))?;
    for (path, file) in &package.files {
        let target = root.join(path);
        if file.is_at(&target) {
            continue;
        }
        let content = NodePackage::content(shared, &file.sha256).await?;
        let mode = if file.executable { 0o700 } else { 0o600 };
        put_in_place(&target, &content, mode, FOLDER_MODE)
            .map_err(|error| io_error(&target, &error))?;
    }
    Ok(Workspace { root, store: None })
}

/// The project's files are those that the run is pinned to.
fn check_pinned(package: &NodePackage, pinned: &Pinned) -> Result<(), RunError> {
    let (Some(project), Some(counted)) = (pinned.project(), &pinned.source_files) else {
        return Ok(());
    };
    for (name, digest) in counted {
        let path = format!("rollouts/{project}/{name}");
        let packed = package.files.get(&path);
        if !packed.is_some_and(|packed| packed.sha256.starts_with(digest)) {
            return Err(RunError::failed(
                RunErrorKind::RunDamaged,
                format!("`{path}` of the run's package is not the file that the run is pinned to"),
            )
            .hint("resume the run at its controller, which packs its files again"));
        }
    }
    Ok(())
}

/// A path below the workspace, and nowhere else.
fn check_path(path: &str) -> Result<(), RunError> {
    let mut parts = Utf8Path::new(path).components();
    let is_below = !path.is_empty() && parts.all(|part| matches!(part, Utf8Component::Normal(_)));
    if is_below {
        return Ok(());
    }
    Err(RunError::failed(
        RunErrorKind::RunDamaged,
        format!("the run's package has a file at `{path}`, which is in no workspace"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_package_stay_in_the_workspace() {
        for path in ["rollouts/r/main.py", "a"] {
            assert!(check_path(path).is_ok(), "{path}");
        }
        for path in ["", "/etc/passwd", "../x", "rollouts/../../x", "./x"] {
            assert!(check_path(path).is_err(), "{path}");
        }
    }
}
