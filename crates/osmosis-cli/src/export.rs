//! `osmosis export RUN`: its rollouts as a file that other programs open.

use camino::Utf8Path;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use osmosis_data::export::{ExportFormat, SftFilter, TalkFormat, TokenFormat};
use osmosis_run::export::{ExportKind, ExportRequest, ExportTarget, Exported};
use osmosis_run::reports::ExportReport;
use osmosis_run::secrets::redactor_of;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{RunKind, RunRecord, Store};

use crate::arguments::{ExportArguments, ExportFormatArgument};
use crate::error::Exit;
use crate::output::Output;
use crate::runs::{FoundRun, open_run};
use crate::terminal;
use crate::workspace::{WorkspaceChoice, absolute};

pub(crate) async fn run(
    arguments: &ExportArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = workspace.find(None)?;
    let kinds = [RunKind::Evaluation, RunKind::Training];
    let folder = FoundRun::among(&kinds, &workspace, &arguments.run)
        .await?
        .folder;
    let read = open_run(folder, output).await?;
    let record = read.record(&arguments.run).await?;
    let notices = output.notices();
    let secrets = arguments.secrets.secrets_file.as_deref();
    let redactor = redactor_of(&record.config_toml, secrets, &*notices);
    let filter = filter(arguments)?;
    let kind = kind_of(arguments.format);
    let target = target(arguments, kind, &record)?;
    let path = match &target {
        ExportTarget::File(path) => Some(path.clone()),
        ExportTarget::Stream(_) => None,
    };
    let bar = progress_bar(output, &*read.store).await?;
    let request = ExportRequest {
        run: &read,
        record: &record,
        workspace: &workspace,
        kind,
        all: arguments.all,
        filter,
        redactor,
    };
    let exported = request.write(target, &*notices, || bar.inc(1)).await;
    bar.finish_and_clear();
    let Some(exported) = exported? else {
        return Ok(Exit::Ok);
    };
    for text in exported.left_out.expected() {
        output.note(text);
    }
    for text in exported.left_out.surprising() {
        output.warn(text);
    }
    if let Some(path) = path {
        let left_out = exported.left_out_report();
        let Exported {
            rollouts, records, ..
        } = exported;
        let of = if records == rollouts {
            String::new()
        } else {
            format!("{records} records of ")
        };
        output.line(format_args!("{of}{rollouts} rollouts in {path}"));
        let report = ExportReport {
            path,
            format: format_name(arguments.format),
            rollouts,
            records,
            left_out,
        };
        output.operation("exported", &report);
    }
    Ok(Exit::Ok)
}

fn kind_of(format: ExportFormatArgument) -> ExportKind {
    match format {
        ExportFormatArgument::Jsonl => ExportKind::Records(ExportFormat::Jsonl),
        ExportFormatArgument::Parquet => ExportKind::Records(ExportFormat::Parquet),
        ExportFormatArgument::Messages => ExportKind::Talks(TalkFormat::Messages),
        ExportFormatArgument::Sft => ExportKind::Talks(TalkFormat::Sft),
        ExportFormatArgument::Atif => ExportKind::Talks(TalkFormat::Atif),
        ExportFormatArgument::Inspect => ExportKind::Talks(TalkFormat::Inspect),
        ExportFormatArgument::Areal => ExportKind::Tokens(TokenFormat::Areal),
        ExportFormatArgument::Verl => ExportKind::Tokens(TokenFormat::Verl),
        ExportFormatArgument::Slime => ExportKind::Tokens(TokenFormat::Slime),
    }
}

/// As it is typed.
fn format_name(format: ExportFormatArgument) -> String {
    clap::ValueEnum::to_possible_value(&format)
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

fn filter(arguments: &ExportArguments) -> Result<SftFilter, RunError> {
    let filtered = arguments.passed || arguments.min_reward.is_some();
    if filtered && arguments.format != ExportFormatArgument::Sft {
        return Err(RunError::usage(
            RunErrorKind::Usage,
            "`--passed` and `--min-reward` choose rows for fine-tuning",
        )
        .hint("add `--format sft`"));
    }
    Ok(SftFilter {
        min_reward: arguments.min_reward,
        passed: arguments.passed,
    })
}

/// The file that is asked for, or one named after the run in the working directory.
fn target(
    arguments: &ExportArguments,
    kind: ExportKind,
    run: &RunRecord,
) -> Result<ExportTarget, RunError> {
    Ok(match &arguments.output {
        Some(path) if path == "-" => ExportTarget::Stream(terminal::export_target()),
        Some(path) if path.as_str().ends_with('/') => ExportTarget::File(absolute(path)?.join("")),
        Some(path) => ExportTarget::File(absolute(path)?),
        None => {
            let name = format!("{}.{}", run.name, kind.suffix());
            ExportTarget::File(absolute(Utf8Path::new(&name))?)
        }
    })
}

/// Moves on a terminal, and is not there elsewhere.
async fn progress_bar(output: &Output, store: &dyn Store) -> Result<ProgressBar, RunError> {
    if !output.moves() {
        return Ok(ProgressBar::hidden());
    }
    let total = store.counts().await?.total();
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(8));
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} rollouts {eta}") {
        bar.set_style(style.progress_chars("━╸ "));
    }
    Ok(bar)
}
