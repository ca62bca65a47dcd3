//! Files by digest: what nodes get of a project, and what snapshots are made of.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::source_digest::bytes_digest;

/// A file of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestedFile {
    pub sha256: String,
    #[serde(default)]
    pub executable: bool,
}

impl DigestedFile {
    /// Whether the file there is this one.
    pub(crate) fn is_at(&self, path: &Utf8Path) -> bool {
        let is_file = fs::symlink_metadata(path).is_ok_and(|metadata| {
            metadata.is_file() && (metadata.permissions().mode() & 0o100 != 0) == self.executable
        });
        is_file && fs::read(path).is_ok_and(|content| bytes_digest(&content) == self.sha256)
    }
}

/// Makes a folder and those that it is in, with a mode that no umask changes.
pub(crate) fn make_folder(folder: &Utf8Path, mode: u32) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        make_folder(parent, mode)?;
    }
    match DirBuilder::new().mode(mode).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => fs::set_permissions(folder, fs::Permissions::from_mode(mode)),
    }
}

/// Whole or not at all: another process of this machine may read it, or write the same. What a crash of the machine
/// leaves is found by its digest.
pub(crate) fn put_in_place(
    path: &Utf8Path,
    content: &[u8],
    mode: u32,
    folder_mode: u32,
) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        make_folder(folder, folder_mode)?;
    }
    let number: u64 = rand::random();
    let temporary = Utf8PathBuf::from(format!("{path}.{number:016x}.tmp"));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)?;
    let written = file
        .write_all(content)
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(mode)))
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
    fn a_file_is_put_in_place_with_its_mode_and_known_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path())
            .unwrap()
            .join("a/b/run.sh");
        let packed = DigestedFile {
            sha256: bytes_digest(b"echo"),
            executable: true,
        };
        assert!(!packed.is_at(&path));
        put_in_place(&path, b"echo", 0o500, 0o700).unwrap();
        assert!(packed.is_at(&path));
        put_in_place(&path, b"changed", 0o500, 0o700).unwrap();
        assert!(!packed.is_at(&path));
        put_in_place(&path, b"echo", 0o600, 0o700).unwrap();
        assert!(!packed.is_at(&path), "the mode counts");
        let left = path.parent().unwrap().read_dir_utf8().unwrap().count();
        assert_eq!(left, 1, "nothing is left beside it");
    }
}
