//! `osmosis export RUN`: its rollouts as a file that other programs open.

use camino::Utf8Path;
use osmosis_core::config::{EvalConfig, TrainConfig};
use osmosis_core::{Redactor, RunName};
use osmosis_data::Row;
use osmosis_data::export::{Export, ExportFormat, ExportRecord, JsonlExport};
use osmosis_store::{RolloutPages, RolloutQuery, RolloutRecord, SqliteStore, Store};
use serde_json::json;

use crate::arguments::{ExportArguments, ExportFormatArgument};
use crate::dataset::data_error;
use crate::error::{CliError, Exit};
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::secrets;
use crate::workspace::{Workspace, absolute};

pub(crate) async fn run(
    arguments: &ExportArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, CliError> {
    let workspace = Workspace::find(workspace, None)?;
    let folder = RunFolder::of_any_kind(&workspace, &arguments.run)?;
    let store = SqliteStore::open_read_only(&folder.path)?;
    let record = store.run().await?.ok_or_else(|| {
        CliError::failed(
            "run_damaged",
            format!("run `{}` was never begun", arguments.run),
        )
    })?;
    let redactor = redactor(arguments, &record.config_toml, output);
    let format = match arguments.format {
        ExportFormatArgument::Jsonl => ExportFormat::Jsonl,
        ExportFormatArgument::Parquet => ExportFormat::Parquet,
    };
    let to_stdout = arguments.output.as_deref() == Some(Utf8Path::new("-"));
    let path = match &arguments.output {
        Some(path) if !to_stdout => absolute(path)?,
        _ => absolute(Utf8Path::new(&format!(
            "{}.{}",
            record.name,
            format.as_str()
        )))?,
    };
    let mut export = match (to_stdout, format) {
        (true, ExportFormat::Jsonl) => Export::Jsonl(JsonlExport::to(std::io::stdout(), redactor)),
        (true, ExportFormat::Parquet) => {
            return Err(
                CliError::usage("usage", "parquet can't be written to a terminal or pipe")
                    .hint("name a file with `--output FILE`"),
            );
        }
        (false, format) => {
            Export::create(format, &path, redactor).map_err(|error| data_error(&error))?
        }
    };
    let query = RolloutQuery {
        finished_only: !arguments.all,
        ..RolloutQuery::default()
    };
    let mut pages = RolloutPages::new(&store, query);
    while let Some(page) = pages.next().await? {
        for rollout in page {
            let record = exported(&store, &record.name, rollout).await?;
            export.write(&record).map_err(|error| data_error(&error))?;
        }
    }
    let count = export.finish().map_err(|error| data_error(&error))?;
    if !to_stdout {
        output.line(format_args!("{count} rollouts in {path}"));
        let resource = json!({"path": path, "format": format.as_str(), "rollouts": count});
        output.operation("exported", &resource);
    }
    Ok(Exit::Ok)
}

/// Takes out the run's secrets, as far as their values are known here.
fn redactor(arguments: &ExportArguments, config: &str, output: &Output) -> Redactor {
    let required = EvalConfig::parse("run.toml".into(), config)
        .map(|config| config.secrets.required)
        .or_else(|_| {
            TrainConfig::parse("run.toml".into(), config).map(|config| config.secrets.required)
        })
        .unwrap_or_default();
    let file = arguments.secrets.secrets_file.as_deref();
    let mut values = vec![];
    for name in required {
        match secrets::collect(std::slice::from_ref(&name), file) {
            Ok(found) => values.extend(found.into_iter().map(|(_, value)| value)),
            Err(_) => output.warn(format_args!(
                "the value of `{name}` is not known here, so it can't be redacted; \
                 give it with `--secrets-file`"
            )),
        }
    }
    Redactor::new(values)
}

async fn exported(
    store: &SqliteStore,
    run_name: &RunName,
    rollout: RolloutRecord,
) -> Result<ExportRecord, CliError> {
    let damaged = |message: String| CliError::failed("run_damaged", message);
    let stored = store
        .row(rollout.row_index)
        .await?
        .ok_or_else(|| damaged(format!("row {} is missing", rollout.row_index)))?;
    // Rows were checked when the run was made. What has no columns is for a workflow that takes it whole.
    let row = Row::from_body(stored.row_index, stored.line, &stored.body).ok();
    let (label, metadata) = row.map_or((None, None), |row| (row.label, row.metadata));
    let samples = store.samples(&rollout.id).await?;
    let mut record = ExportRecord::new(
        run_name.clone(),
        rollout.id,
        rollout.row_index,
        rollout.run_index,
        stored.body,
    );
    if let Some(outcome) = &rollout.outcome {
        record = record.ended(outcome);
    }
    Ok(ExportRecord {
        attempts: rollout.attempts,
        label,
        metadata,
        metrics: rollout.metrics,
        samples,
        model_calls: rollout.calls.model_calls,
        prompt_tokens: rollout.calls.prompt_tokens,
        completion_tokens: rollout.calls.completion_tokens,
        durations: rollout.durations,
        started_at_ms: rollout.started_at_ms,
        finished_at_ms: rollout.finished_at_ms,
        ..record
    })
}
