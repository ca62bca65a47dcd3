//! Who has the run: an advisory lock on the folder itself, and one on `run.lock`, which names the holder.
//!
//! A file can be removed while it is locked, and a new one of its name is free. A folder with files in it
//! can't, and keeps its lock when it is moved. The file is locked too, because older programs look there.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::{Holder, StoreError};

use crate::private::{private_file, take_away_open};

/// The file that names the holder.
pub(crate) const LOCK_FILE: &str = "run.lock";

/// Exclusive hold of a run folder; given up when dropped, and by the system when the process dies.
#[derive(Debug)]
pub(crate) struct RunLock {
    path: Utf8PathBuf,
    folder: File,
    file: File,
}

impl RunLock {
    /// Takes hold of the folder, or says who has it. `known` is asked for a name when `run.lock` has none.
    pub(crate) fn take(
        path: &Utf8Path,
        holder: &Holder,
        known: impl Fn() -> Option<Holder>,
    ) -> Result<Self, StoreError> {
        let failed = |error: io::Error| StoreError::io(path, &error);
        let folder = File::open(path).map_err(failed)?;
        let file_path = path.join(LOCK_FILE);
        let held = |file: Option<&mut File>| StoreError::Held {
            path: path.to_owned(),
            holder: file
                .and_then(read_holder)
                .or_else(&known)
                .unwrap_or_else(Holder::unknown)
                .to_string(),
        };
        match try_exclusive(&folder) {
            Ok(true) => {}
            Ok(false) => return Err(held(File::open(&file_path).ok().as_mut())),
            Err(error) if is_unsupported(&error) => {
                tracing::debug!(%path, %error, "the folder can't be locked here; run.lock is");
            }
            Err(error) => return Err(failed(error)),
        }
        let failed = |error: io::Error| StoreError::io(&file_path, &error);
        let mut file = private_file()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&file_path)
            .map_err(failed)?;
        take_away_open(&file);
        if !try_exclusive(&file).map_err(failed)? {
            return Err(held(Some(&mut file)));
        }
        write_holder(&mut file, holder).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            folder,
            file,
        })
    }

    /// Fails when the folder at our path is another one than the one we hold: what we write would be found
    /// by nobody, or by the wrong one.
    pub(crate) fn check_in_place(&self) -> Result<(), StoreError> {
        let held = self
            .folder
            .metadata()
            .map_err(|error| StoreError::io(&self.path, &error))?;
        match fs::metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (held.dev(), held.ino()) => Ok(()),
            Ok(_) => Err(StoreError::Moved {
                path: self.path.clone(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StoreError::Moved {
                path: self.path.clone(),
            }),
            Err(error) => Err(StoreError::io(&self.path, &error)),
        }
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // The lock is what counts; the text is for people, so a failure to clear it is no failure.
        let _ = self.file.set_len(0);
        let _ = self.file.unlock();
        let _ = self.folder.unlock();
    }
}

/// The process that holds the run now; `None` when nobody does, whatever the lock file says. `known` is asked
/// for a name when `run.lock` has none.
pub(crate) fn holder(
    folder: &Utf8Path,
    known: impl Fn() -> Option<Holder>,
) -> Result<Option<Holder>, StoreError> {
    let path = folder.join(LOCK_FILE);
    let failed = |error: &io::Error| StoreError::io(&path, error);
    let mut file = match File::open(&path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(&error)),
    };
    let held = match &file {
        Some(file) => is_held(file).map_err(|error| failed(&error))?,
        None => false,
    };
    // Where there is no folder, or it can't be locked, the file decides.
    let held = held || File::open(folder).is_ok_and(|folder| is_held(&folder).unwrap_or(false));
    if !held {
        return Ok(None);
    }
    let told = file.as_mut().and_then(read_holder);
    Ok(Some(told.or_else(known).unwrap_or_else(Holder::unknown)))
}

fn is_held(file: &File) -> io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => file.unlock().map(|()| false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Network file systems lock files that are open for writing, which no folder is.
fn is_unsupported(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let codes = [
        Errno::BADF,
        Errno::INVAL,
        Errno::NOLCK,
        Errno::OPNOTSUPP,
        Errno::ISDIR,
    ];
    codes
        .iter()
        .any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

/// A few tries, because whoever asks for the holder has the lock for some microseconds.
fn try_exclusive(file: &File) -> io::Result<bool> {
    for _ in 0..20 {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::park_timeout(Duration::from_millis(5)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

fn read_holder(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(64 * 1024).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

fn write_holder(file: &mut File, holder: &Holder) -> io::Result<()> {
    let mut text = serde_json::to_string(holder)?;
    text.push('\n');
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(keep: &tempfile::TempDir) -> &Utf8Path {
        Utf8Path::from_path(keep.path()).unwrap()
    }

    fn take(folder: &Utf8Path, command: &str) -> Result<RunLock, StoreError> {
        RunLock::take(folder, &Holder::this_process(1, command), || None)
    }

    #[test]
    fn a_removed_lock_file_lets_nobody_in() {
        let keep = tempfile::tempdir().unwrap();
        let lock = take(folder(&keep), "osmosis").unwrap();
        std::fs::remove_file(folder(&keep).join(LOCK_FILE)).unwrap();
        let known = || Some(Holder::this_process(2, "the database knows"));
        let error = RunLock::take(folder(&keep), &Holder::this_process(3, "second"), known)
            .unwrap_err()
            .to_string();
        assert!(error.contains("the database knows"), "{error}");
        let found = super::holder(folder(&keep), known).unwrap().unwrap();
        assert_eq!(found.since_ms, 2);
        drop(lock);
        take(folder(&keep), "osmosis").unwrap();
    }

    #[test]
    fn a_lock_file_of_a_killed_process_blocks_nobody_whoever_has_its_number_now() {
        let keep = tempfile::tempdir().unwrap();
        // Process 1 lives, and never had the run.
        let stale = r#"{"pid":1,"host":"here","since_ms":1,"command":"osmosis eval submit"}"#;
        std::fs::write(folder(&keep).join(LOCK_FILE), stale).unwrap();
        assert_eq!(super::holder(folder(&keep), || None).unwrap(), None);
        take(folder(&keep), "osmosis").unwrap();
    }

    #[test]
    fn a_folder_that_was_moved_keeps_its_lock_and_its_writer_knows() {
        let keep = tempfile::tempdir().unwrap();
        let (old, new) = (folder(&keep).join("old"), folder(&keep).join("new"));
        std::fs::create_dir(&old).unwrap();
        let lock = take(&old, "osmosis").unwrap();
        lock.check_in_place().unwrap();
        std::fs::rename(&old, &new).unwrap();
        take(&new, "osmosis").unwrap_err();
        assert!(matches!(
            lock.check_in_place(),
            Err(StoreError::Moved { .. })
        ));
        // Another run takes its place.
        std::fs::create_dir(&old).unwrap();
        assert!(matches!(
            lock.check_in_place(),
            Err(StoreError::Moved { .. })
        ));
        take(&old, "osmosis").unwrap();
    }

    #[test]
    fn a_long_command_is_told_whole() {
        let keep = tempfile::tempdir().unwrap();
        let command = "osmosis eval submit ".repeat(500);
        let lock = take(folder(&keep), &command).unwrap();
        let found = super::holder(folder(&keep), || None).unwrap().unwrap();
        assert_eq!((found.command, found.since_ms), (command, 1));
        drop(lock);
    }

    #[test]
    fn a_lock_that_is_given_back_names_nobody() {
        let keep = tempfile::tempdir().unwrap();
        assert_eq!(
            super::holder(folder(&keep), || None).unwrap(),
            None,
            "there is no file yet"
        );
        drop(take(folder(&keep), "osmosis").unwrap());
        assert_eq!(super::holder(folder(&keep), || None).unwrap(), None);
        let text = std::fs::read_to_string(folder(&keep).join(LOCK_FILE)).unwrap();
        assert_eq!(text, "");
    }

    #[test]
    fn where_no_lock_can_be_looked_for_nobody_knows_the_holder() {
        let keep = tempfile::tempdir().unwrap();
        let file = folder(&keep).join("file");
        std::fs::write(&file, "not a folder").unwrap();
        let error = super::holder(&file, || None).unwrap_err().to_string();
        assert!(error.contains(file.as_str()), "{error}");
    }
}
