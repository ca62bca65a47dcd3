//! `osmosis run salvage`.

use osmosis_core::RunName;
use osmosis_run::RunError;
use osmosis_run::reports::{KeptCounts, LostReport, SalvagedRun};
use osmosis_run::runs::salvage::{Salvaged, salvage};
use osmosis_store::{LostRecord, RunKind, SalvageReport};

use super::{FoundRun, given_name};
use crate::arguments::SalvageArguments;
use crate::command_line;
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::command_word;
use crate::workspace::Workspace;

/// Losses that are shown to people; JSON has all of them.
const SHOWN: usize = 20;

pub(crate) fn run(
    workspace: &Workspace,
    arguments: &SalvageArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let name = given_name(arguments.to.as_deref())?;
    let Salvaged {
        from: found,
        name,
        folder: target,
        report,
    } = salvage(workspace, &arguments.run, name)?;
    tell(&found, &name, &report, workspace, output);
    let lost = report.lost.iter().map(|lost| LostReport {
        what: lost.what.clone(),
        why: lost.why.clone(),
    });
    output.operation(
        "salvaged",
        &SalvagedRun {
            run_name: name.clone(),
            from: found.to_string(),
            output_path: target.path,
            resumable: report.has_record,
            kept: KeptCounts {
                rows: report.rows,
                results: report.results,
                calls: report.calls,
                steps: report.steps,
                batches: report.batches,
            },
            waiting: report.waiting,
            lost: lost.collect(),
            resume: resume_command(&found, &name, workspace),
        },
    );
    Ok(Exit::Ok)
}

fn resume_command(found: &FoundRun, name: &RunName, workspace: &Workspace) -> Option<String> {
    let name = name.as_str();
    match found.kind {
        RunKind::Evaluation | RunKind::Training => Some(command_line::suggest(
            &[command_word(found.kind), "resume", name],
            workspace,
        )),
        RunKind::Serving => None,
    }
}

fn tell(
    found: &FoundRun,
    name: &RunName,
    report: &SalvageReport,
    workspace: &Workspace,
    output: &Output,
) {
    output.line(format_args!(
        "Made run `{name}` of what is whole in `{found}`: {} results, {} model calls, {} rollouts that wait.",
        report.results, report.calls, report.waiting
    ));
    if report.lost.is_empty() {
        output.line("Nothing was lost.");
    } else {
        output.line(format_args!("Lost ({}):", report.lost.len()));
    }
    for LostRecord { what, why } in report.lost.iter().take(SHOWN) {
        output.line(format_args!("  {what}: {why}"));
    }
    let more = report.lost.len().saturating_sub(SHOWN);
    if more > 0 {
        output.line(format_args!("  and {more} more; `--json` lists them"));
    }
    match resume_command(found, name, workspace) {
        Some(_) if !report.has_record => output.line(format_args!(
            "The run's own record is lost. Submit the same config again with `--name {name}` to go on."
        )),
        Some(command) => output.line(format_args!(
            "What was lost runs again with:\n  {command}"
        )),
        None => {}
    }
}
