//! `osmosis run copy`.

use osmosis_run::RunError;
use osmosis_run::reports::CopiedRunReport;
use osmosis_run::runs::copy::copy;

use crate::arguments::CopyArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    arguments: &CopyArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let copied = copy(workspace, &arguments.run, &arguments.to).await?;
    let report = CopiedRunReport::of(&copied);
    output.line(format_args!(
        "Copied run `{}` to {}: {} results, {} samples, {} model calls.",
        report.run, report.to, report.results, report.samples, report.calls
    ));
    output.operation("copied", &report);
    Ok(Exit::Ok)
}
