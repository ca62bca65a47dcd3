//! The log file of a process beside the run.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8PathBuf;

/// Of the end of a log, as much as may matter.
const LAST_BYTES: u64 = 16 << 10;
/// Lines of it that an error has.
const LAST_LINES: usize = 12;

/// Where a process prints to.
#[derive(Debug, Clone)]
pub(super) struct ProcessLog {
    pub(super) path: Utf8PathBuf,
}

impl ProcessLog {
    pub(super) fn at(path: Utf8PathBuf) -> Self {
        Self { path }
    }

    /// Opens it to add to it.
    pub(super) fn open(&self) -> std::io::Result<File> {
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&self.path)
    }

    /// The last lines, for an error.
    pub(super) fn last_lines(&self) -> String {
        let Ok(mut file) = File::open(&self.path) else {
            return "it printed nothing".to_owned();
        };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = Vec::new();
        let _ = file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)));
        let _ = file.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        match lines.as_slice() {
            [] => "it printed nothing".to_owned(),
            lines => lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"),
        }
    }
}
