//! A run's package on a node: a workspace in the user's cache, by the digest of what is in it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use osmosis_store::SharedRun;
use osmosis_worker::environment::Surroundings;

use super::package::{NodePackage, PackedFile};
use crate::runs::Pinned;
use crate::source_digest::{bytes_digest, text_digest};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind, io_error};

/// The folder in the cache.
const NODES: &str = "nodes";

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
    make_folder(&root.join("rollouts"))?;
    for (path, file) in &package.files {
        let target = root.join(path);
        if is_as_packed(&target, file) {
            continue;
        }
        let content = NodePackage::content(shared, &file.sha256).await?;
        put_in_place(&target, &content, file.executable)
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

fn is_as_packed(path: &Utf8Path, file: &PackedFile) -> bool {
    let is_file = fs::symlink_metadata(path).is_ok_and(|metadata| {
        metadata.is_file() && (metadata.permissions().mode() & 0o100 != 0) == file.executable
    });
    is_file && fs::read(path).is_ok_and(|content| bytes_digest(&content) == file.sha256)
}

fn make_folder(folder: &Utf8Path) -> Result<(), RunError> {
    private_folder(folder).map_err(|error| io_error(folder, &error))
}

fn private_folder(folder: &Utf8Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Whole or not at all: another node of this machine may read it, or write the same.
fn put_in_place(path: &Utf8Path, content: &[u8], executable: bool) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        private_folder(folder)?;
    }
    let number: u64 = rand::random();
    let temporary = Utf8PathBuf::from(format!("{path}.{number:016x}.tmp"));
    let mode = if executable { 0o700 } else { 0o600 };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)?;
    let written = file
        .write_all(content)
        .and_then(|()| file.sync_data())
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
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

    #[test]
    fn a_file_is_put_in_place_with_its_mode_and_known_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path())
            .unwrap()
            .join("a/b/run.sh");
        let packed = PackedFile {
            sha256: bytes_digest(b"echo"),
            executable: true,
        };
        assert!(!is_as_packed(&path, &packed));
        put_in_place(&path, b"echo", true).unwrap();
        assert!(is_as_packed(&path, &packed));
        put_in_place(&path, b"changed", true).unwrap();
        assert!(!is_as_packed(&path, &packed));
        put_in_place(&path, b"echo", false).unwrap();
        assert!(!is_as_packed(&path, &packed), "the mode counts");
        let left = path.parent().unwrap().read_dir_utf8().unwrap().count();
        assert_eq!(left, 1, "nothing is left beside it");
    }
}
