//! Files that nobody but their owner reads: folders of mode 0700, files of mode 0600.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use camino::Utf8Path;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat};

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

/// The options of a file that is made for its owner alone. A link in its place is an error.
pub(crate) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
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
    match change_mode(path, not_the_others) {
        // Whether it is there shows when it is used, and likewise what is somebody else's, or on a file system that can't.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::debug!(%path, %error, "its mode stays");
            Ok(())
        }
        other => other.map(drop),
    }
}

/// The same for an open file, where it can be done: a file of somebody else's stays as it is.
pub(crate) fn take_away_open(file: &File) {
    let Ok(metadata) = file.metadata() else {
        return;
    };
    let mode = metadata.permissions().mode();
    if metadata.nlink() == 1 && mode & NOT_THE_OWNERS != 0 {
        let _ = file.set_permissions(Permissions::from_mode(not_the_others(mode)));
    }
}

fn not_the_others(mode: u32) -> u32 {
    mode & 0o7700
}

/// Changes the mode of the file or folder that has this path, by descriptor. A link is left as it is, and so is what it leads
/// to; a file that has another name too is left, because that name may be outside what is ours. Says whether the mode is
/// another one now.
pub fn change_mode(path: impl AsRef<Path>, new: impl FnOnce(u32) -> u32) -> io::Result<bool> {
    Ok(Entry::open(CWD, path.as_ref())?.change_mode(new)?)
}

/// Takes what group and others may do away from a folder and everything below it; says how many files and
/// folders had to be changed. Links are neither followed nor changed, nor are files with more than one name. What
/// can't be changed (somebody else's, or gone meanwhile) is left, because the folder above it keeps others out.
pub fn tighten(root: &Utf8Path) -> io::Result<u64> {
    let opened = Entry::open(CWD, root.as_std_path())?;
    if !opened.is_folder()? {
        return Ok(0);
    }
    let mut changed = u64::from(opened.change_mode(not_the_others)?);
    // A list and not recursion: folders may be nested deeper than the stack allows, and than we may hold open.
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        if let Err(error) = tighten_folder(&opened, &folder, &mut folders, &mut changed) {
            tracing::debug!(%root, folder = %folder.display(), %error, "not looked into");
        }
    }
    Ok(changed)
}

fn tighten_folder(
    root: &Entry,
    folder: &Path,
    below: &mut Vec<PathBuf>,
    changed: &mut u64,
) -> rustix::io::Result<()> {
    if folder.as_os_str().len() >= LONGEST_PATH {
        return Err(rustix::io::Errno::NAMETOOLONG);
    }
    let open = |above: BorrowedFd<'_>, name: &Path| {
        openat(above, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())
    };
    let mut opened = open(root.0.as_fd(), Path::new("."))?;
    for name in folder {
        // A link that was put in the place of a folder leads nowhere.
        opened = open(opened.as_fd(), name.as_ref())?;
    }
    for entry in Dir::read_from(&opened)?.filter_map(Result::ok) {
        let name = Path::new(OsStr::from_bytes(entry.file_name().to_bytes()));
        if name == Path::new(".") || name == Path::new("..") {
            continue;
        }
        let done = Entry::open(opened.as_fd(), name)
            .and_then(|entry| Ok((entry.change_mode(not_the_others), entry.is_folder()?)));
        match done {
            Ok((count, is_folder)) => {
                match count {
                    Ok(count) => *changed += u64::from(count),
                    Err(error) => tracing::debug!(name = %name.display(), %error, "its mode stays"),
                }
                if is_folder {
                    below.push(folder.join(name));
                }
            }
            Err(error) => tracing::debug!(name = %name.display(), %error, "its mode stays"),
        }
    }
    Ok(())
}

/// What the system takes as a path.
const LONGEST_PATH: usize = 4096;
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// What has a name, opened so that it can't become something else while we look at it.
struct Entry(OwnedFd);

impl Entry {
    fn open(folder: BorrowedFd<'_>, name: &Path) -> rustix::io::Result<Self> {
        // On Linux also what its owner can't read, and without an effect on devices and pipes.
        #[cfg(target_os = "linux")]
        let how = OFlags::PATH;
        #[cfg(not(target_os = "linux"))]
        let how = OFlags::RDONLY | OFlags::NONBLOCK;
        let how = how | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(folder, name, how, Mode::empty()).map(Self)
    }

    fn is_folder(&self) -> rustix::io::Result<bool> {
        Ok(FileType::from_raw_mode(fstat(&self.0)?.st_mode).is_dir())
    }

    fn change_mode(&self, new: impl FnOnce(u32) -> u32) -> rustix::io::Result<bool> {
        let stat = fstat(&self.0)?;
        let ours = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => true,
            FileType::Symlink => false,
            _ => stat.st_nlink == 1,
        };
        let mode = Mode::from_raw_mode(stat.st_mode);
        let wanted = Mode::from_raw_mode(new(mode.as_raw_mode()));
        if !ours || wanted == mode {
            return Ok(false);
        }
        // A descriptor of a path takes no `fchmod`; this name of it leads to what it is open on, and nowhere else.
        #[cfg(target_os = "linux")]
        rustix::fs::chmod(format!("/proc/self/fd/{}", self.0.as_raw_fd()), wanted)?;
        #[cfg(not(target_os = "linux"))]
        rustix::fs::fchmod(&self.0, wanted)?;
        Ok(true)
    }
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
        std::os::unix::fs::symlink(&root, tree.join("a/up")).unwrap();
        fs::hard_link(&outside, tree.join("a/second-name")).unwrap();
        assert_eq!(tighten(&tree).unwrap(), 5);
        assert_eq!(tighten(&tree).unwrap(), 0);
        assert_eq!(mode(&tree), 0o700);
        assert_eq!(mode(&tree.join("a/b")), 0o700);
        assert_eq!(mode(&tree.join("a/b/script")), 0o700);
        assert_eq!(mode(&tree.join("a/data")), 0o600);
        assert_eq!(mode(&outside), 0o644);
    }

    #[test]
    fn a_mode_is_changed_of_what_has_the_name_and_no_other() {
        let keep = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::try_from(keep.path().to_owned()).unwrap();
        let outside = root.join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "mine").unwrap();
        for (path, mode) in [(outside.clone(), 0o755), (outside.join("file"), 0o644)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let unlike = |path: &Utf8Path| change_mode(path, |_| 0o400).unwrap();
        for link in ["file", "folder", "second-name"] {
            let link = root.join(link);
            match link.file_name() {
                Some("file") => std::os::unix::fs::symlink(outside.join("file"), &link),
                Some("folder") => std::os::unix::fs::symlink(&outside, &link),
                _ => fs::hard_link(outside.join("file"), &link),
            }
            .unwrap();
            assert!(!unlike(&link), "{link}");
            assert_eq!(tighten(&link).unwrap(), 0, "{link}");
            assert_eq!(mode(&outside.join("file")), 0o644, "{link}");
            assert_eq!(mode(&outside), 0o755, "{link}");
        }
        fs::remove_file(root.join("second-name")).unwrap();
        assert!(unlike(&outside.join("file")));
        assert_eq!(mode(&outside.join("file")), 0o400);
        // Not even a file of ours is opened through a link.
        assert!(create_private_file(&root.join("file")).is_err());
    }
}
