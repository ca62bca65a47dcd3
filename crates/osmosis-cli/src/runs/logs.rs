//! `osmosis eval|train logs`.

use std::io::{BufRead, BufReader};

use osmosis_run::{RunError, RunErrorKind, io_error as io};
use osmosis_store::RunKind;
use serde_json::json;

use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;

pub(crate) fn run(
    workspace: &Workspace,
    kind: RunKind,
    run: &str,
    rollout: Option<&str>,
    output: &Output,
) -> Result<Exit, RunError> {
    let path = RunFolder::existing(workspace, kind, run)?.logs();
    let file = std::fs::File::open(&path).map_err(|error| io(&path, &error))?;
    let mut kept = vec![];
    let mut any = false;
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(|error| io(&path, &error))?;
        let line = String::from_utf8_lossy(&line);
        if rollout.is_some_and(|wanted| source_of(&line) != Some(wanted)) {
            continue;
        }
        any = true;
        if output.is_json() {
            kept.push(json!(line));
        } else {
            output.line(line);
        }
    }
    output.list(&kept);
    match rollout {
        Some(id) if !any => Err(RunError::failed(
            RunErrorKind::RolloutNotFound,
            format!("no line of `{id}` in `{path}`"),
        )
        .hint("rollout ids look like `r3-0`: row 3, run 0")),
        _ => Ok(Exit::Ok),
    }
}

/// The second word of `TIME SOURCE | TEXT`.
fn source_of(line: &str) -> Option<&str> {
    line.split(' ').nth(1)
}
