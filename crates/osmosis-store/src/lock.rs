use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::Duration;

use camino::Utf8Path;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::StoreError;

/// The file whose advisory lock says that a process is writing to the run.
pub(crate) const LOCK_FILE: &str = "run.lock";

/// The process that writes to a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub host: String,
    /// When it took hold of the run, in milliseconds since 1970.
    pub since_ms: i64,
    /// What it is, for people: `osmosis eval submit`.
    pub command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host)?;
        if let Ok(since) = Timestamp::from_millisecond(self.since_ms) {
            write!(f, " since {since:.0}")?;
        }
        if !self.command.is_empty() {
            write!(f, " (`{}`)", self.command)?;
        }
        Ok(())
    }
}

/// Exclusive hold of a run folder; given up when dropped, and by the system when the process dies.
#[derive(Debug)]
pub(crate) struct RunLock {
    file: File,
}

impl RunLock {
    pub(crate) fn take(
        folder: &Utf8Path,
        since_ms: i64,
        command: &str,
    ) -> Result<Self, StoreError> {
        let path = folder.join(LOCK_FILE);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| StoreError::io(&path, &error))?;
        if !try_exclusive(&file).map_err(|error| StoreError::io(&path, &error))? {
            return Err(StoreError::Held {
                path: folder.to_owned(),
                holder: read_holder(&mut file)
                    .map_or_else(|| "another process".to_owned(), |holder| holder.to_string()),
            });
        }
        let holder = Holder {
            pid: std::process::id(),
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            since_ms,
            command: command.to_owned(),
        };
        write_holder(&mut file, &holder).map_err(|error| StoreError::io(&path, &error))?;
        Ok(Self { file })
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // The lock is what counts; the text is for people, so a failure to clear it is no failure.
        let _ = self.file.set_len(0);
        let _ = self.file.unlock();
    }
}

/// The process that holds the run now; `None` when nobody does, whatever the lock file says.
pub(crate) fn holder(folder: &Utf8Path) -> Result<Option<Holder>, StoreError> {
    let path = folder.join(LOCK_FILE);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(&path, &error)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            Ok(Some(read_holder(&mut file).unwrap_or_else(|| Holder {
                pid: 0,
                host: "an unknown host".to_owned(),
                since_ms: 0,
                command: String::new(),
            })))
        }
        Err(TryLockError::Error(error)) => Err(StoreError::io(&path, &error)),
    }
}

/// A few tries, because whoever asks for the holder has the lock for some microseconds.
fn try_exclusive(file: &File) -> io::Result<bool> {
    for _ in 0..5 {
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

    #[test]
    fn a_long_command_is_told_whole() {
        let keep = tempfile::tempdir().unwrap();
        let command = "osmosis eval submit ".repeat(500);
        let lock = RunLock::take(folder(&keep), 1, &command).unwrap();
        let found = holder(folder(&keep)).unwrap().unwrap();
        assert_eq!((found.command, found.since_ms), (command, 1));
        drop(lock);
    }

    #[test]
    fn a_lock_that_is_given_back_names_nobody() {
        let keep = tempfile::tempdir().unwrap();
        assert_eq!(holder(folder(&keep)).unwrap(), None, "there is no file yet");
        drop(RunLock::take(folder(&keep), 1, "osmosis").unwrap());
        assert_eq!(holder(folder(&keep)).unwrap(), None);
        let text = std::fs::read_to_string(folder(&keep).join(LOCK_FILE)).unwrap();
        assert_eq!(text, "");
    }

    #[test]
    fn where_no_lock_can_be_looked_for_nobody_knows_the_holder() {
        let keep = tempfile::tempdir().unwrap();
        let file = folder(&keep).join("file");
        std::fs::write(&file, "not a folder").unwrap();
        let error = holder(&file).unwrap_err().to_string();
        assert!(error.contains(file.as_str()), "{error}");
    }

    #[test]
    fn a_holder_is_told_with_its_command_where_it_has_one() {
        let mut holder = Holder {
            pid: 7,
            host: "here".to_owned(),
            since_ms: 0,
            command: String::new(),
        };
        let text = "process 7 on here since 1970-01-01T00:00:00Z";
        assert_eq!(holder.to_string(), text);
        holder.command = "osmosis serve".to_owned();
        assert_eq!(holder.to_string(), format!("{text} (`osmosis serve`)"));
    }
}
