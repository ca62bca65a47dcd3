//! Exports of conversations: what was said in each sample, in the shape that other programs expect.

use camino::Utf8Path;
use osmosis_core::{Redactor, RunName, SampleId};
use serde_json::{Map, Value, json};

use super::atif::AtifExport;
use super::inspect::InspectExport;
use super::lines::JsonLines;
use super::{ExportRecord, messages, sft};
use crate::DataError;
use crate::conversation::Conversation;

/// How conversations are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TalkFormat {
    /// A line for each conversation, in the shape of Chat Completions.
    Messages,
    /// Rows for fine-tuning.
    Sft,
    /// Trajectories of the Agent Trajectory Interchange Format.
    Atif,
    /// A log of Inspect.
    Inspect,
}

impl TalkFormat {
    /// What a file of this format is called after the run's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Messages => "messages.jsonl",
            Self::Sft => "sft.jsonl",
            Self::Atif => "atif.jsonl",
            Self::Inspect => "eval",
        }
    }
}

/// What is the same for every rollout of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFacts {
    pub name: RunName,
    /// The name of the rollout project: who the agent is.
    pub rollout: String,
    /// The `model_path` of the config.
    pub model: String,
    pub dataset: String,
    /// Rollouts of each row.
    pub n: u32,
    /// Every rollout has a result.
    pub finished: bool,
    /// Milliseconds since 1970.
    pub created_at_ms: i64,
    pub finished_at_ms: Option<i64>,
    /// Of the program that ran it.
    pub version: String,
}

/// What was said in a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleTalk {
    pub id: SampleId,
    /// None while it is not graded, and when it was made by a rollout that failed.
    pub reward: Option<f64>,
    /// The grader asked to leave it out.
    pub removed: bool,
    pub conversations: Vec<Conversation>,
    /// Which of them is the sample's own.
    pub main: usize,
}

/// Which conversations are good enough to learn from.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SftFilter {
    /// The sample's reward is at least this.
    pub min_reward: Option<f64>,
    /// The rollout passed.
    pub passed: bool,
}

/// An export of conversations.
#[derive(Debug)]
pub enum TalkExport {
    Messages(JsonLines),
    Sft(JsonLines, SftFilter),
    Atif(AtifExport),
    Inspect(Box<InspectExport>),
}

impl TalkExport {
    /// Starts a file that gets its name when it is finished. Of ATIF, a path that is a folder or ends
    /// with `/` gets a file for each trajectory.
    pub fn create(
        format: TalkFormat,
        path: &Utf8Path,
        filter: SftFilter,
        run: &RunFacts,
        redactor: Redactor,
    ) -> Result<Self, DataError> {
        Ok(match format {
            TalkFormat::Messages => Self::Messages(JsonLines::create(path, redactor)?),
            TalkFormat::Sft => Self::Sft(JsonLines::create(path, redactor)?, filter),
            TalkFormat::Atif => Self::Atif(AtifExport::create(path, redactor)?),
            TalkFormat::Inspect => {
                Self::Inspect(Box::new(InspectExport::create(path, run, redactor)?))
            }
        })
    }

    /// Writes to what is open already. `None` for a log of Inspect, which is no text.
    pub fn to(
        format: TalkFormat,
        writer: impl std::io::Write + Send + 'static,
        filter: SftFilter,
        redactor: Redactor,
    ) -> Option<Self> {
        let lines = JsonLines::to(writer, redactor);
        match format {
            TalkFormat::Messages => Some(Self::Messages(lines)),
            TalkFormat::Sft => Some(Self::Sft(lines, filter)),
            TalkFormat::Atif => Some(Self::Atif(AtifExport::Lines(lines))),
            TalkFormat::Inspect => None,
        }
    }

    /// Adds a rollout with what was said in its samples.
    pub fn write(
        &mut self,
        run: &RunFacts,
        record: &ExportRecord,
        samples: &[SampleTalk],
    ) -> Result<(), DataError> {
        match self {
            Self::Messages(lines) => {
                for line in messages::lines(record, samples) {
                    lines.write(&line)?;
                }
                Ok(())
            }
            Self::Sft(lines, filter) => {
                for row in sft::rows(record, samples, *filter) {
                    lines.write(&row)?;
                }
                Ok(())
            }
            Self::Atif(export) => export.write(run, record, samples),
            Self::Inspect(export) => export.write(run, record, samples),
        }
    }

    /// Ends the file and gives it its name. Returns how many records it holds.
    pub fn finish(self, run: &RunFacts) -> Result<u64, DataError> {
        match self {
            Self::Messages(lines) | Self::Sft(lines, _) => lines.finish(),
            Self::Atif(export) => export.finish(),
            Self::Inspect(export) => export.finish(run),
        }
    }
}

/// What stands for a rollout and a sample in every format.
pub(super) fn identity(
    record: &ExportRecord,
    sample: &SampleTalk,
    number: usize,
) -> Map<String, Value> {
    let error = record
        .error
        .as_ref()
        .map(|error| json!({"kind": error.kind, "message": error.message}));
    let fields = json!({
        "run_name": record.run_name,
        "rollout_id": record.rollout_id,
        "row_index": record.row_index,
        "run_index": record.run_index,
        "sample_id": sample.id,
        "conversation": number,
        "outcome": record.outcome.map(osmosis_core::OutcomeKind::as_str),
        "reward": sample.reward,
        "passed": record.passed,
        "removed": sample.removed,
        "error": error,
    });
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
