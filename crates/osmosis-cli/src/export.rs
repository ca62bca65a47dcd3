//! `osmosis export RUN`: its rollouts as a file that other programs open.

use camino::{Utf8Path, Utf8PathBuf};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use osmosis_core::config::{EvalConfig, TrainConfig};
use osmosis_core::{Redactor, RunName};
use osmosis_data::Row;
use osmosis_data::export::{
    Export, ExportFormat, ExportRecord, JsonlExport, RunFacts, SampleTalk, SftFilter, TalkExport,
    TalkFormat,
};
use osmosis_store::{
    RolloutPages, RolloutQuery, RolloutRecord, RunRecord, RunStatus, SqliteStore, Store,
};
use serde_json::{Value, json};

use crate::arguments::{ExportArguments, ExportFormatArgument};
use crate::dataset::data_error;
use crate::error::{CliError, Exit};
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, RegradedFrom};
use crate::secrets;
use crate::talk;
use crate::workspace::{Workspace, absolute};

/// Rollouts that are read at once: enough that reading and writing never wait for each other.
const AT_ONCE: usize = 8;

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
    let mut writer = Writer::begin(arguments, &record, redactor)?;
    let query = RolloutQuery {
        finished_only: !arguments.all,
        ..RolloutQuery::default()
    };
    let bar = progress_bar(output, &store).await?;
    let telling = writer.telling(&workspace, &record, output).await?;
    let mut pages = RolloutPages::new(&store, query);
    let mut rollouts = 0;
    while let Some(page) = pages.next().await? {
        let read = |rollout| read(&store, &record.name, rollout, telling.as_ref());
        let mut read = stream::iter(page).map(read).buffered(AT_ONCE);
        while let Some((exported, talks)) = read.try_next().await? {
            match &mut writer.export {
                Either::Records(export) => export.write(&exported),
                Either::Talks(export, run) => export.write(run, &exported, &talks),
            }
            .map_err(|error| data_error(&error))?;
            rollouts += 1;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let path = writer.path.clone();
    let format = writer.format.clone();
    let records = writer.finish()?;
    if let Some(path) = path {
        let of = if records == rollouts {
            String::new()
        } else {
            format!("{records} records of ")
        };
        output.line(format_args!("{of}{rollouts} rollouts in {path}"));
        let resource = json!({"path": path, "format": format, "rollouts": rollouts,
            "records": records});
        output.operation("exported", &resource);
    }
    Ok(Exit::Ok)
}

/// What the rollouts are written to.
struct Writer {
    export: Either,
    format: String,
    /// `None`: standard output.
    path: Option<Utf8PathBuf>,
    with_tokens: bool,
}

enum Either {
    Records(Box<Export>),
    Talks(Box<TalkExport>, RunFacts),
}

impl Writer {
    fn begin(
        arguments: &ExportArguments,
        run: &RunRecord,
        redactor: Redactor,
    ) -> Result<Self, CliError> {
        let no_text = |format: &str| {
            CliError::usage(
                "usage",
                format!("{format} can't be written to a terminal or pipe"),
            )
            .hint("name a file with `--output FILE`")
        };
        let filtered = arguments.passed || arguments.min_reward.is_some();
        if filtered && arguments.format != ExportFormatArgument::Sft {
            return Err(CliError::usage(
                "usage",
                "`--passed` and `--min-reward` choose rows for fine-tuning",
            )
            .hint("add `--format sft`"));
        }
        let format = match arguments.format {
            ExportFormatArgument::Jsonl => Ok(ExportFormat::Jsonl),
            ExportFormatArgument::Parquet => Ok(ExportFormat::Parquet),
            ExportFormatArgument::Messages => Err(TalkFormat::Messages),
            ExportFormatArgument::Sft => Err(TalkFormat::Sft),
            ExportFormatArgument::Atif => Err(TalkFormat::Atif),
            ExportFormatArgument::Inspect => Err(TalkFormat::Inspect),
        };
        let suffix = match format {
            Ok(format) => format.as_str(),
            Err(format) => format.suffix(),
        };
        let path = match &arguments.output {
            Some(path) if path == "-" => None,
            Some(path) if path.as_str().ends_with('/') => Some(absolute(path)?.join("")),
            Some(path) => Some(absolute(path)?),
            None => Some(absolute(Utf8Path::new(&format!("{}.{suffix}", run.name)))?),
        };
        let unwritable = |error: osmosis_data::DataError| data_error(&error);
        let export = match (format, &path) {
            (Ok(format), Some(path)) => Either::Records(Box::new(
                Export::create(format, path, redactor).map_err(unwritable)?,
            )),
            (Ok(ExportFormat::Jsonl), None) => Either::Records(Box::new(Export::Jsonl(
                JsonlExport::to(std::io::stdout(), redactor),
            ))),
            (Ok(ExportFormat::Parquet), None) => return Err(no_text("parquet")),
            (Err(format), path) => {
                let facts = run_facts(run);
                let filter = SftFilter {
                    min_reward: arguments.min_reward,
                    passed: arguments.passed,
                };
                let export = match path {
                    Some(path) => TalkExport::create(format, path, filter, &facts, redactor)
                        .map_err(unwritable)?,
                    None => TalkExport::to(format, std::io::stdout(), filter, redactor)
                        .ok_or_else(|| no_text("a log of Inspect"))?,
                };
                Either::Talks(Box::new(export), facts)
            }
        };
        Ok(Self {
            export,
            format: clap::ValueEnum::to_possible_value(&arguments.format)
                .map_or_else(String::new, |value| value.get_name().to_owned()),
            path,
            with_tokens: format == Err(TalkFormat::Atif),
        })
    }

    /// How conversations are read, when they are what is written.
    async fn telling(
        &self,
        workspace: &Workspace,
        run: &RunRecord,
        output: &Output,
    ) -> Result<Option<Telling>, CliError> {
        let Either::Talks(_, facts) = &self.export else {
            return Ok(None);
        };
        let mut calls_in = None;
        if let Some(from) = RegradedFrom::of(&Pinned::read(&run.pinned)?) {
            calls_in = from.open_calls(workspace).await;
            if calls_in.is_none() {
                output.warn(format_args!(
                    "run `{}` is not here as it was when its samples were graded again, so what was \
                     said is taken from the samples' messages: without tools, usage and times",
                    from.calls_in
                ));
            }
        }
        Ok(Some(Telling {
            calls_in,
            model: facts.model.clone(),
            with_tokens: self.with_tokens,
        }))
    }

    fn finish(self) -> Result<u64, CliError> {
        match self.export {
            Either::Records(export) => export.finish(),
            Either::Talks(export, run) => export.finish(&run),
        }
        .map_err(|error| data_error(&error))
    }
}

/// How conversations are read.
struct Telling {
    /// The run that has the calls, when it is another.
    calls_in: Option<SqliteStore>,
    model: String,
    with_tokens: bool,
}

/// What the run's own record says of it.
fn run_facts(run: &RunRecord) -> RunFacts {
    let pinned: Value = run.pinned.read().unwrap_or_default();
    let text = |name: &str| pinned[name].as_str().unwrap_or_default().to_owned();
    RunFacts {
        name: run.name.clone(),
        rollout: text("experiment.rollout"),
        model: text("experiment.model_path"),
        dataset: text("experiment.dataset"),
        n: ["evaluation.n", "training.n_samples_per_prompt"]
            .iter()
            .find_map(|name| pinned[*name].as_u64())
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(1),
        finished: run.status == RunStatus::Finished,
        created_at_ms: run.created_at_ms,
        finished_at_ms: run.finished_at_ms,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Moves on a terminal, and is not there elsewhere.
async fn progress_bar(output: &Output, store: &SqliteStore) -> Result<ProgressBar, CliError> {
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

async fn read(
    store: &SqliteStore,
    run_name: &RunName,
    rollout: RolloutRecord,
    telling: Option<&Telling>,
) -> Result<(ExportRecord, Vec<SampleTalk>), CliError> {
    let id = rollout.id.clone();
    let exported = exported(store, run_name, rollout).await?;
    let Some(telling) = telling else {
        return Ok((exported, vec![]));
    };
    let store = telling.calls_in.as_ref().unwrap_or(store);
    let samples = &exported.samples;
    let talks = talk::of(store, &id, samples, &telling.model, telling.with_tokens).await?;
    Ok((exported, talks))
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
