//! `osmosis eval|train stop RUN`: asks the process that holds the run to end, and waits until it has.

use std::time::Duration;

use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{Holder, RunKind};
use osmosis_store_sqlite::SqliteStore;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::{RunFolder, command_word};
use crate::workspace::Workspace;

/// The lock of another process gives no event to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How a process is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Like one Ctrl-C: it finishes what it has begun.
    ToDrain,
    /// At once; what was under way is run again by a resume.
    ToStopNow,
}

pub(crate) async fn run(
    workspace: &Workspace,
    kind: RunKind,
    run: &str,
    ask: Ask,
    output: &Output,
) -> Result<Exit, RunError> {
    let folder = RunFolder::existing(workspace, kind, run)?;
    let run = folder.name();
    let Some(holder) = SqliteStore::holder(&folder.path) else {
        output.line(format_args!("Run `{run}` is not running."));
        output.operation("not_running", &json!({ "run_name": run }));
        return Ok(Exit::Ok);
    };
    signal(&holder, ask, run)?;
    output.note(format_args!("Asked {holder} to stop; waiting for it."));
    while SqliteStore::holder(&folder.path).is_some_and(|now| now.pid == holder.pid) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    let resume = crate::command_line::suggest(&[command_word(kind), "resume", run], workspace);
    output.line(format_args!(
        "Run `{run}` has stopped. Resume with:\n  {resume}"
    ));
    output.operation(
        "stopped",
        &json!({ "run_name": run, "pid": holder.pid, "resume": resume }),
    );
    Ok(Exit::Ok)
}

fn signal(holder: &Holder, ask: Ask, run: &str) -> Result<(), RunError> {
    let here = rustix::system::uname();
    if here.nodename().to_string_lossy() != holder.host {
        return Err(RunError::failed(
            RunErrorKind::RunElsewhere,
            format!("run `{run}` is held by {holder}, on another machine"),
        )
        .hint(format!(
            "stop it there: ssh {} kill {}",
            holder.host, holder.pid
        )));
    }
    let signal = match ask {
        Ask::ToDrain => Signal::INT,
        Ask::ToStopNow => Signal::TERM,
    };
    let cannot = |why: String| {
        RunError::failed(
            RunErrorKind::StopFailed,
            format!("{holder} can't be signalled: {why}"),
        )
    };
    let pid = i32::try_from(holder.pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| cannot("its process id is not known".to_owned()))?;
    kill_process(pid, signal).map_err(|error| cannot(error.to_string()))
}
