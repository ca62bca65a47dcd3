//! What user code printed: the lines of `logs.txt`.

use std::fs::File;
use std::io::{BufRead as _, BufReader};

use crate::run_folder::RunFolder;
use crate::{RunError, io_error};

/// Gives each line to `take`, of one rollout or of all. Lines are `TIME SOURCE | TEXT`.
pub fn each_log_line(
    folder: &RunFolder,
    rollout: Option<&str>,
    mut take: impl FnMut(&str),
) -> Result<(), RunError> {
    let path = folder.logs();
    let file = File::open(&path).map_err(|error| io_error(&path, &error))?;
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(|error| io_error(&path, &error))?;
        let line = String::from_utf8_lossy(&line);
        if rollout.is_none_or(|wanted| log_source(&line) == Some(wanted)) {
            take(&line);
        }
    }
    Ok(())
}

/// The second word of `TIME SOURCE | TEXT`.
pub(crate) fn log_source(line: &str) -> Option<&str> {
    line.split(' ').nth(1)
}
