//! `osmosis eval|train|run logs`.

use osmosis_run::reports::each_log_line;
use osmosis_run::runs::follow_log;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::RunKind;
use tokio::signal::unix::{SignalKind, signal};

use super::FoundRun;
use crate::arguments::LogsArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;

/// The log of a run of one kind, or of any.
pub(crate) async fn run(
    workspace: &Workspace,
    kind: Option<RunKind>,
    arguments: &LogsArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let folder = match kind {
        Some(kind) => RunFolder::existing(workspace, kind, &arguments.run).await?,
        None => {
            FoundRun::of_any_kind(workspace, &arguments.run)
                .await?
                .folder
        }
    };
    let rollout = arguments.rollout.as_deref();
    let any = if arguments.follow {
        match follow(&folder, rollout, output).await? {
            Some(any) => any,
            None => return Ok(Exit::Interrupted),
        }
    } else {
        print(&folder, rollout, output)?
    };
    match rollout {
        Some(id) if !any => Err(RunError::failed(
            RunErrorKind::RolloutNotFound,
            format!("no line of `{id}` in `{}`", folder.logs()),
        )
        .hint("rollout ids look like `r3-0`: row 3, run 0")),
        _ => Ok(Exit::Ok),
    }
}

/// Whether there was any line.
fn print(folder: &RunFolder, rollout: Option<&str>, output: &Output) -> Result<bool, RunError> {
    let mut kept: Vec<String> = vec![];
    let mut any = false;
    each_log_line(folder, rollout, |line| {
        any = true;
        if output.is_json() {
            kept.push(line.to_owned());
        } else {
            output.line(line);
        }
    })?;
    output.list(&kept);
    Ok(any)
}

/// Whether there was any line until the run ended; `None` after Ctrl-C, which does not touch the run.
async fn follow(
    folder: &RunFolder,
    rollout: Option<&str>,
    output: &Output,
) -> Result<Option<bool>, RunError> {
    // From the first line on: it may be what somebody waits for to interrupt us.
    let mut interrupt = signal(SignalKind::interrupt())
        .map_err(|error| RunError::failed(RunErrorKind::Signals, error.to_string()))?;
    let mut any = false;
    let following = follow_log(folder, rollout, |line| {
        any = true;
        output.line(line);
        output.log_line(line);
    });
    let ended = tokio::select! {
        ended = following => Some(ended),
        _ = interrupt.recv() => None,
    };
    match ended {
        Some(ended) => ended.map(|()| Some(any)),
        None => Ok(None),
    }
}
