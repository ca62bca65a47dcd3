//! `osmosis run archive` and `run restore`.

use osmosis_core::RunName;
use osmosis_run::RunError;
use osmosis_run::reports::{ArchivalReport, MovedRun};
use osmosis_run::runs::kept;

use crate::command_line;
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

pub(super) async fn archive(
    workspace: &Workspace,
    runs: &[String],
    output: &Output,
) -> Result<Exit, RunError> {
    let mut report = ArchivalReport::default();
    for run in runs {
        let archived = kept::archive(workspace, run).await?;
        let restore = command_line::suggest(&["run", "restore", &archived.id], workspace);
        output.line(format_args!(
            "Archived `{}`. Bring it back with:\n  {restore}",
            kept::reference_of(&archived.key)
        ));
        report.runs.push(MovedRun::archived(&archived, workspace));
    }
    output.operation("archived", &report);
    Ok(Exit::Ok)
}

pub(super) async fn restore(
    workspace: &Workspace,
    run: &str,
    name: Option<&RunName>,
    output: &Output,
) -> Result<Exit, RunError> {
    let restored = kept::restore(workspace, run, name).await?;
    output.line(format_args!(
        "Restored `{}`.",
        kept::reference_of(&restored)
    ));
    output.operation("restored", &MovedRun::restored(&restored, workspace));
    Ok(Exit::Ok)
}
