//! `osmosis run salvage`.

use std::fs;

use camino::Utf8Path;
use osmosis_core::RunName;
use osmosis_run::reports::{KeptCounts, LostReport, SalvagedRun};
use osmosis_run::{RunError, RunErrorKind, io_error as io};
use osmosis_store::{LostRecord, RunKind, SalvageReport, SqliteStore};

use super::{FoundRun, given_name};
use crate::arguments::SalvageArguments;
use crate::command_line;
use crate::error::Exit;
use crate::output::Output;
use crate::private_files;
use crate::run_folder::{RunFolder, command_word};
use crate::workspace::Workspace;

/// Losses that are shown to people; JSON has all of them.
const SHOWN: usize = 20;

/// The store's own files, which are written anew, and what a resume writes anew from them.
const NOT_COPIED: [&str; 7] = [
    "run.db",
    "run.db-wal",
    "run.db-shm",
    "run.lock",
    "segments",
    "metrics.json",
    "index.jsonl",
];

pub(crate) fn run(
    workspace: &Workspace,
    arguments: &SalvageArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let found = FoundRun::of_any_kind(workspace, &arguments.run)?;
    let name = match given_name(arguments.to.as_deref())? {
        Some(name) => name,
        None => RunName::new(format!("{}-salvaged", found.name)).map_err(|error| {
            RunError::usage(
                RunErrorKind::Usage,
                format!("choose a name with --to: {error}"),
            )
        })?,
    };
    let target = RunFolder::of(workspace, found.kind, &name);
    if target.path.exists() {
        return Err(RunError::failed(
            RunErrorKind::FileExists,
            format!("`{}` is there already", target.path),
        )
        .hint("choose another name with `--to NAME`"));
    }
    let report = SqliteStore::salvage(&found.folder.path, &target.path, &name)?;
    let copied = copy_rest(&found.folder.path, &target.path);
    private_files::opened(&target.path);
    copied?;
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

/// Artifacts, checkpoints, logs: everything beside the store's own files. Links are made anew and never followed.
fn copy_rest(from: &Utf8Path, to: &Utf8Path) -> Result<(), RunError> {
    let mut folders = vec![(from.as_std_path().to_owned(), to.as_std_path().to_owned())];
    let failed = |error: std::io::Error| io(to, &error);
    let mut at_top = true;
    while let Some((from, to)) = folders.pop() {
        for entry in fs::read_dir(&from).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if at_top && NOT_COPIED.iter().any(|ours| name == *ours) {
                continue;
            }
            let (source, target) = (entry.path(), to.join(&name));
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() {
                fs::create_dir_all(&target).map_err(failed)?;
                folders.push((source, target));
            } else if kind.is_symlink() {
                let leads_to = fs::read_link(&source).map_err(failed)?;
                std::os::unix::fs::symlink(leads_to, &target).map_err(failed)?;
            } else if kind.is_file() {
                fs::copy(&source, &target).map_err(failed)?;
            }
        }
        at_top = false;
    }
    Ok(())
}
