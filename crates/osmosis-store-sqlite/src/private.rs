//! Files that nobody but their owner reads: folders of mode 0700, files of mode 0600.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};

use camino::Utf8Path;

/// What group and others may do.
const NOT_THE_OWNERS: u32 = 0o077;

/// Makes a folder, and those above it that are missing, for their owner alone. One that is there already is
/// taken from group and others, unless it holds something and nothing that `is_ours`: then it is not for us to say.
pub(crate) fn create_private_folder(
    path: &Utf8Path,
    is_ours: impl FnOnce(&Utf8Path) -> bool,
) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let is_empty = fs::read_dir(path)?.next().is_none();
    if is_empty || is_ours(path) {
        take_away(path)?;
    }
    Ok(())
}

/// The options of a file that is made for its owner alone.
pub(crate) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Makes a file for its owner alone unless it is there. Empty when it is new.
pub(crate) fn create_private_file(path: &Utf8Path) -> io::Result<()> {
    private_file()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    take_away(path)
}

/// Takes what group and others may do away from a file or folder, where that can be done.
fn take_away(path: &Utf8Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & NOT_THE_OWNERS != 0
        && let Err(error) = fs::set_permissions(path, Permissions::from_mode(mode & 0o7700))
    {
        // Somebody else's, or on a file system that can't: whether it can be used shows when it is.
        tracing::debug!(%path, %error, "its mode stays");
    }
    Ok(())
}

/// The same for an open file, where it can be done: a file of somebody else's stays as it is.
pub(crate) fn take_away_open(file: &File) {
    let Ok(metadata) = file.metadata() else {
        return;
    };
    let mode = metadata.permissions().mode();
    if mode & NOT_THE_OWNERS != 0 {
        let _ = file.set_permissions(Permissions::from_mode(mode & 0o7700));
    }
}

/// Takes what group and others may do away from a folder and everything below it; says how many files and
/// folders had to be changed. Links are neither followed nor changed. What can't be changed (somebody else's,
/// or gone meanwhile) is left, because the folder above it keeps others out.
pub fn tighten(root: &Utf8Path) -> io::Result<u64> {
    take_away_counting(root.as_std_path())?;
    let mut changed = 0;
    // A list and not recursion: folders may be nested deeper than the stack allows.
    let mut folders = vec![root.as_std_path().to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::debug!(folder = %folder.display(), %error, "not looked into");
                continue;
            }
        };
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            // Of the entry itself, also where it is a link.
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_symlink() {
                continue;
            }
            match take_away_counting(&path) {
                Ok(count) => changed += count,
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "its mode stays");
                }
            }
            if kind.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(changed)
}

fn take_away_counting(path: &std::path::Path) -> io::Result<u64> {
    let metadata = fs::symlink_metadata(path)?;
    let mode = metadata.permissions().mode();
    if metadata.file_type().is_symlink() || mode & NOT_THE_OWNERS == 0 {
        return Ok(0);
    }
    // Whoever could put a link here since we looked is the owner, or inside a folder of the owner's.
    fs::set_permissions(path, Permissions::from_mode(mode & 0o7700))?;
    Ok(1)
}

/// Whether group or others may do anything with it.
pub fn is_shared(path: &Utf8Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|metadata| metadata.permissions().mode() & NOT_THE_OWNERS != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8PathBuf;

    fn mode(path: &Utf8Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_tree_is_taken_from_group_and_others_and_links_lead_nowhere() {
        let keep = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::try_from(keep.path().to_owned()).unwrap();
        let outside = root.join("outside");
        fs::write(&outside, "mine").unwrap();
        fs::set_permissions(&outside, Permissions::from_mode(0o644)).unwrap();
        let tree = root.join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        for (path, mode) in [("a", 0o777), ("a/b", 0o755), ("", 0o755)] {
            fs::set_permissions(tree.join(path), Permissions::from_mode(mode)).unwrap();
        }
        for (name, mode) in [("a/b/script", 0o755), ("a/data", 0o666)] {
            fs::write(tree.join(name), "x").unwrap();
            fs::set_permissions(tree.join(name), Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink(&outside, tree.join("a/link")).unwrap();
        assert_eq!(tighten(&tree).unwrap(), 4);
        assert_eq!(tighten(&tree).unwrap(), 0);
        assert_eq!(mode(&tree), 0o700);
        assert_eq!(mode(&tree.join("a/b")), 0o700);
        assert_eq!(mode(&tree.join("a/b/script")), 0o700);
        assert_eq!(mode(&tree.join("a/data")), 0o600);
        assert_eq!(mode(&outside), 0o644);
    }
}
