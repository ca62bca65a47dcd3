//! `osmosis eval|train list`.

use osmosis_run::RunError;
use osmosis_run::reports::RunSummary;
use osmosis_run::runs::ReadRun;
use osmosis_store::RunKind;

use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::{RunFolder, command_word};
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    kind: RunKind,
    output: &Output,
) -> Result<Exit, RunError> {
    let mut items = vec![];
    for name in RunFolder::names(workspace, kind) {
        let folder = RunFolder::existing(workspace, kind, &name)?;
        // One run that can't be read must not hide the others.
        match summary(&folder).await {
            Ok(Some(summary)) => {
                output.line(line(&summary));
                items.push(summary);
            }
            Ok(None) => output.warn(format_args!("run `{name}` was never begun")),
            Err(error) => output.warn(format_args!("run `{name}`: {error}")),
        }
    }
    if items.is_empty() {
        output.line(format_args!(
            "No runs yet. `osmosis {} submit CFG` makes one.",
            command_word(kind)
        ));
    }
    output.list(&items);
    Ok(Exit::Ok)
}

async fn summary(folder: &RunFolder) -> Result<Option<RunSummary>, RunError> {
    let run = ReadRun::open(folder.clone())?;
    RunSummary::of(&run).await
}

fn line(summary: &RunSummary) -> String {
    let RunSummary {
        run_name,
        status,
        done,
        total,
        created_at,
        output_path: _,
        steps,
    } = summary;
    match steps {
        Some(steps) => {
            format!("{run_name:<40} {status:<12} step {steps:<6} {done:>7} rollouts {created_at}")
        }
        None => format!("{run_name:<40} {status:<12} {done:>7}/{total:<7} {created_at}"),
    }
}
