//! `osmosis eval|train show RUN ROW --raw CALL`: a model call as it was recorded, byte for byte.

use std::io::{IsTerminal as _, Write as _};

use osmosis_run::reports::{RolloutDetails, raw_call};
use osmosis_run::runs::ReadRun;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{CallBody, RunKind};
use serde::Serialize;

use crate::arguments::CallPart;
use crate::command_line;
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::command_word;
use crate::terminal;
use crate::workspace::Workspace;

/// What is wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    /// From 0, as `--calls` numbers them.
    pub(super) number: u32,
    pub(super) part: Option<CallPart>,
}

/// With `--json`: text where the bytes are UTF-8, which they are unless a server sent something odd.
#[derive(Debug, Serialize)]
struct RawCall<'a> {
    number: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<&'a str>,
}

pub(super) async fn run(
    run: &ReadRun,
    kind: RunKind,
    rollouts: &[RolloutDetails],
    call: Call,
    workspace: &Workspace,
    output: &Output,
) -> Result<Exit, RunError> {
    let rollout = match rollouts {
        [rollout] => rollout,
        [] => {
            return Err(RunError::failed(
                RunErrorKind::RolloutNotFound,
                "no rollout",
            ));
        }
        [first, ..] => return Err(several(first.result.row_index, rollouts.len())),
    };
    let found = raw_call(&*run.store, &rollout.result.rollout_id, None, call.number).await?;
    let Some(body) = found else {
        return Err(no_call(
            rollout,
            call.number,
            kind,
            run.folder.name(),
            workspace,
        ));
    };
    if output.is_json() {
        output.details(&RawCall {
            number: call.number,
            request: text(call, CallPart::Request, &body)?,
            reply: text(call, CallPart::Reply, &body)?,
        });
        return Ok(Exit::Ok);
    }
    let bytes = match call.part {
        Some(CallPart::Request) => body.request.to_vec(),
        Some(CallPart::Reply) => body.response.to_vec(),
        None => [&body.request[..], b"\n", &body.response[..]].concat(),
    };
    let mut stdout = std::io::stdout();
    if stdout.is_terminal() {
        // A server may have sent anything, and a terminal obeys it; the shell's prompt has a line of its own.
        let text = String::from_utf8_lossy(&bytes);
        terminal::write_out(&format!("{}\n", text.trim_end_matches('\n')));
        return Ok(Exit::Ok);
    }
    let written = stdout.write_all(&bytes).and_then(|()| stdout.flush());
    match written {
        // The reader may have gone (`| head`).
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(RunError::failed(
            RunErrorKind::Io,
            format!("standard output: {error}"),
        )),
        Ok(()) | Err(_) => Ok(Exit::Ok),
    }
}

fn text(call: Call, part: CallPart, body: &CallBody) -> Result<Option<&str>, RunError> {
    if call.part.is_some_and(|wanted| wanted != part) {
        return Ok(None);
    }
    let (bytes, name) = match part {
        CallPart::Request => (&body.request, "request"),
        CallPart::Reply => (&body.response, "reply"),
    };
    std::str::from_utf8(bytes).map(Some).map_err(|_| {
        RunError::failed(
            RunErrorKind::Usage,
            format!("the {name} of call {} is no UTF-8 text", call.number),
        )
        .hint(format!(
            "`--raw {} --part {name}` without --json writes its bytes",
            call.number
        ))
    })
}

fn several(row: u64, count: usize) -> RunError {
    RunError::usage(
        RunErrorKind::Usage,
        format!("row {row} has {count} rollouts: which one is meant?"),
    )
    .hint(format!("give ROW.RUN, like `{row}.0`"))
}

fn no_call(
    rollout: &RolloutDetails,
    number: u32,
    kind: RunKind,
    run: &str,
    workspace: &Workspace,
) -> RunError {
    let result = &rollout.result;
    let place = format!("{}.{}", result.row_index, result.run_index);
    // The policy's calls of a run that only grades are in another one.
    let run = rollout.policy_calls_in.as_deref().unwrap_or(run);
    let command = [command_word(kind), "show", run, &place, "--calls"];
    let count = rollout.calls.len();
    RunError::failed(
        RunErrorKind::RolloutNotFound,
        format!("rollout {place} has no call {number}: it made {count} here"),
    )
    .hint(format!(
        "calls count from 0; `{}` lists them",
        command_line::suggest(&command, workspace)
    ))
}
