//! `osmosis eval …`.

mod compare;
mod failures;
pub(crate) mod gates;
mod info;
mod junit;
pub(crate) mod progress;
mod regrade;
mod report;
mod shared_report;
pub(crate) mod submit;

use camino::Utf8Path;
use osmosis_run::RunError;
use osmosis_run::eval::{budget, money, prices};
use osmosis_store::RunKind;

use crate::arguments::EvalCommand;
use crate::error::Exit;
use crate::output::Output;
use crate::runs::{list, logs, show, stop};
use crate::workspace::Workspace;

pub(crate) async fn run(
    command: EvalCommand,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    const KIND: RunKind = RunKind::Evaluation;
    let found = || Workspace::find(workspace, None);
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
        EvalCommand::List => list::run(&found()?, KIND, output).await,
        EvalCommand::Info(arguments) => info::run(&found()?, arguments, output).await,
        EvalCommand::Report(arguments) => shared_report::run(&found()?, arguments, output).await,
        EvalCommand::Compare(arguments) => compare::run(&found()?, &arguments, output).await,
        EvalCommand::Show { run, row, calls } => {
            show::run(&found()?, KIND, &run, &row, calls, output).await
        }
        EvalCommand::Stop(arguments) => {
            stop::run(&found()?, KIND, &arguments.run, arguments.ask(), output).await
        }
        EvalCommand::Logs { run, rollout } => {
            logs::run(&found()?, KIND, &run, rollout.as_deref(), output)
        }
    }
}
