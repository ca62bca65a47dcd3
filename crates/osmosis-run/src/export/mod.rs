//! The rollouts of a run as a file that other programs open: read from its store, and written in one of many formats
//! (`osmosis-data`). Arguments, progress and what people are told are the front end's.

mod left_out;
mod source;
mod token_rows;
mod writer;

use std::fmt;
use std::io::Write;

use camino::Utf8PathBuf;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use osmosis_core::Redactor;
use osmosis_data::export::{ExportFormat, SftFilter, TalkFormat, TokenFormat};
use osmosis_data::{DataError, DataErrorKind};
use osmosis_store::{RolloutPages, RolloutQuery, RunRecord};

pub use self::left_out::LeftOutCounts;
use self::source::Source;
use self::writer::Writer;
use crate::RunError;
use crate::checked_dataset::data_error;
use crate::notices::Notices;
use crate::reports::LeftOutReport;
use crate::runs::ReadRun;
use crate::workspace::Workspace;

/// Rollouts that are read in one go: few enough that long ones fit into memory.
const BATCH: usize = 8;
/// Batches that are read while one is written.
const AT_ONCE: usize = 3;

/// What a file of an export holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportKind {
    /// The rollouts, as they are recorded.
    Records(ExportFormat),
    /// What was said in them.
    Talks(TalkFormat),
    /// Their tokens, as rows for a trainer.
    Tokens(TokenFormat),
}

impl ExportKind {
    /// How the name of such a file ends.
    pub fn suffix(self) -> &'static str {
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

/// Where an export goes.
pub enum ExportTarget {
    /// A file; a folder, where its name ends in `/` and the format allows it.
    File(Utf8PathBuf),
    /// What is open already: standard output, a pipe.
    Stream(Box<dyn Write + Send>),
}

impl fmt::Debug for ExportTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// What is exported.
#[derive(Debug)]
pub struct ExportRequest<'a> {
    pub run: &'a ReadRun,
    pub record: &'a RunRecord,
    pub workspace: &'a Workspace,
    pub kind: ExportKind,
    /// Also rollouts without a result.
    pub all: bool,
    /// Which samples are fine-tuned on.
    pub filter: SftFilter,
    pub redactor: Redactor,
}

/// What was exported.
#[derive(Debug)]
pub struct Exported {
    pub rollouts: u64,
    /// What was written of them: lines, rows or samples.
    pub records: u64,
    pub left_out: LeftOutCounts,
    kind: ExportKind,
}

impl Exported {
    /// What was left out, of exports that are trained on.
    pub fn left_out_report(&self) -> Option<LeftOutReport> {
        match self.kind {
            ExportKind::Tokens(_) => Some(self.left_out.report()),
            ExportKind::Talks(TalkFormat::Sft) => Some(self.left_out.held_out_report()),
            ExportKind::Talks(_) | ExportKind::Records(_) => None,
        }
    }
}

impl ExportRequest<'_> {
    /// Writes the export; `written` is called after each rollout. `None` when whoever reads a stream has read enough
    /// (`| head`), which is no error.
    pub async fn write(
        self,
        target: ExportTarget,
        notices: &dyn Notices,
        mut written: impl FnMut(),
    ) -> Result<Option<Exported>, RunError> {
        let Self {
            run,
            record,
            workspace,
            kind,
            ..
        } = self;
        let mut writer = Writer::begin(kind, target, record, self.filter, self.redactor)?;
        let source = Source::of(run, record, workspace, kind, notices).await?;
        let query = RolloutQuery {
            finished_only: !self.all,
            ..RolloutQuery::default()
        };
        let mut pages = RolloutPages::new(&*run.store, query);
        let mut rollouts = 0;
        let mut left_out = LeftOutCounts::default();
        while let Some(page) = pages.next().await? {
            let batches = stream::iter(page.chunks(BATCH));
            let mut batches = batches.map(|batch| source.read(batch)).buffered(AT_ONCE);
            while let Some(batch) = batches.try_next().await? {
                for read in batch {
                    let Some(left) = unless_reader_has_gone(writer.write(read))? else {
                        return Ok(None);
                    };
                    left_out.add(left);
                    rollouts += 1;
                    written();
                }
            }
        }
        source.warn_of_constrained(notices);
        if writer.has_no_token_rows() {
            return Err(left_out.error(record.name.as_str()));
        }
        let records = unless_reader_has_gone(writer.finish())?;
        Ok(records.map(|records| Exported {
            rollouts,
            records,
            left_out,
            kind,
        }))
    }
}

/// `None` when whoever reads the export has read enough.
fn unless_reader_has_gone<T>(written: Result<T, DataError>) -> Result<Option<T>, RunError> {
    match written {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == DataErrorKind::OutputClosed => Ok(None),
        Err(error) => Err(data_error(&error)),
    }
}
