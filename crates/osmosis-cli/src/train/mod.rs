//! `osmosis train …`.

mod chart;
mod failures_so_far;
mod held_out_point;
mod info;
pub(crate) mod report;
mod serve;
mod sft;
mod sparkline;
pub(crate) mod submit;
mod svg;
mod view;
mod wording;

use osmosis_run::RunError;
use osmosis_store::RunKind;

use crate::arguments::TrainCommand;
use crate::error::Exit;
use crate::output::Output;
use crate::runs::{list, logs, show, stop};
use crate::workspace::WorkspaceChoice;

#[cfg(test)]
pub(crate) use held_out_point::tests::point;
pub(crate) use held_out_point::{failed_text, pass_text, reward_text};
pub(crate) use osmosis_run::train::plan::{Plan, Request};

pub(crate) async fn run(
    command: TrainCommand,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    const KIND: RunKind = RunKind::Training;
    let found = || workspace.find(None);
    match command {
        TrainCommand::Submit(arguments) => {
            Box::pin(submit::submit(*arguments, workspace, output)).await
        }
        TrainCommand::Sft(arguments) => Box::pin(sft::submit(*arguments, workspace, output)).await,
        TrainCommand::Resume(arguments) => {
            Box::pin(submit::resume(*arguments, workspace, output)).await
        }
        TrainCommand::Serve(arguments) => {
            Box::pin(serve::serve(arguments, workspace, output)).await
        }
        TrainCommand::List(arguments) => list::run(&found()?, KIND, &arguments, output).await,
        TrainCommand::Info { run } => info::run(&found()?, &run, output).await,
        TrainCommand::Show(arguments) => show::run(&found()?, KIND, arguments, output).await,
        TrainCommand::Stop(arguments) => {
            stop::run(&found()?, KIND, &arguments.run, arguments.request(), output).await
        }
        TrainCommand::Logs(arguments) => logs::run(&found()?, Some(KIND), &arguments, output).await,
    }
}
