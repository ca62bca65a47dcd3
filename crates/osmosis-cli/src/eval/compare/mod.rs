//! `osmosis eval compare A B [C…]`: every other run beside the first, paired by dataset row.

mod render;

use osmosis_run::reports::Comparison;
use osmosis_run::runs::ReadRun;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::RunKind;

use crate::arguments::CompareArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    arguments: &CompareArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let names = &arguments.runs;
    if let Some(twice) = names
        .iter()
        .enumerate()
        .find_map(|(place, name)| names[..place].contains(name).then_some(name))
    {
        return Err(
            RunError::usage(RunErrorKind::Usage, format!("run `{twice}` is given twice"))
                .hint("a run does not differ from itself; name two different runs"),
        );
    }
    let mut runs = vec![];
    for name in names {
        // All names are checked before anything large is read.
        let folder = RunFolder::existing(workspace, RunKind::Evaluation, name)?;
        runs.push(ReadRun::open(folder)?);
    }
    let comparison = Comparison::of(runs, arguments.shared_rows, workspace).await?;
    let first = &comparison.first.run_name;
    for compared in &comparison.others {
        output.line(render::text(first, compared));
    }
    if comparison.others.len() > 1 {
        output.line(format_args!(
            "\n  {} comparisons with `{first}`: p values are adjusted by Holm's correction over all of their tests",
            comparison.others.len(),
        ));
    }
    output.line(render::DEFINITIONS);
    output.details(&comparison);
    Ok(Exit::Ok)
}
