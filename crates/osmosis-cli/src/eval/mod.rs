//! `osmosis eval …`.

mod display;
mod info;
mod list;
mod logs;
mod pinned;
mod plan;
mod progress;
mod report;
mod show;
mod submit;
mod transcript;

use camino::Utf8Path;

use crate::arguments::EvalCommand;
use crate::error::{CliError, Exit};
use crate::output::Output;
use crate::workspace::Workspace;

pub(crate) async fn run(
    command: EvalCommand,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, CliError> {
    match command {
        EvalCommand::Submit(arguments) => submit::submit(arguments, workspace, output).await,
        EvalCommand::Resume(arguments) => submit::resume(arguments, workspace, output).await,
        EvalCommand::List => list::run(&Workspace::find(workspace, None)?, output).await,
        EvalCommand::Info { run } => {
            info::run(&Workspace::find(workspace, None)?, &run, output).await
        }
        EvalCommand::Show { run, row, calls } => {
            let workspace = Workspace::find(workspace, None)?;
            show::run(&workspace, &run, &row, calls, output).await
        }
        EvalCommand::Logs { run, rollout } => logs::run(
            &Workspace::find(workspace, None)?,
            &run,
            rollout.as_deref(),
            output,
        ),
    }
}
