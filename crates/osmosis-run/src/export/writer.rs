//! The file of an export.

use camino::Utf8Path;
use osmosis_core::Redactor;
use osmosis_data::DataError;
use osmosis_data::export::{
    Export, ExportFormat, JsonlExport, RunFacts, SftFilter, TalkExport, TokenExport,
};
use osmosis_store::{RunRecord, RunStatus};

use super::left_out::LeftOut;
use super::source::ReadRollout;
use super::{ExportKind, ExportTarget};
use crate::checked_dataset::data_error;
use crate::runs::Pinned;
use crate::{RunError, RunErrorKind};

/// What the rollouts are written to.
pub(super) enum Writer {
    Records(Box<Export>),
    Talks(Box<TalkExport>, RunFacts),
    Tokens(TokenExport, RunFacts),
}

impl Writer {
    pub(super) fn begin(
        kind: ExportKind,
        target: ExportTarget,
        run: &RunRecord,
        filter: SftFilter,
        redactor: Redactor,
    ) -> Result<Self, RunError> {
        let facts = run_facts(run);
        let begun = match target {
            ExportTarget::File(path) => {
                let created = Self::create(kind, &path, facts, filter, redactor);
                return created.map_err(|error| data_error(&error));
            }
            ExportTarget::Stream(stream) => match kind {
                ExportKind::Records(ExportFormat::Jsonl) => {
                    let lines = JsonlExport::to(stream, redactor);
                    Ok(Self::Records(Box::new(Export::Jsonl(lines))))
                }
                ExportKind::Records(ExportFormat::Parquet) => Err("parquet"),
                ExportKind::Talks(format) => TalkExport::to(format, stream, filter, redactor)
                    .map(|export| Self::Talks(Box::new(export), facts))
                    .ok_or("a log of Inspect"),
                ExportKind::Tokens(format) => TokenExport::to(format, stream, redactor)
                    .map(|export| Self::Tokens(export, facts))
                    .ok_or("parquet"),
            },
        };
        begun.map_err(|format| {
            RunError::usage(
                RunErrorKind::Usage,
                format!("{format} can't be written to a terminal or pipe"),
            )
            .hint("name a file with `--output FILE`")
        })
    }

    fn create(
        kind: ExportKind,
        path: &Utf8Path,
        facts: RunFacts,
        filter: SftFilter,
        redactor: Redactor,
    ) -> Result<Self, DataError> {
        Ok(match kind {
            ExportKind::Records(format) => {
                Self::Records(Box::new(Export::create(format, path, redactor)?))
            }
            ExportKind::Talks(format) => {
                let export = TalkExport::create(format, path, filter, &facts, redactor)?;
                Self::Talks(Box::new(export), facts)
            }
            ExportKind::Tokens(format) => {
                Self::Tokens(TokenExport::create(format, path, redactor)?, facts)
            }
        })
    }

    /// Writes a rollout, or returns why it is left out.
    pub(super) fn write(&mut self, read: ReadRollout) -> Result<Option<LeftOut>, DataError> {
        let ReadRollout {
            record,
            talks,
            rows,
        } = read;
        match (self, rows) {
            (Self::Records(export), _) => export.write(&record)?,
            (Self::Talks(export, run), Ok(_)) => export.write(run, &record, &talks)?,
            (Self::Tokens(export, run), Ok(rows)) => export.write(run, &record, &rows, &talks)?,
            (Self::Talks(..) | Self::Tokens(..), Err(why)) => return Ok(Some(why)),
        }
        Ok(None)
    }

    /// Whether it is for a trainer, and has nothing for it.
    pub(super) fn has_no_token_rows(&self) -> bool {
        matches!(self, Self::Tokens(export, _) if export.rows() == 0)
    }

    /// How many records were written.
    pub(super) fn finish(self) -> Result<u64, DataError> {
        match self {
            Self::Records(export) => export.finish(),
            Self::Talks(export, run) => export.finish(&run),
            Self::Tokens(export, _) => export.finish(),
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
