//! `osmosis eval|train show RUN [ROW]`: rollouts in a list, or one of them with all that explains its score.

mod calls;
mod list;
mod raw;
mod render;

use osmosis_run::reports::{RolloutDetails, Wanted};
use osmosis_run::runs::ReadRun;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::RunKind;

use self::render::Rendered;
pub(crate) use self::render::{outcome_text, push_failure, reward_text};
use crate::arguments::ShowArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::{RunFolder, command_word};
use crate::runs::open_run;
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    kind: RunKind,
    arguments: ShowArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let folder = RunFolder::existing(workspace, kind, &arguments.run).await?;
    let run = open_run(folder, output).await?;
    let Some(row) = &arguments.row else {
        return list::run(&run, kind, arguments.list.search(), workspace, output).await;
    };
    let wanted = Wanted {
        ground_truth: true,
        exchanges: arguments.calls,
        ..Wanted::default()
    };
    let found = rollouts(&run, row, wanted).await?;
    if let Some(number) = arguments.raw {
        let call = raw::Call {
            number,
            part: arguments.part,
        };
        return raw::run(&run, kind, &found, call, workspace, output).await;
    }
    for details in &found {
        let rendered = Rendered {
            details,
            run: run.folder.name(),
            kind,
            calls: arguments.calls,
            workspace,
        };
        output.line(rendered.text());
    }
    output.details(&found);
    Ok(Exit::Ok)
}

/// The rollouts that `ROW` or `ROW.RUN` names: at least one.
async fn rollouts(
    run: &ReadRun,
    row: &str,
    wanted: Wanted,
) -> Result<Vec<RolloutDetails>, RunError> {
    let (row_index, run_index) = parse_row(row)?;
    let (store, folder) = (&*run.store, &run.folder);
    let found = RolloutDetails::of_row(store, folder, row_index, run_index, wanted).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    let name = folder.name();
    let total = store.counts().await?.total();
    let kind = run.record(name).await?.kind;
    Err(RunError::failed(
        RunErrorKind::RolloutNotFound,
        format!("run `{name}` has no rollout `{row}`"),
    )
    .hint(format!(
        "rows count from 0 and the run has {total} rollouts; `osmosis {} show {name}` lists them",
        command_word(kind)
    )))
}

/// `3` or `3.1`.
fn parse_row(text: &str) -> Result<(u64, Option<u32>), RunError> {
    let bad = || {
        RunError::usage(RunErrorKind::Usage, format!("`{text}` is no row"))
            .hint("give a row index from 0, or ROW.RUN, like `3` or `3.1`")
    };
    match text.split_once('.') {
        None => Ok((text.parse().map_err(|_| bad())?, None)),
        Some((row, run)) => Ok((
            row.parse().map_err(|_| bad())?,
            Some(run.parse().map_err(|_| bad())?),
        )),
    }
}
