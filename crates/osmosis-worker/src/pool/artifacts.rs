//! The artifacts of rollouts whose workers have a user of their own: they can't enter the folder of the run, so each
//! rollout gets a folder that is theirs, and what they leave there is copied back when its task has ended.
//!
//! User code may change that folder at any time, also while it is read. So nothing is opened through a link, and only
//! files that belong to the workers' user are read: a hard link to a file of somebody else is not followed either.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::execution::{TaskReport, TaskResult};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, readlinkat, seek, statat};
use rustix::io::Errno;

use super::Inner;
use super::socket_folder::{ARTIFACTS, LENDING};
use crate::Endpoint;
use crate::user::WorkerIdentity;

/// Deeper folders are left out: each one on the way holds a descriptor.
const MOST_DEPTH: usize = 100;

#[derive(Debug, Clone)]
pub(super) struct ArtifactsExchange {
    folder: Utf8PathBuf,
    uid: u32,
    gid: u32,
}

/// What a task finds in its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    /// What the rollout has left so far.
    OfRollout,
}

impl ArtifactsExchange {
    pub(super) fn new(endpoint: &Endpoint, user: &WorkerIdentity) -> Option<Self> {
        let Endpoint::Unix(socket) = endpoint else {
            return None;
        };
        let folder = Utf8PathBuf::from_path_buf(socket.parent()?.join(ARTIFACTS)).ok()?;
        Some(Self {
            folder,
            uid: user.uid,
            gid: user.gid,
        })
    }

    /// Where workers see the artifacts that the run keeps at `own`.
    fn place(&self, own: &Utf8Path) -> Utf8PathBuf {
        self.folder.join(own.file_name().unwrap_or_default())
    }

    /// Returns the folder for a task, which user code makes when it wants to.
    pub(super) async fn lend(
        &self,
        own: &Utf8Path,
        content: Content,
    ) -> Result<Utf8PathBuf, TaskReport> {
        let place = self.place(own);
        let copied =
            content == Content::OfRollout && own.symlink_metadata().is_ok_and(|it| it.is_dir());
        if copied || place.symlink_metadata().is_ok() {
            let (from, to, exchange) = (own.to_owned(), place.clone(), self.clone());
            blocking(move || {
                remove(&to)?;
                if copied {
                    exchange.copy_in(from.as_std_path(), to.as_std_path())?;
                }
                Ok(())
            })
            .await
            .map_err(|error| unusable(own, &error))?;
        }
        Ok(place)
    }

    /// Replaces what the run keeps at `own` by what the task has left, and removes the task's folder.
    pub(super) async fn take_back(&self, own: &Utf8Path) -> Result<(), TaskReport> {
        let place = self.place(own);
        if place.symlink_metadata().is_err() {
            return Ok(());
        }
        let (to, uid) = (own.to_owned(), self.uid);
        blocking(move || {
            remove(&to)?;
            copy_out(place.as_std_path(), to.as_std_path(), uid)?;
            remove(&place)
        })
        .await
        .map_err(|error| unusable(own, &error))
    }

    /// Links are made anew and what is neither file nor folder is left out. The copy is made where the user can't enter,
    /// and moved: nothing of it can be replaced by a link while we write to it.
    fn copy_in(&self, from: &Path, to: &Path) -> io::Result<()> {
        let lending = self.folder.with_file_name(LENDING);
        let lending = tempfile::tempdir_in(lending)?;
        let copy = lending.path().join("copy");
        let mut folders = vec![(from.to_owned(), copy.clone())];
        while let Some((from, to)) = folders.pop() {
            std::fs::DirBuilder::new().mode(0o700).create(&to)?;
            for entry in std::fs::read_dir(&from)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                let target = to.join(entry.file_name());
                if kind.is_dir() {
                    folders.push((entry.path(), target));
                    continue;
                } else if kind.is_symlink() {
                    std::os::unix::fs::symlink(std::fs::read_link(entry.path())?, &target)?;
                } else if kind.is_file() {
                    let mut source = File::open(entry.path())?;
                    let mode = source.metadata().map(|found| permissions_of(&found))?;
                    copy_data(&mut source, &mut new_file(&target, mode)?)?;
                } else {
                    continue;
                }
                lchown(&target, Some(self.uid), Some(self.gid))?;
            }
            lchown(&to, Some(self.uid), Some(self.gid))?;
        }
        std::fs::rename(copy, to)
    }
}

impl Inner {
    /// The folder for the artifacts of a task, where workers may write.
    pub(super) async fn lend(
        &self,
        own: Option<Utf8PathBuf>,
        content: Content,
    ) -> Result<Option<Utf8PathBuf>, TaskReport> {
        match (&self.exchange, own) {
            (Some(exchange), Some(own)) => exchange.lend(&own, content).await.map(Some),
            (_, own) => Ok(own),
        }
    }

    /// Brings the artifacts of a task to where the run keeps them.
    pub(super) async fn take_back(
        &self,
        own: Option<Utf8PathBuf>,
        report: TaskReport,
    ) -> TaskReport {
        match (&self.exchange, own) {
            (Some(exchange), Some(own)) => exchange.take_back(&own).await.err().unwrap_or(report),
            (Some(_) | None, _) => report,
        }
    }
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn unusable(own: &Utf8Path, error: &io::Error) -> TaskReport {
    TaskReport::undispatched(TaskResult::OutOfReach {
        detail: format!("the artifacts `{own}` could not be copied: {error}"),
        retry: true,
    })
}

fn remove(path: &Utf8Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A folder that is still to be read, by its name in one that is open.
struct Unread {
    above: Rc<OwnedFd>,
    name: std::ffi::CString,
    to: PathBuf,
    depth: usize,
}

fn copy_out(from: &Path, to: &Path, uid: u32) -> io::Result<()> {
    let (Some(above), Some(name)) = (from.parent(), from.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let above = openat(
        rustix::fs::CWD,
        above,
        OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let name = std::ffi::CString::new(name.as_bytes())?;
    let mut waiting = vec![Unread {
        above: Rc::new(above),
        name,
        to: to.to_owned(),
        depth: 0,
    }];
    while let Some(unread) = waiting.pop() {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match openat(&*unread.above, &unread.name, flags, Mode::empty()) {
            Ok(folder) => Rc::new(folder),
            // It has gone meanwhile, or is no folder any more.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(error) => return Err(error.into()),
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&unread.to)?;
        for entry in Dir::read_from(&*folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let target = unread.to.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            let kind = match statat(&*folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => FileType::from_raw_mode(found.st_mode),
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            match kind {
                FileType::Directory if unread.depth < MOST_DEPTH => waiting.push(Unread {
                    above: Rc::clone(&folder),
                    name: name.to_owned(),
                    to: target,
                    depth: unread.depth + 1,
                }),
                FileType::Directory => {
                    tracing::warn!(folder = %target.display(), "too deep: left out of the artifacts");
                }
                FileType::RegularFile => copy_file(&folder, name, &target, uid)?,
                FileType::Symlink => {
                    if let Ok(leads_to) = readlinkat(&*folder, name, Vec::new()) {
                        let leads_to = std::ffi::OsStr::from_bytes(leads_to.as_bytes());
                        std::os::unix::fs::symlink(leads_to, &target)?;
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn copy_file(folder: &OwnedFd, name: &std::ffi::CStr, to: &Path, uid: u32) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;

    // A pipe that has taken the file's place must not hold us up.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut source = match openat(folder, name, flags, Mode::empty()) {
        Ok(source) => File::from(source),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let found = source.metadata()?;
    if !found.is_file() || found.uid() != uid {
        tracing::warn!(file = %to.display(), "it does not belong to the workers' user: left out of the artifacts");
        return Ok(());
    }
    copy_data(&mut source, &mut new_file(to, permissions_of(&found))?)
}

/// The owner's rights; group and others get none.
fn permissions_of(found: &std::fs::Metadata) -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    0o600 | (found.mode() & 0o100)
}

fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
}

/// Copies what is there and leaves holes as holes: a file of a terabyte may take no space at all.
fn copy_data(from: &mut File, to: &mut File) -> io::Result<()> {
    let length = from.metadata()?.len();
    let mut at = 0;
    while at < length {
        let begin = match seek(&*from, rustix::fs::SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => break,
            // A file system without holes.
            Err(_) => at,
        };
        let end = seek(&*from, rustix::fs::SeekFrom::Hole(begin))
            .unwrap_or(length)
            .min(length);
        from.seek(SeekFrom::Start(begin))?;
        to.seek(SeekFrom::Start(begin))?;
        let copied = io::copy(
            &mut io::Read::take(&mut *from, end.saturating_sub(begin)),
            to,
        )?;
        if copied == 0 {
            break;
        }
        at = begin + copied;
    }
    to.set_len(length)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn us() -> u32 {
        rustix::process::getuid().as_raw()
    }

    #[test]
    fn files_links_and_holes_arrive_as_they_were_and_are_private() {
        let keep = tempfile::tempdir().unwrap();
        let (from, to) = (keep.path().join("from"), keep.path().join("a/b/to"));
        std::fs::create_dir_all(from.join("deep/er")).unwrap();
        std::fs::write(from.join("deep/er/x"), "text").unwrap();
        std::fs::set_permissions(
            from.join("deep/er/x"),
            std::fs::Permissions::from_mode(0o777),
        )
        .unwrap();
        symlink("/etc/passwd", from.join("link")).unwrap();
        let mut sparse = File::create(from.join("sparse")).unwrap();
        sparse.seek(SeekFrom::Start(1 << 40)).unwrap();
        sparse.write_all(b"end").unwrap();
        drop(sparse);
        copy_out(&from, &to, us()).unwrap();
        assert_eq!(
            std::fs::read_to_string(to.join("deep/er/x")).unwrap(),
            "text"
        );
        assert_eq!(
            to.join("deep/er/x").metadata().unwrap().mode() & 0o777,
            0o700
        );
        assert_eq!(to.join("deep").metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(
            to.join("link").read_link().unwrap(),
            Path::new("/etc/passwd")
        );
        let copy = to.join("sparse").metadata().unwrap();
        assert_eq!(copy.len(), (1 << 40) + 3);
        assert!(copy.blocks() < 1024, "{} blocks", copy.blocks());
    }

    #[test]
    fn no_link_is_followed_and_no_file_of_another_user_is_read() {
        let keep = tempfile::tempdir().unwrap();
        let secret = keep.path().join("secret");
        std::fs::create_dir(&secret).unwrap();
        std::fs::write(secret.join("key"), "secret").unwrap();
        let (from, to) = (keep.path().join("from"), keep.path().join("to"));
        // In place of the folder itself.
        symlink(&secret, &from).unwrap();
        copy_out(&from, &to, us()).unwrap();
        assert!(!to.exists());
        std::fs::remove_file(&from).unwrap();
        std::fs::create_dir(&from).unwrap();
        symlink(&secret, from.join("folder")).unwrap();
        std::fs::hard_link(secret.join("key"), from.join("hard")).unwrap();
        let pipe = from.join("pipe");
        let made = std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap();
        assert!(made.success());
        copy_out(&from, &to, us() + 1).unwrap();
        assert!(!to.join("folder/key").exists() || to.join("folder").is_symlink());
        assert!(!to.join("hard").exists());
        assert!(!to.join("pipe").exists());
    }

    #[test]
    fn what_is_too_deep_is_left_out() {
        let keep = tempfile::tempdir().unwrap();
        let (from, to) = (keep.path().join("from"), keep.path().join("to"));
        let mut deep = from.clone();
        for _ in 0..MOST_DEPTH + 2 {
            deep.push("d");
        }
        std::fs::create_dir_all(&deep).unwrap();
        copy_out(&from, &to, us()).unwrap();
        let mut copied = to;
        let mut depth = 0;
        while copied.join("d").exists() {
            copied.push("d");
            depth += 1;
        }
        assert_eq!(depth, MOST_DEPTH);
    }
}
