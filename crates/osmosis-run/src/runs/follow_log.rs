//! The log of a run while somebody writes it.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::time::Duration;

use crate::reports::log_source;
use crate::run_folder::RunFolder;
use crate::{RunError, io_error as io};

/// Another process appends to the file, which gives no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
const CHUNK: usize = 64 * 1024;

/// Gives each line of `logs.txt` to `take`, of one rollout or of all: those that are there, then those that come,
/// until no process holds the run any more.
pub async fn follow_log(
    folder: &RunFolder,
    rollout: Option<&str>,
    mut take: impl FnMut(&str),
) -> Result<(), RunError> {
    let path = folder.logs();
    let mut file: Option<File> = None;
    let mut partial: Vec<u8> = vec![];
    loop {
        // Asked before reading: what was written until the run was let go is read then.
        let held = folder.records.holder().await?.is_some();
        if file.is_none() {
            file = match File::open(&path) {
                Ok(file) => Some(file),
                Err(error) if error.kind() == ErrorKind::NotFound && held => None,
                Err(error) => return Err(io(&path, &error)),
            };
        }
        if let Some(file) = &mut file {
            let mut chunk = vec![0; CHUNK];
            loop {
                let read = file.read(&mut chunk).map_err(|error| io(&path, &error))?;
                if read == 0 {
                    break;
                }
                partial.extend_from_slice(&chunk[..read]);
                while let Some(end) = partial.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = partial.drain(..=end).collect();
                    let line = String::from_utf8_lossy(&line[..end]);
                    if rollout.is_none_or(|wanted| log_source(&line) == Some(wanted)) {
                        take(&line);
                    }
                }
            }
        }
        if !held {
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
