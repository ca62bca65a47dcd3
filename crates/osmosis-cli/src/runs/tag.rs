//! `osmosis run tag`.

use osmosis_run::RunError;
use osmosis_run::reports::TaggedRun;
use osmosis_run::runs::kept;

use crate::arguments::TagArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

pub(super) async fn run(
    workspace: &Workspace,
    arguments: &TagArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let TagArguments { run, tags, remove } = arguments;
    let (run, tags) = kept::tag(workspace, run, tags, remove).await?;
    let report = TaggedRun::of(&run, tags);
    if report.tags.is_empty() {
        output.line(format_args!("Run `{run}` has no tags."));
    } else {
        let tags: Vec<&str> = report
            .tags
            .iter()
            .map(osmosis_core::RunTag::as_str)
            .collect();
        output.line(format_args!("Run `{run}`: {}", tags.join(", ")));
    }
    output.operation("tagged", &report);
    Ok(Exit::Ok)
}
