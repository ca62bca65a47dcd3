//! `osmosis run rename`.

use osmosis_core::RunName;
use osmosis_run::RunError;
use osmosis_run::reports::MovedRun;
use osmosis_run::runs::kept;

use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

pub(super) async fn run(
    workspace: &Workspace,
    run: &str,
    to: &RunName,
    output: &Output,
) -> Result<Exit, RunError> {
    let renamed = kept::rename(workspace, run, to).await?;
    let former = &renamed.former_name;
    output.line(format_args!("Run `{former}` is called `{to}` now."));
    if !renamed.used_by.is_empty() {
        output.line(format_args!(
            "These name it `{former}`, and still find it until another run gets that name:"
        ));
        for one in &renamed.used_by {
            output.line(format_args!("  {one}"));
        }
    }
    output.operation("renamed", &MovedRun::renamed(&renamed));
    Ok(Exit::Ok)
}
