//! Rollouts as files that other programs open: one record for each rollout, in JSON lines or
//! parquet, what was said in each sample ([`TalkExport`]), or the tokens to train on
//! ([`TokenExport`]). `docs/export.md` describes them.
//!
//! ```
//! use osmosis_core::{JsonText, Redactor, RolloutId, RunName};
//! use osmosis_data::export::{ExportRecord, JsonlExport};
//!
//! let mut export = JsonlExport::to(std::io::sink(), Redactor::default());
//! let row = JsonText::parse(r#"{"user_prompt": "6 * 7?", "ground_truth": "42"}"#)?;
//! export.write(&ExportRecord::new(RunName::new("try-1")?, RolloutId::of(0, 0), 0, 0, row))?;
//! assert_eq!(export.finish()?, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod atif;
mod columns;
mod inspect;
mod jsonl;
mod line;
mod lines;
mod messages;
mod parquet;
mod redact;
mod sft;
mod talk;
mod target;
mod tokens;

use camino::Utf8Path;
use osmosis_core::{
    Durations, JsonText, Outcome, OutcomeKind, Phase, Redactor, Reward, RolloutId, RunName, Sample,
};

pub use self::jsonl::JsonlExport;
pub use self::parquet::ParquetExport;
pub use self::redact::clean_json;
pub use self::talk::{RunFacts, SampleTalk, SftFilter, TalkExport, TalkFormat};
pub use self::tokens::{TokenExport, TokenFormat, TokenRow};
use crate::DataError;

/// The meaning of the fields; it changes when one of them changes its meaning or goes.
pub const SCHEMA_VERSION: i64 = 1;

/// A rollout as it goes out. Nothing in it is redacted yet: the exports do that.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportRecord {
    pub run_name: RunName,
    pub rollout_id: RolloutId,
    pub row_index: u64,
    pub run_index: u32,
    /// `None` while there is no result.
    pub outcome: Option<OutcomeKind>,
    pub reward: Option<Reward>,
    pub passed: bool,
    pub error: Option<ExportError>,
    /// How often it was started.
    pub attempts: u32,
    /// The dataset row, a JSON object.
    pub row: JsonText,
    pub label: Option<String>,
    /// The row's, a JSON object.
    pub metadata: Option<JsonText>,
    /// What the workflow attached to the rollout, a JSON object.
    pub metrics: Option<JsonText>,
    pub samples: Vec<Sample>,
    pub model_calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub durations: Durations,
    /// Milliseconds since 1970.
    pub started_at_ms: Option<i64>,
    pub finished_at_ms: Option<i64>,
}

impl ExportRecord {
    /// A rollout that has not run.
    pub fn new(
        run_name: RunName,
        rollout_id: RolloutId,
        row_index: u64,
        run_index: u32,
        row: JsonText,
    ) -> Self {
        Self {
            run_name,
            rollout_id,
            row_index,
            run_index,
            outcome: None,
            reward: None,
            passed: false,
            error: None,
            attempts: 0,
            row,
            label: None,
            metadata: None,
            metrics: None,
            samples: Vec::new(),
            model_calls: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            durations: Durations::default(),
            started_at_ms: None,
            finished_at_ms: None,
        }
    }

    /// Takes over how the rollout ended: outcome, reward, passed and error.
    #[must_use]
    pub fn ended(mut self, outcome: &Outcome) -> Self {
        self.outcome = Some(outcome.kind());
        self.reward = outcome.reward();
        self.passed = outcome.passed();
        self.error = ExportError::of(outcome);
        self
    }
}

/// Why a rollout has no reward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportError {
    /// The exception's type, or our own name for it.
    pub kind: String,
    pub message: String,
}

impl ExportError {
    /// `None` when there is nothing to explain.
    pub fn of(outcome: &Outcome) -> Option<Self> {
        let (kind, message) = match outcome {
            Outcome::Scored { .. } | Outcome::Cancelled => return None,
            Outcome::AgentFailed { failure }
            | Outcome::Ungraded { failure }
            | Outcome::InfrastructureFailed { failure } => {
                (failure.kind.clone(), failure.message.clone())
            }
            Outcome::TimedOut { phase, .. } => {
                let kind = match phase {
                    Phase::Agent => "agent_timeout",
                    Phase::Grade => "grade_timeout",
                };
                (kind.to_owned(), outcome.explanation().unwrap_or_default())
            }
            Outcome::Rejected { reason } => ("rejected".to_owned(), reason.clone()),
        };
        Some(Self { kind, message })
    }
}

/// How an export is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// One JSON object on each line.
    Jsonl,
    /// Columns with types.
    Parquet,
}

impl ExportFormat {
    pub const ALL: [Self; 2] = [Self::Jsonl, Self::Parquet];

    /// The name on the command line, and the extension of files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Parquet => "parquet",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == text)
    }

    /// The format that a file's name asks for.
    pub fn of(path: &Utf8Path) -> Option<Self> {
        Self::parse(path.extension()?)
    }
}

/// An export in either format.
#[derive(Debug)]
pub enum Export {
    Jsonl(JsonlExport),
    Parquet(Box<ParquetExport>),
}

impl Export {
    /// Starts a file that gets its name when it is finished.
    pub fn create(
        format: ExportFormat,
        path: impl AsRef<Utf8Path>,
        redactor: Redactor,
    ) -> Result<Self, DataError> {
        Ok(match format {
            ExportFormat::Jsonl => Self::Jsonl(JsonlExport::create(path, redactor)?),
            ExportFormat::Parquet => {
                Self::Parquet(Box::new(ParquetExport::create(path, redactor)?))
            }
        })
    }

    pub fn write(&mut self, record: &ExportRecord) -> Result<(), DataError> {
        match self {
            Self::Jsonl(export) => export.write(record),
            Self::Parquet(export) => export.write(record),
        }
    }

    /// Ends the file and gives it its name. Returns how many records it holds.
    pub fn finish(self) -> Result<u64, DataError> {
        match self {
            Self::Jsonl(export) => export.finish(),
            Self::Parquet(export) => export.finish(),
        }
    }
}
