use std::fmt;
use std::io::{self, Write};

use camino::Utf8Path;
use osmosis_core::{JsonText, Redactor};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;

use super::ExportRecord;
use super::columns::{Cells, ParquetFile, RowGroup, text, whole};
use super::line::{Line, LineSample};
use super::target::Target;
use crate::DataError;

/// The file's schema. `docs/export.md` says what the columns mean; documents are JSON texts.
pub(super) const SCHEMA: &str = "
message rollout {
  required int64 schema_version;
  required binary run_name (STRING);
  required binary rollout_id (STRING);
  required int64 row_index;
  required int64 run_index;
  optional binary outcome (STRING);
  optional double reward;
  required boolean passed;
  optional group error {
    required binary kind (STRING);
    required binary message (STRING);
  }
  required int64 attempts;
  required binary row (STRING);
  optional binary label (STRING);
  optional binary metadata (STRING);
  optional binary metrics (STRING);
  required group samples (LIST) {
    repeated group list {
      required group element {
        required binary id (STRING);
        optional double reward;
        required boolean remove_sample;
        required binary messages (STRING);
        optional binary metrics (STRING);
        optional binary extra_fields (STRING);
      }
    }
  }
  required int64 model_calls;
  required int64 prompt_tokens;
  required int64 completion_tokens;
  required group durations {
    required double queue_ms;
    required double agent_ms;
    required double model_ms;
    required double grade_ms;
  }
  optional binary started_at (STRING);
  optional binary finished_at (STRING);
}
";

/// A row group is written when it holds about this much.
const GROUP_BYTES: usize = 8 << 20;

/// Or this many records.
const GROUP_RECORDS: usize = 100_000;

/// No two conversations are the same.
const PLAIN: [&str; 3] = ["samples.list.element.messages", "row", "metadata"];

/// Records as a parquet file. Holds one row group.
pub struct ParquetExport {
    file: ParquetFile,
    redactor: Redactor,
    group: Group,
    records: u64,
}

impl fmt::Debug for ParquetExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetExport")
            .field("to", &self.file.to())
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

impl ParquetExport {
    /// Starts a file that gets its name when it is finished.
    pub fn create(path: impl AsRef<Utf8Path>, redactor: Redactor) -> Result<Self, DataError> {
        Self::new(Target::create(path.as_ref())?, redactor)
    }

    /// Writes to what is open already: standard output, a pipe.
    pub fn to(writer: impl Write + Send + 'static, redactor: Redactor) -> Result<Self, DataError> {
        Self::new(Target::direct(writer), redactor)
    }

    fn new(target: Target, redactor: Redactor) -> Result<Self, DataError> {
        Ok(Self {
            file: ParquetFile::new(target, SCHEMA, &PLAIN)?,
            redactor,
            group: Group::default(),
            records: 0,
        })
    }

    pub fn write(&mut self, record: &ExportRecord) -> Result<(), DataError> {
        match Line::of(record, &self.redactor) {
            Ok(line) => self.group.push(line),
            Err(error) => {
                return Err(DataError::Unwritable {
                    to: self.file.to().to_owned(),
                    error: io::Error::other(error),
                });
            }
        }
        self.records += 1;
        if self.group.bytes >= GROUP_BYTES || self.group.records >= GROUP_RECORDS {
            self.flush()?;
        }
        Ok(())
    }

    /// Ends the file and gives it its name. Returns how many records it holds.
    pub fn finish(mut self) -> Result<u64, DataError> {
        self.flush()?;
        self.file.finish()?;
        Ok(self.records)
    }

    fn flush(&mut self) -> Result<(), DataError> {
        let group = std::mem::take(&mut self.group);
        if group.records == 0 {
            return Ok(());
        }
        self.file.row_group(|columns| group.write(columns))
    }
}

/// Records that are not written yet, column by column.
#[derive(Default)]
struct Group {
    records: usize,
    bytes: usize,
    schema_version: Cells<Int64Type>,
    run_name: Cells<ByteArrayType>,
    rollout_id: Cells<ByteArrayType>,
    row_index: Cells<Int64Type>,
    run_index: Cells<Int64Type>,
    outcome: Cells<ByteArrayType>,
    reward: Cells<DoubleType>,
    passed: Cells<BoolType>,
    error_kind: Cells<ByteArrayType>,
    error_message: Cells<ByteArrayType>,
    attempts: Cells<Int64Type>,
    row: Cells<ByteArrayType>,
    label: Cells<ByteArrayType>,
    metadata: Cells<ByteArrayType>,
    metrics: Cells<ByteArrayType>,
    samples: SampleCells,
    model_calls: Cells<Int64Type>,
    prompt_tokens: Cells<Int64Type>,
    completion_tokens: Cells<Int64Type>,
    queue_ms: Cells<DoubleType>,
    agent_ms: Cells<DoubleType>,
    model_ms: Cells<DoubleType>,
    grade_ms: Cells<DoubleType>,
    started_at: Cells<ByteArrayType>,
    finished_at: Cells<ByteArrayType>,
}

#[derive(Default)]
struct SampleCells {
    id: Cells<ByteArrayType>,
    reward: Cells<DoubleType>,
    remove_sample: Cells<BoolType>,
    messages: Cells<ByteArrayType>,
    metrics: Cells<ByteArrayType>,
    extra_fields: Cells<ByteArrayType>,
}

impl Group {
    fn push(&mut self, line: Line) {
        self.records += 1;
        self.bytes += line.size();
        let (kind, message) = match line.error {
            Some(error) => (Some(error.kind), Some(error.message)),
            None => (None, None),
        };
        self.schema_version.push(line.schema_version);
        self.run_name.push(text(line.run_name));
        self.rollout_id.push(text(line.rollout_id));
        self.row_index.push(whole(line.row_index));
        self.run_index.push(i64::from(line.run_index));
        self.outcome.push_option(line.outcome.map(text));
        self.reward.push_option(line.reward);
        self.passed.push(line.passed);
        self.error_kind.push_option(kind.map(text));
        self.error_message.push_option(message.map(text));
        self.attempts.push(i64::from(line.attempts));
        self.row.push(json(&line.row));
        self.label.push_option(line.label.map(text));
        self.metadata.push_option(line.metadata.as_ref().map(json));
        self.metrics.push_option(line.metrics.as_ref().map(json));
        self.samples.push(line.samples);
        self.model_calls.push(whole(line.model_calls));
        self.prompt_tokens.push(whole(line.prompt_tokens));
        self.completion_tokens.push(whole(line.completion_tokens));
        self.queue_ms.push(line.durations.queue);
        self.agent_ms.push(line.durations.agent);
        self.model_ms.push(line.durations.model);
        self.grade_ms.push(line.durations.grade);
        self.started_at.push_option(line.started_at.map(text));
        self.finished_at.push_option(line.finished_at.map(text));
    }

    /// Writes the columns in the order of the schema.
    fn write(self, group: &mut RowGroup<'_>) -> Result<(), ParquetError> {
        self.schema_version.write(group)?;
        self.run_name.write(group)?;
        self.rollout_id.write(group)?;
        self.row_index.write(group)?;
        self.run_index.write(group)?;
        self.outcome.write(group)?;
        self.reward.write(group)?;
        self.passed.write(group)?;
        self.error_kind.write(group)?;
        self.error_message.write(group)?;
        self.attempts.write(group)?;
        self.row.write(group)?;
        self.label.write(group)?;
        self.metadata.write(group)?;
        self.metrics.write(group)?;
        self.samples.id.write(group)?;
        self.samples.reward.write(group)?;
        self.samples.remove_sample.write(group)?;
        self.samples.messages.write(group)?;
        self.samples.metrics.write(group)?;
        self.samples.extra_fields.write(group)?;
        self.model_calls.write(group)?;
        self.prompt_tokens.write(group)?;
        self.completion_tokens.write(group)?;
        self.queue_ms.write(group)?;
        self.agent_ms.write(group)?;
        self.model_ms.write(group)?;
        self.grade_ms.write(group)?;
        self.started_at.write(group)?;
        self.finished_at.write(group)
    }
}

impl SampleCells {
    fn push(&mut self, samples: Vec<LineSample>) {
        if samples.is_empty() {
            self.id.push_empty_list();
            self.reward.push_empty_list();
            self.remove_sample.push_empty_list();
            self.messages.push_empty_list();
            self.metrics.push_empty_list();
            self.extra_fields.push_empty_list();
        }
        for (place, sample) in samples.into_iter().enumerate() {
            let first = place == 0;
            self.id.push_element(first, text(sample.id));
            self.reward.push_element_option(first, sample.reward);
            self.remove_sample.push_element(first, sample.remove_sample);
            self.messages.push_element(first, json(&sample.messages));
            let metrics = sample.metrics.as_ref().map(json);
            self.metrics.push_element_option(first, metrics);
            let extra_fields = sample.extra_fields.as_ref().map(json);
            self.extra_fields.push_element_option(first, extra_fields);
        }
    }
}

fn json(json: &JsonText) -> ByteArray {
    ByteArray::from(json.as_str())
}

impl Line {
    /// About how much it takes to hold.
    fn size(&self) -> usize {
        let optional =
            |json: &Option<JsonText>| json.as_ref().map_or(0, |json| json.as_str().len());
        let samples = self.samples.iter().map(|sample| {
            sample.messages.as_str().len()
                + optional(&sample.metrics)
                + optional(&sample.extra_fields)
                + 200
        });
        self.row.as_str().len()
            + optional(&self.metadata)
            + optional(&self.metrics)
            + self.label.as_ref().map_or(0, String::len)
            + self.error.as_ref().map_or(0, |error| error.message.len())
            + samples.sum::<usize>()
            + 1000
    }
}
