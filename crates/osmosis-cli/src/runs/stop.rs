//! `osmosis eval|train stop RUN`: asks the process that holds the run to end, and waits until it has.

use osmosis_run::RunError;
use osmosis_run::runs::stop::{Ask, ask_to_stop, until_stopped};
use osmosis_store::RunKind;
use serde_json::json;

use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::{RunFolder, command_word};
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    kind: RunKind,
    run: &str,
    ask: Ask,
    output: &Output,
) -> Result<Exit, RunError> {
    let folder = RunFolder::existing(workspace, kind, run)?;
    let run = folder.name();
    let Some(holder) = ask_to_stop(&folder, ask)? else {
        output.line(format_args!("Run `{run}` is not running."));
        output.operation("not_running", &json!({ "run_name": run }));
        return Ok(Exit::Ok);
    };
    output.note(format_args!("Asked {holder} to stop; waiting for it."));
    until_stopped(&folder, &holder).await;
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
