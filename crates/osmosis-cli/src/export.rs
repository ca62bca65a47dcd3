//! `osmosis export RUN`: its rollouts as a file that other programs open.

mod tokens;

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use osmosis_core::config::{EvalConfig, Secrets, TrainConfig};
use osmosis_core::{Redactor, RolloutId, RunName, Sample};
use osmosis_data::export::{
    Export, ExportFormat, ExportRecord, JsonlExport, RunFacts, SampleTalk, SftFilter, TalkExport,
    TalkFormat, TokenExport, TokenFormat, TokenRow,
};
use osmosis_data::{DataError, DataErrorKind, Row};
use osmosis_run::reports::ExportReport;
use osmosis_run::train::HeldOutRows;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{
    RolloutPages, RolloutQuery, RolloutRecord, RowRecord, RunKind, RunRecord, RunStatus, Store,
};

use self::tokens::{LeftOut, LeftOutCounts, TokenRows, held_out_rows_of};
use crate::arguments::{ExportArguments, ExportFormatArgument};
use crate::checked_dataset::data_error;
use crate::error::Exit;
use crate::output::Output;
use crate::runs::{FoundRun, Pinned, ReadRun};
use crate::secrets;
use crate::talk::{self, Telling};
use crate::terminal;
use crate::workspace::{Workspace, absolute};

/// Rollouts that are read in one go: few enough that long ones fit into memory.
const BATCH: usize = 8;
/// Batches that are read while one is written.
const AT_ONCE: usize = 3;

pub(crate) async fn run(
    arguments: &ExportArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = Workspace::find(workspace, None)?;
    let kinds = [RunKind::Evaluation, RunKind::Training];
    let folder = FoundRun::among(&kinds, &workspace, &arguments.run)
        .await?
        .folder;
    let read = ReadRun::open(folder).await?;
    let record = read.record(&arguments.run).await?;
    let store = read.store;
    let secrets_file = arguments.secrets.secrets_file.as_deref();
    let redactor = redactor(secrets_file, &record.config_toml, output);
    let mut writer = Writer::begin(arguments, &record, redactor)?;
    let query = RolloutQuery {
        finished_only: !arguments.all,
        ..RolloutQuery::default()
    };
    let bar = progress_bar(output, &*store).await?;
    let telling = writer.telling();
    let token_rows = match &writer.export {
        Either::Tokens(..) => Some(TokenRows::of(&record)?),
        Either::Records(_) | Either::Talks(..) => None,
    };
    let held_out = if writer.kind.is_trained_on() {
        held_out_rows_of(&record, output)?
    } else {
        HeldOutRows::None
    };
    let calls_in = if telling.is_some() || token_rows.is_some() {
        elsewhere(&record, &workspace, output).await?
    } else {
        None
    };
    let source = Source {
        store,
        run_name: record.name,
        telling,
        token_rows,
        held_out,
        calls_in,
    };
    let mut pages = RolloutPages::new(&*source.store, query);
    let mut rollouts = 0;
    let mut left_out = LeftOutCounts::default();
    while let Some(page) = pages.next().await? {
        let batches = stream::iter(page.chunks(BATCH));
        let mut batches = batches.map(|batch| source.read(batch)).buffered(AT_ONCE);
        while let Some(batch) = batches.try_next().await? {
            let records = batch.records.iter().zip(&batch.talks).zip(batch.rows);
            for ((record, talks), rows) in records {
                let written = match (&mut writer.export, rows) {
                    (Either::Records(export), _) => export.write(record),
                    (Either::Talks(export, run), Ok(_)) => export.write(run, record, talks),
                    (Either::Tokens(export, run), Ok(rows)) => {
                        export.write(run, record, &rows, talks)
                    }
                    (Either::Talks(..) | Either::Tokens(..), Err(why)) => {
                        left_out.add(why);
                        Ok(())
                    }
                };
                if reader_has_gone(written)?.is_none() {
                    bar.finish_and_clear();
                    return Ok(Exit::Ok);
                }
                rollouts += 1;
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    if let Either::Tokens(export, _) = &writer.export
        && export.rows() == 0
    {
        return Err(left_out.error(&arguments.run));
    }
    left_out.tell(output);
    let kind = writer.kind;
    let path = writer.path.clone();
    let format = writer.format.clone();
    let Some(records) = reader_has_gone(writer.finish())? else {
        return Ok(Exit::Ok);
    };
    if let Some(path) = path {
        let of = if records == rollouts {
            String::new()
        } else {
            format!("{records} records of ")
        };
        output.line(format_args!("{of}{rollouts} rollouts in {path}"));
        let report = ExportReport {
            path,
            format,
            rollouts,
            records,
            left_out: match kind {
                Kind::Tokens(_) => Some(left_out.report()),
                Kind::Talks(TalkFormat::Sft) => Some(left_out.held_out()),
                Kind::Talks(_) | Kind::Records(_) => None,
            },
        };
        output.operation("exported", &report);
    }
    Ok(Exit::Ok)
}

/// `None` when whoever reads the export has read enough (`| head`), which is no error.
fn reader_has_gone<T>(written: Result<T, DataError>) -> Result<Option<T>, RunError> {
    match written {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == DataErrorKind::OutputClosed => Ok(None),
        Err(error) => Err(data_error(&error)),
    }
}

/// The run that has the calls of one that was only graded again.
async fn elsewhere(
    run: &RunRecord,
    workspace: &Workspace,
    output: &Output,
) -> Result<Option<Arc<dyn Store>>, RunError> {
    let Some(from) = Pinned::read(&run.pinned)?.regraded_from else {
        return Ok(None);
    };
    let found = from.open_calls(workspace).await;
    if found.is_none() {
        output.warn(format_args!(
            "run `{}`, which has the model calls, is not here as it was: what was said is taken from \
             the samples' messages, without tools, usage and times",
            from.calls_in
        ));
    }
    Ok(found)
}

/// What the rollouts are written to.
struct Writer {
    export: Either,
    format: String,
    /// `None`: standard output.
    path: Option<Utf8PathBuf>,
    kind: Kind,
}

enum Either {
    Records(Box<Export>),
    Talks(Box<TalkExport>, RunFacts),
    Tokens(TokenExport, RunFacts),
}

/// What kind of export is asked for.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Records(ExportFormat),
    Talks(TalkFormat),
    Tokens(TokenFormat),
}

impl Kind {
    fn of(format: ExportFormatArgument) -> Self {
        match format {
            ExportFormatArgument::Jsonl => Self::Records(ExportFormat::Jsonl),
            ExportFormatArgument::Parquet => Self::Records(ExportFormat::Parquet),
            ExportFormatArgument::Messages => Self::Talks(TalkFormat::Messages),
            ExportFormatArgument::Sft => Self::Talks(TalkFormat::Sft),
            ExportFormatArgument::Atif => Self::Talks(TalkFormat::Atif),
            ExportFormatArgument::Inspect => Self::Talks(TalkFormat::Inspect),
            ExportFormatArgument::Areal => Self::Tokens(TokenFormat::Areal),
            ExportFormatArgument::Verl => Self::Tokens(TokenFormat::Verl),
            ExportFormatArgument::Slime => Self::Tokens(TokenFormat::Slime),
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Records(format) => format.as_str(),
            Self::Talks(format) => format.suffix(),
            Self::Tokens(format) => format.suffix(),
        }
    }

    /// Whether it is for training, where held-out rows have no place.
    fn is_trained_on(self) -> bool {
        match self {
            Self::Records(_) => false,
            Self::Talks(format) => format == TalkFormat::Sft,
            Self::Tokens(_) => true,
        }
    }

    /// Whether conversations are looked at, and whether in token ids too.
    fn with_talk(self) -> Option<bool> {
        match self {
            Self::Records(_) => None,
            Self::Talks(format) => Some(format == TalkFormat::Atif),
            Self::Tokens(format) => format.has_text().then_some(true),
        }
    }
}

impl Writer {
    fn begin(
        arguments: &ExportArguments,
        run: &RunRecord,
        redactor: Redactor,
    ) -> Result<Self, RunError> {
        let no_text = |format: &str| {
            RunError::usage(
                RunErrorKind::Usage,
                format!("{format} can't be written to a terminal or pipe"),
            )
            .hint("name a file with `--output FILE`")
        };
        let filtered = arguments.passed || arguments.min_reward.is_some();
        if filtered && arguments.format != ExportFormatArgument::Sft {
            return Err(RunError::usage(
                RunErrorKind::Usage,
                "`--passed` and `--min-reward` choose rows for fine-tuning",
            )
            .hint("add `--format sft`"));
        }
        let kind = Kind::of(arguments.format);
        let path = match &arguments.output {
            Some(path) if path == "-" => None,
            Some(path) if path.as_str().ends_with('/') => Some(absolute(path)?.join("")),
            Some(path) => Some(absolute(path)?),
            None => {
                let name = format!("{}.{}", run.name, kind.suffix());
                Some(absolute(Utf8Path::new(&name))?)
            }
        };
        let unwritable = |error: osmosis_data::DataError| data_error(&error);
        let facts = run_facts(run);
        let export = match (kind, &path) {
            (Kind::Records(format), Some(path)) => Either::Records(Box::new(
                Export::create(format, path, redactor).map_err(unwritable)?,
            )),
            (Kind::Records(ExportFormat::Jsonl), None) => Either::Records(Box::new(Export::Jsonl(
                JsonlExport::to(terminal::export_target(), redactor),
            ))),
            (Kind::Records(ExportFormat::Parquet), None) => return Err(no_text("parquet")),
            (Kind::Talks(format), path) => {
                let filter = SftFilter {
                    min_reward: arguments.min_reward,
                    passed: arguments.passed,
                };
                let export = match path {
                    Some(path) => TalkExport::create(format, path, filter, &facts, redactor)
                        .map_err(unwritable)?,
                    None => TalkExport::to(format, terminal::export_target(), filter, redactor)
                        .ok_or_else(|| no_text("a log of Inspect"))?,
                };
                Either::Talks(Box::new(export), facts)
            }
            (Kind::Tokens(format), path) => {
                let export = match path {
                    Some(path) => {
                        TokenExport::create(format, path, redactor).map_err(unwritable)?
                    }
                    None => TokenExport::to(format, terminal::export_target(), redactor)
                        .ok_or_else(|| no_text("parquet"))?,
                };
                Either::Tokens(export, facts)
            }
        };
        Ok(Self {
            export,
            format: clap::ValueEnum::to_possible_value(&arguments.format)
                .map_or_else(String::new, |value| value.get_name().to_owned()),
            path,
            kind,
        })
    }

    /// How conversations are read, when they are part of what is written.
    fn telling(&self) -> Option<Telling> {
        match &self.export {
            Either::Records(_) => None,
            Either::Talks(_, facts) | Either::Tokens(_, facts) => Some(Telling {
                model: facts.model.clone(),
                with_tokens: self.kind.with_talk()?,
            }),
        }
    }

    fn finish(self) -> Result<u64, DataError> {
        match self.export {
            Either::Records(export) => export.finish(),
            Either::Talks(export, run) => export.finish(&run),
            Either::Tokens(export, _) => export.finish(),
        }
    }
}

/// What the run's own record says of it.
fn run_facts(run: &RunRecord) -> RunFacts {
    let pinned = Pinned::read(&run.pinned).unwrap_or_default();
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    RunFacts {
        name: run.name.clone(),
        rollout: text(pinned.project()),
        model: text(pinned.model_path()),
        dataset: text(pinned.dataset()),
        n: pinned.rollouts_per_row().unwrap_or(1),
        finished: run.status == RunStatus::Finished,
        created_at_ms: run.created_at_ms,
        finished_at_ms: run.finished_at_ms,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
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

/// Takes out the run's secrets, as far as their values are known here.
pub(crate) fn redactor(file: Option<&Utf8Path>, config: &str, output: &Output) -> Redactor {
    let Secrets { required, optional } = EvalConfig::parse("run.toml".into(), config)
        .map(|config| config.secrets)
        .or_else(|_| TrainConfig::parse("run.toml".into(), config).map(|config| config.secrets))
        .unwrap_or_default();
    let mut values = vec![];
    let mut take = |names: Secrets| match secrets::collect(&names, file) {
        Ok(found) => {
            values.extend(found.into_iter().map(|(_, value)| value));
            true
        }
        Err(_) => false,
    };
    for name in required {
        let alone = Secrets {
            required: vec![name.clone()],
            ..Secrets::default()
        };
        if !take(alone) {
            output.warn(format_args!(
                "the value of `{name}` is not known here, so it can't be redacted; \
                 give it with `--secrets-file`"
            ));
        }
    }
    take(Secrets {
        optional,
        ..Secrets::default()
    });
    Redactor::new(values)
}

/// Some of the run's rollouts, and what was said in them when that is wanted.
struct Batch {
    records: Vec<ExportRecord>,
    talks: Vec<Vec<SampleTalk>>,
    /// For a trainer, empty when nobody asks for them; or why the rollout is left out.
    rows: Vec<Result<Vec<TokenRow>, LeftOut>>,
}

/// Where rollouts are read.
struct Source {
    store: Arc<dyn Store>,
    run_name: RunName,
    /// `None` when records are all that is wanted.
    telling: Option<Telling>,
    /// Set when rows for a trainer are wanted.
    token_rows: Option<TokenRows>,
    held_out: HeldOutRows,
    /// The run that has the calls, when it is another.
    calls_in: Option<Arc<dyn Store>>,
}

impl Source {
    async fn read(&self, rollouts: &[RolloutRecord]) -> Result<Batch, RunError> {
        let ids: Vec<RolloutId> = rollouts.iter().map(|rollout| rollout.id.clone()).collect();
        let mut row_indices: Vec<u64> = rollouts.iter().map(|rollout| rollout.row_index).collect();
        row_indices.dedup();
        let dataset_rows = self.store.rows(&row_indices).await?;
        let samples = self.store.samples_of(&ids).await?;
        let mut records = vec![];
        for (rollout, samples) in rollouts.iter().zip(samples) {
            let row = dataset_rows
                .iter()
                .find(|row| row.row_index == rollout.row_index);
            let row = row.ok_or_else(|| {
                let message = format!("row {} is missing", rollout.row_index);
                RunError::failed(RunErrorKind::RunDamaged, message)
            })?;
            records.push(exported(self.run_name.clone(), rollout, row, samples));
        }
        let store = &**self.calls_in.as_ref().unwrap_or(&self.store);
        let mut rows = vec![];
        for (rollout, record) in rollouts.iter().zip(&records) {
            rows.push(match &self.token_rows {
                _ if self.held_out.has(rollout.row_index) => Err(LeftOut::HeldOut),
                Some(token_rows) => token_rows.read(store, rollout, &record.samples).await?,
                None => Ok(vec![]),
            });
        }
        let talks = match &self.telling {
            Some(telling) => {
                let samples = records.iter().map(|record| record.samples.as_slice());
                talk::of_each(store, &ids, samples, telling).await?
            }
            None => vec![vec![]; records.len()],
        };
        Ok(Batch {
            records,
            talks,
            rows,
        })
    }
}

fn exported(
    run_name: RunName,
    rollout: &RolloutRecord,
    stored: &RowRecord,
    samples: Vec<Sample>,
) -> ExportRecord {
    // Rows were checked when the run was made. What has no columns is for a workflow that takes it whole.
    let row = Row::from_body(stored.row_index, stored.line, &stored.body).ok();
    let (label, metadata) = row.map_or((None, None), |row| (row.label, row.metadata));
    let mut record = ExportRecord::new(
        run_name,
        rollout.id.clone(),
        rollout.row_index,
        rollout.run_index,
        stored.body.clone(),
    );
    if let Some(outcome) = &rollout.outcome {
        record = record.ended(outcome);
    }
    ExportRecord {
        attempts: rollout.attempts,
        label,
        metadata,
        metrics: rollout.metrics.clone(),
        samples,
        model_calls: rollout.calls.model_calls,
        prompt_tokens: rollout.calls.prompt_tokens,
        completion_tokens: rollout.calls.completion_tokens,
        durations: rollout.durations,
        started_at_ms: rollout.started_at_ms,
        finished_at_ms: rollout.finished_at_ms,
        ..record
    }
}
