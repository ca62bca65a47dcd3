//! A file that user code left for a rollout. Nothing it may have put there is followed: no link, no way up.

use std::fs::File;
use std::io::Read as _;

use camino::Utf8Path;
use osmosis_run::{RunError, RunErrorKind};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

/// What is served of one file at most.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// Reads a file below `folder`, whose path has plain names alone.
pub(crate) fn read(folder: &Utf8Path, path: &str) -> Result<Vec<u8>, RunError> {
    let missing = || {
        RunError::failed(
            RunErrorKind::FileNotFound,
            format!("there is no file `{path}` among the artifacts"),
        )
    };
    let plain = |name: &str| !name.is_empty() && name != "." && name != "..";
    let names: Vec<&str> = path.split('/').collect();
    let Some((last, folders)) = names.split_last() else {
        return Err(missing());
    };
    if !names.iter().all(|name| plain(name)) {
        return Err(missing());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let below = OFlags::DIRECTORY | flags;
    let mut at = openat(CWD, folder.as_std_path(), below, Mode::empty()).map_err(|_| missing())?;
    for name in folders {
        at = openat(&at, *name, below, Mode::empty()).map_err(|_| missing())?;
    }
    let file = openat(&at, *last, flags, Mode::empty()).map_err(|_| missing())?;
    let status = fstat(&file).map_err(|_| missing())?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(missing());
    }
    let mut bytes = vec![];
    File::from(file)
        .take(MOST_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|_| missing())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use camino::Utf8PathBuf;

    use super::*;

    #[test]
    fn only_plain_files_below_the_folder_are_read() {
        let outside = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(outside.path().to_owned()).unwrap();
        std::fs::write(root.join("secret"), "no").unwrap();
        let folder = root.join("artifacts");
        std::fs::create_dir_all(folder.join("a")).unwrap();
        std::fs::write(folder.join("a/b.txt"), "yes").unwrap();
        symlink(root.join("secret"), folder.join("link")).unwrap();
        symlink(&root, folder.join("up")).unwrap();
        assert_eq!(read(&folder, "a/b.txt").unwrap(), b"yes");
        for path in [
            "link",
            "up/secret",
            "../secret",
            "a/../../secret",
            "a",
            "",
            "/etc/passwd",
            "a//b.txt",
        ] {
            assert!(read(&folder, path).is_err(), "{path}");
        }
    }
}
