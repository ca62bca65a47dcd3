//! `osmosis eval|train logs`.

use osmosis_run::reports::each_log_line;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::RunKind;

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
    let folder = RunFolder::existing(workspace, kind, run)?;
    let mut kept: Vec<String> = vec![];
    let mut any = false;
    each_log_line(&folder, rollout, |line| {
        any = true;
        if output.is_json() {
            kept.push(line.to_owned());
        } else {
            output.line(line);
        }
    })?;
    output.list(&kept);
    match rollout {
        Some(id) if !any => Err(RunError::failed(
            RunErrorKind::RolloutNotFound,
            format!("no line of `{id}` in `{}`", folder.logs()),
        )
        .hint("rollout ids look like `r3-0`: row 3, run 0")),
        _ => Ok(Exit::Ok),
    }
}
