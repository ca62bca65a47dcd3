//! Files in the user's cache, by the digest of what is in them. Written once, read by any number of runs.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::time::{Duration, Instant, SystemTime};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_worker::environment::Surroundings;

use super::is_content;
use crate::digested_files::{DigestedFile, make_folder, put_in_place};
use crate::source_digest::text_digest;
use crate::{RunError, RunErrorKind, io_error};

/// Held while a snapshot is made or removed.
const MAKING: &str = "making.lock";
/// Held by each run that uses the snapshot; its time says when one began to.
const IN_USE: &str = "in-use.lock";
/// Where its files are.
const FILES: &str = "files";
/// One that no run has begun to use for so long is removed.
const KEPT_FOR: Duration = Duration::from_hours(30 * 24);
/// Making one takes no longer, unless it is very large.
const MAKING_LIMIT: Duration = Duration::from_mins(5);
const POLL: Duration = Duration::from_millis(5);

/// Where snapshots are kept. Workers of another user need to reach it: each folder above must let them through.
pub(crate) fn snapshots_folder() -> Result<Utf8PathBuf, RunError> {
    let cache = Surroundings::from_environment().cache.ok_or_else(|| {
        RunError::failed(RunErrorKind::Io, "there is no cache folder for this user")
            .hint("set OSMOSIS_CACHE_DIR, XDG_CACHE_HOME or HOME")
    })?;
    Ok(cache.join("snapshots"))
}

/// Modes of folders, files and programs. Root's workers may run as another user, who reads them.
fn modes() -> (u32, u32, u32) {
    if rustix::process::geteuid().is_root() {
        (0o755, 0o444, 0o555)
    } else {
        (0o700, 0o400, 0o500)
    }
}

/// A snapshot that stays while this is alive.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) files: Utf8PathBuf,
    _in_use: File,
}

impl Snapshot {
    /// Makes it, or finds the one that was made; every file is compared with its digest. `None` when `read` gives other
    /// content than was digested.
    pub(super) fn make(
        cache: &Utf8Path,
        files: &BTreeMap<String, DigestedFile>,
        read: impl Fn(&str) -> io::Result<Vec<u8>>,
    ) -> Result<Option<Self>, RunError> {
        let listed = serde_json::to_string(files)
            .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
        let folder = cache.join(&text_digest(&listed)[..32]);
        let failed = |error: io::Error| io_error(&folder, &error);
        make_folder(cache, modes().0).map_err(failed)?;
        let _making = lock_making(cache)?;
        let root = folder.join(FILES);
        make_folder(&root, modes().0).map_err(failed)?;
        let (of_folders, of_files, of_programs) = modes();
        for (name, file) in files {
            let target = root.join(name);
            if file.is_at(&target) {
                continue;
            }
            let Ok(content) = read(name) else {
                return Ok(None);
            };
            if !is_content(&content, &file.sha256) {
                return Ok(None);
            }
            let mode = if file.executable {
                of_programs
            } else {
                of_files
            };
            put_in_place(&target, &content, mode, of_folders)
                .map_err(|error| io_error(&target, &error))?;
        }
        remove_others(&root, &root, files).map_err(failed)?;
        let in_use = lock_file(&folder.join(IN_USE)).map_err(failed)?;
        in_use.lock_shared().map_err(failed)?;
        in_use.set_modified(SystemTime::now()).map_err(failed)?;
        prune(cache);
        Ok(Some(Self {
            files: root,
            _in_use: in_use,
        }))
    }

    /// A program, by itself.
    pub(super) fn of_binary(cache: &Utf8Path, program: &Utf8Path) -> Result<Self, RunError> {
        let content = fs::read(program).map_err(|error| io_error(program, &error))?;
        let file = DigestedFile {
            sha256: crate::source_digest::bytes_digest(&content),
            executable: true,
        };
        let name = program.file_name().unwrap_or("rollout").to_owned();
        let made = Self::make(cache, &BTreeMap::from([(name, file)]), |_| {
            Ok(content.clone())
        })?;
        made.ok_or_else(|| RunError::failed(RunErrorKind::Internal, "a program has two digests"))
    }

    /// The path of a snapshot's first file.
    pub(super) fn only_file(&self) -> Utf8PathBuf {
        let mut entries = self.files.read_dir_utf8().into_iter().flatten().flatten();
        entries
            .next()
            .map_or_else(|| self.files.clone(), camino::Utf8DirEntry::into_path)
    }
}

fn lock_file(path: &Utf8Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
}

/// Waits for its turn.
fn lock_making(cache: &Utf8Path) -> Result<File, RunError> {
    let path = cache.join(MAKING);
    let file = lock_file(&path).map_err(|error| io_error(&path, &error))?;
    let until = Instant::now() + MAKING_LIMIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(io_error(&path, &error)),
            Err(TryLockError::WouldBlock) if Instant::now() < until => pause(),
            Err(TryLockError::WouldBlock) => {
                return Err(RunError::failed(
                    RunErrorKind::Io,
                    format!(
                        "another process has held `{path}` for {} s",
                        MAKING_LIMIT.as_secs()
                    ),
                ));
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "on a thread of its own; a lock of a file tells nobody that it is free"
)]
fn pause() {
    std::thread::sleep(POLL);
}

/// Removes what does not belong to a snapshot: it could be imported.
fn remove_others(
    root: &Utf8Path,
    folder: &Utf8Path,
    files: &BTreeMap<String, DigestedFile>,
) -> io::Result<()> {
    for entry in folder.read_dir_utf8()? {
        let entry = entry?;
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap_or(path);
        if entry.file_type()?.is_dir() {
            remove_others(root, path, files)?;
        } else if !files.contains_key(name.as_str()) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Removes what no run uses, and none has begun to use for long. The caller holds the lock of makers, so nobody
/// begins to now.
fn prune(cache: &Utf8Path) {
    let entries = cache.read_dir_utf8().into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.path().is_dir()) {
        if let Err(error) = prune_one(entry.path()) {
            tracing::debug!(%error, snapshot = %entry.path(), "a snapshot can't be removed");
        }
    }
}

fn prune_one(folder: &Utf8Path) -> io::Result<()> {
    let path = folder.join(IN_USE);
    let used = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => folder.metadata()?,
        found => found?,
    };
    // A clock that was set back makes it young.
    let age = used.modified()?.elapsed().unwrap_or_default();
    if age < KEPT_FOR {
        return Ok(());
    }
    match lock_file(&path)?.try_lock() {
        Ok(()) => fs::remove_dir_all(folder),
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_digest::bytes_digest;

    fn cache() -> (tempfile::TempDir, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        (folder, path)
    }

    fn make(cache: &Utf8Path, text: &'static str) -> Option<Snapshot> {
        let file = DigestedFile {
            sha256: bytes_digest(text.as_bytes()),
            executable: false,
        };
        let files = BTreeMap::from([("agent/main.py".to_owned(), file)]);
        Snapshot::make(cache, &files, |_| Ok(text.into())).unwrap()
    }

    fn made_long_ago(snapshot: &Snapshot) {
        let path = snapshot.files.with_file_name(IN_USE);
        let long_ago = SystemTime::now() - KEPT_FOR - Duration::from_mins(1);
        lock_file(&path).unwrap().set_modified(long_ago).unwrap();
    }

    #[test]
    fn what_was_written_into_a_snapshot_is_not_there_for_the_next_run() {
        let (_keep, cache) = cache();
        let first = make(&cache, "reward = 0").unwrap();
        let main = first.files.join("agent/main.py");
        assert!(fs::metadata(&main).unwrap().permissions().readonly());
        fs::remove_file(&main).unwrap();
        fs::write(&main, "reward = 1").unwrap();
        fs::write(first.files.join("json.py"), "").unwrap();
        let second = make(&cache, "reward = 0").unwrap();
        assert_eq!(second.files, first.files);
        assert_eq!(fs::read_to_string(&main).unwrap(), "reward = 0");
        assert!(!first.files.join("json.py").exists());
    }

    #[test]
    fn a_file_that_is_not_what_was_digested_makes_no_snapshot() {
        let (_keep, cache) = cache();
        let file = DigestedFile {
            sha256: bytes_digest(b"one"),
            executable: false,
        };
        let files = BTreeMap::from([("main.py".to_owned(), file)]);
        assert!(
            Snapshot::make(&cache, &files, |_| Ok(b"two".into()))
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn old_snapshots_are_removed_unless_a_run_uses_them() {
        let (_keep, cache) = cache();
        let used = make(&cache, "used").unwrap();
        let unused = make(&cache, "unused").unwrap();
        let young = make(&cache, "young").unwrap();
        for old in [&used, &unused] {
            made_long_ago(old);
        }
        let (of_unused, of_young) = (unused.files.clone(), young.files.clone());
        drop((unused, young));
        let _next = make(&cache, "next").unwrap();
        assert!(used.files.exists() && of_young.exists());
        assert!(!of_unused.exists());
    }

    #[test]
    fn any_number_of_runs_make_one_at_once() {
        let (_keep, cache) = cache();
        let seen: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| make(&cache, "same").unwrap()))
                .collect();
            threads.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let main = |one: &Snapshot| fs::read_to_string(one.files.join("agent/main.py")).unwrap();
        assert!(seen.iter().all(|one| main(one) == "same"));
        let left = seen[0].files.join("agent").read_dir_utf8().unwrap().count();
        assert_eq!(left, 1);
    }
}
