//! The folder of the worker socket. Its lock is held as long as its engine lives, so that one whose engine was
//! killed can be told and removed.

use std::fs::{File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, lchown,
};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use crate::user::{WorkerIdentity, is_open_to_all};

/// The kernel's bound on the path of a Unix socket is 104 to 108 bytes.
const MAX_SOCKET_PATH: usize = 100;

const PREFIX: &str = "osmosis-";
const SOCKET: &str = "s";
const LOCK: &str = "lock";
/// Where workers with a user of their own are at home.
pub(crate) const HOME: &str = "home";
pub(crate) const TEMPORARY: &str = "tmp";
/// Where they leave the artifacts of rollouts.
pub(super) const ARTIFACTS: &str = "artifacts";
/// Where artifacts for them are put together. It stays ours.
pub(super) const LENDING: &str = "lending";

/// A folder without a lock may be one that is just being made.
const MAKING: Duration = Duration::from_mins(10);

/// A folder that only this user can enter, and the user of the workers. Removed when dropped.
#[derive(Debug)]
pub(super) struct SocketFolder {
    folder: TempDir,
    _lock: File,
}

impl SocketFolder {
    pub(super) fn create(user: Option<&WorkerIdentity>) -> std::io::Result<Self> {
        let parent = std::env::temp_dir();
        let parent = if user.is_some() && !is_open_to_all(&parent) {
            Path::new("/tmp")
        } else {
            &*parent
        };
        loop {
            let mut folder = make_in(parent)?;
            if folder.path().join(SOCKET).as_os_str().len() > MAX_SOCKET_PATH {
                folder = make_in(Path::new("/tmp"))?;
            }
            let lock = OpenOptions::new()
                .create_new(true)
                .write(true)
                .mode(0o600)
                .open(folder.path().join(LOCK))?;
            lock.lock()?;
            // Somebody who cleans up may have had the lock between the last two lines.
            if folder.path().join(LOCK).exists() {
                if let Some(user) = user {
                    share_with(user, folder.path())?;
                }
                return Ok(Self {
                    folder,
                    _lock: lock,
                });
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Lets the user dial a socket that somebody listens at now.
    pub(super) fn hand_socket_to(&self, user: &WorkerIdentity) -> std::io::Result<()> {
        let socket = self.socket();
        lchown(&socket, None, Some(user.gid))?;
        std::fs::set_permissions(&socket, Permissions::from_mode(0o660))
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path().join(SOCKET)
    }
}

/// Lets the user pass through the folder, which stays ours, to its own folders in it.
fn share_with(user: &WorkerIdentity, folder: &Path) -> std::io::Result<()> {
    for name in [HOME, TEMPORARY, ARTIFACTS] {
        let own = folder.join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&own)?;
        chown(&own, Some(user.uid), Some(user.gid))?;
    }
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(folder.join(LENDING))?;
    chown(folder, None, Some(user.gid))?;
    std::fs::set_permissions(folder, Permissions::from_mode(0o710))
}

fn make_in(parent: &Path) -> std::io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent)
}

/// Removes the folders of engines that are gone, and returns how many there were.
pub(super) fn remove_abandoned_folders() -> usize {
    let mut parents = vec![std::env::temp_dir()];
    if parents[0] != Path::new("/tmp") {
        parents.push("/tmp".into());
    }
    let folders = parents
        .into_iter()
        .filter_map(|parent| std::fs::read_dir(parent).ok())
        .flatten()
        .filter_map(Result::ok)
        .filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with(PREFIX))
        });
    folders
        .filter(|entry| remove_abandoned_folder(&entry.path()))
        .count()
}

/// Removes the folder unless its engine lives; whether it is gone.
pub(crate) fn remove_abandoned_folder(folder: &Path) -> bool {
    let found = match std::fs::symlink_metadata(folder) {
        Ok(found) => found,
        Err(error) => return error.kind() == ErrorKind::NotFound,
    };
    let is_ours = found.is_dir()
        && found.uid() == rustix::process::getuid().as_raw()
        && [0o700, 0o710].contains(&(found.mode() & 0o777))
        && holds_only_ours(folder);
    if !is_ours {
        return false;
    }
    // Held until the folder is gone.
    let Ok(_lock) = lock_of_abandoned(folder, found.modified().ok()) else {
        return false;
    };
    std::fs::remove_dir_all(folder).is_ok()
}

/// Other folders whose name begins like ours hold something else.
fn holds_only_ours(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|entries| {
        let ours = [SOCKET, LOCK, HOME, TEMPORARY, ARTIFACTS, LENDING];
        entries
            .filter_map(Result::ok)
            .all(|entry| ours.iter().any(|name| entry.file_name() == *name))
    })
}

/// Somebody uses the folder, or may.
struct InUse;

/// The lock of a folder that nobody uses; those of versions without locks have none.
fn lock_of_abandoned(folder: &Path, made: Option<SystemTime>) -> Result<Option<File>, InUse> {
    match File::open(folder.join(LOCK)) {
        Ok(lock) => match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(_) => Err(InUse),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let is_old = made.is_some_and(|made| made.elapsed().is_ok_and(|age| age > MAKING));
            let nobody_listens = UnixStream::connect(folder.join(SOCKET))
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
            if is_old && nobody_listens {
                Ok(None)
            } else {
                Err(InUse)
            }
        }
        Err(_) => Err(InUse),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt as _;

    use super::*;

    #[test]
    fn only_this_user_can_enter_the_folder_of_the_socket() {
        let folder = SocketFolder::create(None).unwrap();
        let mode = folder.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(folder.socket().as_os_str().len() <= MAX_SOCKET_PATH);
    }

    #[test]
    fn a_folder_is_removed_when_its_engine_is_gone_and_not_before() {
        let SocketFolder {
            folder,
            _lock: lock,
        } = SocketFolder::create(None).unwrap();
        let path = folder.keep();
        assert!(!remove_abandoned_folder(&path));
        drop(lock);
        assert!(remove_abandoned_folder(&path));
        assert!(!path.exists());
        assert!(remove_abandoned_folder(&path), "gone is gone");
    }

    #[test]
    fn folders_of_others_and_fresh_ones_stay() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = parent.path().join(name);
            std::fs::DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .unwrap();
            path
        };
        let foreign = make("osmosis-serve-1-r");
        std::fs::write(foreign.join("run.db"), "").unwrap();
        let fresh = make("osmosis-fresh");
        for folder in [foreign, fresh] {
            assert!(!remove_abandoned_folder(&folder), "{}", folder.display());
            assert!(folder.exists());
        }
    }
}
