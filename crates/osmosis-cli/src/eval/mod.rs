//! `osmosis eval …`.

mod compare;
pub(crate) mod failures;
pub(crate) mod gates;
mod info;
mod junit;
pub(crate) mod progress;
mod regrade;
pub(crate) mod report;
mod several_models;
mod shared_report;
pub(crate) mod submit;
mod worst_rows;

use osmosis_run::RunError;
use osmosis_run::eval::{budget, money, prices};
use osmosis_store::RunKind;

use crate::arguments::EvalCommand;
use crate::error::Exit;
use crate::output::Output;
use crate::runs::{list, logs, show, stop};
use crate::workspace::WorkspaceChoice;

pub(crate) async fn run(
    command: EvalCommand,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    const KIND: RunKind = RunKind::Evaluation;
    let found = || workspace.find(None);
    match command {
        EvalCommand::Submit(arguments) => {
            Box::pin(submit::submit(*arguments, workspace, output)).await
        }
        EvalCommand::Resume(arguments) => {
            Box::pin(submit::resume(*arguments, workspace, output)).await
        }
        EvalCommand::Regrade(arguments) => {
            Box::pin(regrade::regrade(*arguments, workspace, output)).await
        }
        EvalCommand::List(arguments) => list::run(&found()?, KIND, &arguments, output).await,
        EvalCommand::Info(arguments) => info::run(&found()?, arguments, output).await,
        EvalCommand::Report(arguments) => shared_report::run(&found()?, arguments, output).await,
        EvalCommand::Compare(arguments) => compare::run(&found()?, &arguments, output).await,
        EvalCommand::Show(arguments) => show::run(&found()?, KIND, arguments, output).await,
        EvalCommand::Stop(arguments) => {
            stop::run(&found()?, KIND, &arguments.run, arguments.request(), output).await
        }
        EvalCommand::Logs(arguments) => logs::run(&found()?, Some(KIND), &arguments, output).await,
    }
}
