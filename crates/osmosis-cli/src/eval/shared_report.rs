//! `osmosis eval report RUN`: a file to share.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_run::reports::{Comparison, SharedReport, WrittenReport};
use osmosis_run::secrets::redactor_of;
use osmosis_run::{RunError, io_error};
use osmosis_store::RunKind;

use super::gates::{self, NOT_JUDGED};
use crate::arguments::ReportArguments;
use crate::error::Exit;
use crate::output::Output;
use crate::private_files;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, open_run};
use crate::terminal;
use crate::workspace::{Workspace, absolute};

pub(crate) async fn run(
    workspace: &Workspace,
    arguments: ReportArguments,
    output: &Output,
) -> Result<Exit, RunError> {
    let open = async |name: &str| {
        let folder = RunFolder::existing(workspace, RunKind::Evaluation, name).await?;
        open_run(folder, output).await
    };
    let read = open(&arguments.run).await?;
    let comparison = match &arguments.compare {
        Some(other) => {
            let runs = vec![open(other).await?, read.clone()];
            Some(Comparison::of(runs, arguments.shared_rows, workspace).await?)
        }
        None => None,
    };
    let record = read.record(&arguments.run).await?;
    let secrets = arguments.secrets.secrets_file.as_deref();
    let redactor = redactor_of(&record.config_toml, secrets, &*output.notices());
    let n = Pinned::read(&record.pinned)?
        .rollouts_per_row()
        .unwrap_or(1);
    for gate in &arguments.fail_under {
        gate.check_for(n)?;
    }
    let report = SharedReport::of(
        &*read.store,
        &record,
        &read.folder,
        read.held,
        comparison,
        &redactor,
    )
    .await?
    .judged_by(&arguments.fail_under);
    let out = arguments.out.as_deref();
    let markdown = arguments.markdown || out.is_some_and(|path| path.extension() == Some("md"));
    let text = if markdown {
        report.markdown()
    } else {
        report.html()
    };
    let path = match out {
        Some(path) if path == "-" => None,
        Some(path) => Some(absolute(path)?),
        // Markdown is for a pipe, a page for a browser.
        None if markdown || output.is_json() => None,
        None => Some(absolute(Utf8Path::new(&format!("{}.html", record.name)))?),
    };
    match path {
        Some(path) => {
            write(&path, &text)?;
            output.line(format_args!("Report of `{}` in {path}", record.name));
            let format = if markdown { "markdown" } else { "html" };
            output.operation(
                "written",
                &WrittenReport {
                    run_name: record.name,
                    path,
                    format: format.to_owned(),
                },
            );
        }
        None if output.is_json() => output.details(&report),
        // Exact, as an export is: what would turn a terminal around is escaped in it.
        None => terminal::write_out(&text),
    }
    if arguments.fail_under.is_empty() {
        return Ok(Exit::Ok);
    }
    if report.run.is_incomplete() {
        output.note(NOT_JUDGED);
        return Ok(Exit::Incomplete);
    }
    Ok(gates::tell(&report.run, output))
}

/// A name never stands for half a report.
fn write(path: &Utf8Path, text: &str) -> Result<(), RunError> {
    let failed = |error: io::Error| io_error(path, &error);
    if let Some(parent) = path.parent() {
        private_files::create_shared_folder(parent).map_err(failed)?;
    }
    let temporary = Utf8PathBuf::from(format!("{path}.partial"));
    std::fs::write(&temporary, text)
        .and_then(|()| private_files::share(&temporary))
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(failed)
}
