//! `osmosis run salvage`.

use osmosis_run::RunError;
use osmosis_run::reports::{LostReport, SalvagedRun};
use osmosis_run::runs::salvage::salvage;

use super::given_name;
use crate::arguments::SalvageArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

/// Losses that are shown to people; JSON has all of them.
const SHOWN: usize = 20;

pub(crate) async fn run(
    workspace: &Workspace,
    arguments: &SalvageArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let name = given_name(arguments.to.as_deref())?;
    let salvaged = salvage(workspace, &arguments.run, name).await?;
    let report = SalvagedRun::of(&salvaged, workspace);
    tell(&report, output);
    output.operation("salvaged", &report);
    Ok(Exit::Ok)
}

fn tell(report: &SalvagedRun, output: &Output) {
    let (name, kept) = (&report.run_name, &report.kept);
    output.line(format_args!(
        "Made run `{name}` of what is whole in `{}`: {} results, {} model calls, {} rollouts that wait.",
        report.from, kept.results, kept.calls, report.waiting
    ));
    if report.lost.is_empty() {
        output.line("Nothing was lost.");
    } else {
        output.line(format_args!("Lost ({}):", report.lost.len()));
    }
    for LostReport { what, why } in report.lost.iter().take(SHOWN) {
        output.line(format_args!("  {what}: {why}"));
    }
    let more = report.lost.len().saturating_sub(SHOWN);
    if more > 0 {
        output.line(format_args!("  and {more} more; `--json` lists them"));
    }
    match &report.resume {
        Some(_) if !report.resumable => output.line(format_args!(
            "The run's own record is lost. Submit the same config again with `--name {name}` to go on."
        )),
        Some(command) => output.line(format_args!(
            "What was lost runs again with:\n  {command}"
        )),
        None => {}
    }
}
