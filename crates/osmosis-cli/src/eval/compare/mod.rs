//! `osmosis eval compare A B [C…]`: every other run beside the first, paired by dataset row.

mod render;

use osmosis_run::reports::Comparison;
use osmosis_run::runs::ReadRun;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::RunKind;

use crate::arguments::CompareArguments;
use crate::error::Exit;
use crate::layout;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::runs::open_run;
use crate::table::screen_width;
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    arguments: &CompareArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let mut runs: Vec<ReadRun> = vec![];
    for name in &arguments.runs {
        // All names are checked before anything large is read.
        let folder = RunFolder::existing(workspace, RunKind::Evaluation, name).await?;
        if let Some(twice) = runs.iter().find(|run| run.folder.path == folder.path) {
            return Err(RunError::usage(
                RunErrorKind::Usage,
                format!("run `{}` is given twice", twice.folder.name()),
            )
            .hint("a run does not differ from itself; name two different runs"));
        }
        runs.push(open_run(folder, output).await?);
    }
    let comparison = Comparison::of(runs, arguments.shared_rows, workspace).await?;
    let first = &comparison.first.run_name;
    for compared in &comparison.others {
        let text = render::text(first, compared);
        output.line(layout::wrapped(&text, screen_width()));
    }
    if comparison.others.len() > 1 {
        output.line(format_args!(
            "\n  {} comparisons with `{first}`: p values are adjusted by Holm's correction over all of their tests",
            comparison.others.len(),
        ));
    }
    if output.is_verbose() {
        output.line(render::DEFINITIONS);
    }
    output.details(&comparison);
    Ok(Exit::Ok)
}
