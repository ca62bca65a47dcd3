//! What every kind of run has: a name, facts it is pinned to, a store, and commands that look at it.

mod artifacts;
pub(crate) mod list;
pub(crate) mod logs;
mod salvage;
pub(crate) mod show;
pub(crate) mod stop;
mod verify;

use camino::Utf8Path;
use osmosis_run::RunError;

use crate::arguments::RunCommand;
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

pub(crate) use osmosis_run::runs::{
    FoundRun, Opened, Pinned, ReadRun, RegradedFrom, RunToOpen, fresh_name, given_name, record_of,
};

/// `osmosis run …`.
pub(crate) fn run(
    command: RunCommand,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = Workspace::find(workspace, None)?;
    match command {
        RunCommand::Verify(arguments) => verify::run(&workspace, &arguments.run, output),
        RunCommand::Salvage(arguments) => salvage::run(&workspace, &arguments, output),
        RunCommand::Logs(arguments) => {
            let printing = logs::run(&workspace, None, &arguments, output);
            crate::runtime()?.block_on(printing)
        }
    }
}
