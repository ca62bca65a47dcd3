//! What user code printed: the lines of `logs.txt`.

use std::fs::File;
use std::io::{BufRead as _, BufReader};

use crate::run_folder::RunFolder;
use crate::run_log::{AGENT, GRADER};
use crate::{RunError, io_error};

/// Gives each line to `take`, of one rollout or of all. Lines are `TIME SOURCE | TEXT`; what user code
/// printed in a rollout is `TIME ROLLOUT agent | TEXT` or `TIME ROLLOUT grader | TEXT`.
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

/// What user code printed during one rollout. Lines of runs from before printers were told apart are in neither.
#[derive(Debug, Default)]
pub(super) struct PrintedLines {
    pub(super) agent: Vec<String>,
    pub(super) grader: Vec<String>,
}

impl PrintedLines {
    pub(super) fn read(folder: &RunFolder, rollout: &str) -> Result<Self, RunError> {
        let mut printed = Self::default();
        if !folder.logs().exists() {
            return Ok(printed);
        }
        each_log_line(folder, Some(rollout), |line| {
            let Some((head, text)) = line.split_once(" | ") else {
                return;
            };
            match head.split(' ').nth(2) {
                Some(AGENT) => printed.agent.push(text.to_owned()),
                Some(GRADER) => printed.grader.push(text.to_owned()),
                Some(_) | None => {}
            }
        })?;
        Ok(printed)
    }
}

/// The second word of `TIME SOURCE | TEXT`.
pub(crate) fn log_source(line: &str) -> Option<&str> {
    line.split(' ').nth(1)
}
