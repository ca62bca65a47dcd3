//! `osmosis eval|train stop RUN`: asks those who work on the run to end, and waits until they have.

use osmosis_run::RunError;
use osmosis_run::reports::StoppedRun;
use osmosis_run::runs::record_of;
use osmosis_run::runs::stop::{StopTarget, ask_to_stop, until_stopped};
use osmosis_store::{RunKind, RunStatus, StopRequest};

use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::{RunFolder, command_word};
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    kind: RunKind,
    run: &str,
    request: StopRequest,
    output: &Output,
) -> Result<Exit, RunError> {
    let folder = RunFolder::existing(workspace, kind, run).await?;
    let run = folder.name();
    let told = |pid, resume| StoppedRun {
        run_name: run.to_owned(),
        pid,
        resume,
    };
    let asked = ask_to_stop(&folder, request).await?;
    let pid = match &asked {
        StopTarget::Nobody => None,
        StopTarget::Process(holder) => {
            output.note(format_args!("Asked {holder} to stop; waiting for it."));
            Some(holder.pid)
        }
        StopTarget::Nodes(nodes) => {
            output.note(format_args!(
                "The run's controller is gone. Asked {nodes} nodes to stop; waiting for them."
            ));
            None
        }
    };
    if asked == StopTarget::Nobody {
        if is_finished(&folder).await {
            output.line(format_args!(
                "Run `{run}` is finished: there is nothing to stop."
            ));
            output.operation("finished", &told(None, None));
        } else {
            output.line(format_args!("Run `{run}` is not running."));
            output.operation("not_running", &told(None, None));
        }
        return Ok(Exit::Ok);
    }
    until_stopped(&folder, &asked).await?;
    // It may have come to its end before it got to stopping.
    if is_finished(&folder).await {
        output.line(format_args!("Run `{run}` is finished."));
        output.operation("finished", &told(pid, None));
        return Ok(Exit::Ok);
    }
    let resume = crate::command_line::suggest(&[command_word(kind), "resume", run], workspace);
    output.line(format_args!(
        "Run `{run}` has stopped. Resume with:\n  {resume}"
    ));
    output.operation("stopped", &told(pid, Some(resume)));
    Ok(Exit::Ok)
}

/// Whether the run has come to its end, so that there is nothing to stop and nothing to resume.
async fn is_finished(folder: &RunFolder) -> bool {
    let record = record_of(folder, folder.name()).await;
    record.is_ok_and(|record| record.status == RunStatus::Finished)
}
