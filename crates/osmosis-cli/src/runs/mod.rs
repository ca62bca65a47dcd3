//! What every kind of run has: a name, facts it is pinned to, a store, and commands that look at it.

mod archive;
mod artifacts;
mod copy;
mod deletion;
pub(crate) mod list;
pub(crate) mod logs;
mod rename;
mod salvage;
pub(crate) mod show;
mod size;
pub(crate) mod stop;
mod tag;
mod verify;

use osmosis_run::RunError;
use osmosis_run::run_folder::RunFolder;

use crate::arguments::RunCommand;
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::WorkspaceChoice;

pub(crate) use osmosis_run::runs::{
    FoundRun, Opened, Pinned, ReadRun, RegradedFrom, RunToOpen, fresh_name, given_name, record_of,
};

/// Opens a run for reading. Says so where it can't be told who wrote its records.
pub(crate) async fn open_run(folder: RunFolder, output: &Output) -> Result<ReadRun, RunError> {
    let run = ReadRun::open(folder).await?;
    if let Some(why) = run.store.authenticity().missing() {
        output.note(format_args!(
            "Run `{}` is unauthenticated: {why}.",
            run.folder.name()
        ));
    }
    Ok(run)
}

/// `osmosis run …`.
pub(crate) async fn run(
    command: RunCommand,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = workspace.find(None)?;
    match command {
        RunCommand::Rm(arguments) => deletion::remove(&workspace, &arguments, output).await,
        RunCommand::Archive(arguments) => {
            archive::archive(&workspace, &arguments.runs, output).await
        }
        RunCommand::Restore(arguments) => {
            let name = arguments.new_name.as_ref();
            archive::restore(&workspace, &arguments.archived_run, name, output).await
        }
        RunCommand::Rename(arguments) => {
            rename::run(&workspace, &arguments.run, &arguments.name, output).await
        }
        RunCommand::Tag(arguments) => tag::run(&workspace, &arguments, output).await,
        RunCommand::Du(arguments) => size::run(&workspace, &arguments.runs, output).await,
        RunCommand::Prune(arguments) => deletion::prune(&workspace, &arguments, output).await,
        RunCommand::Copy(arguments) => copy::run(&workspace, &arguments, output).await,
        RunCommand::Verify(arguments) => verify::run(&workspace, &arguments.run, output).await,
        RunCommand::Salvage(arguments) => salvage::run(&workspace, &arguments, output).await,
        RunCommand::Logs(arguments) => logs::run(&workspace, None, &arguments, output).await,
    }
}
