//! `verl`: a parquet file that `RLHFDataset` opens, with the fields of an `AgentLoopOutput` beside the prompt.

use osmosis_core::Redactor;
use parquet::data_type::{ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;

use super::row_groups::{Gathered, RowGroups};
use super::spoken::Spoken;
use super::{TokenRow, small, version_number};
use crate::DataError;
use crate::export::columns::{Cells, RowGroup, text, whole};
use crate::export::target::Target;
use crate::export::{ExportRecord, RunFacts, SampleTalk};

/// The file's schema; `docs/export.md` says what the columns mean.
const SCHEMA: &str = "
message sample {
  required binary data_source (STRING);
  required group prompt (LIST) {
    repeated group list {
      required group element {
        required binary role (STRING);
        required binary content (STRING);
      }
    }
  }
  required binary ability (STRING);
  required group reward_model {
    required binary style (STRING);
    required binary ground_truth (STRING);
  }
  required group extra_info {
    required int64 index;
    required binary split (STRING);
    required binary run_name (STRING);
    required binary rollout_id (STRING);
    required binary sample_id (STRING);
    required int64 run_index;
    required int64 turn;
    required double temperature;
  }
  required binary uid (STRING);
  required group prompt_ids (LIST) { repeated group list { required int32 element; } }
  required group response_ids (LIST) { repeated group list { required int32 element; } }
  required group response_mask (LIST) { repeated group list { required int32 element; } }
  required group response_logprobs (LIST) { repeated group list { required float element; } }
  required group response_versions (LIST) { repeated group list { required int64 element; } }
  required double reward_score;
  required int64 num_turns;
}
";

/// A row group is written when it holds this many tokens, or about as much text.
const GROUP_TOKENS: usize = 1 << 18;
const GROUP_BYTES: usize = 8 << 20;

/// A file of this format.
#[derive(Debug)]
pub struct VerlExport {
    groups: RowGroups<Pending>,
    redactor: Redactor,
}

impl VerlExport {
    pub(super) fn new(target: Target, redactor: Redactor) -> Result<Self, DataError> {
        Ok(Self {
            groups: RowGroups::new(target, SCHEMA, &["response_logprobs.list.element"])?,
            redactor,
        })
    }

    pub(super) fn write(
        &mut self,
        run: &RunFacts,
        record: &ExportRecord,
        row: &TokenRow,
        samples: &[SampleTalk],
    ) -> Result<(), DataError> {
        let to = self.groups.to();
        let clean = |part: &str| text(self.redactor.clean(part));
        let spoken = Spoken::of(record, row, samples);
        let ids = row.ids.iter().map(|id| small(to, *id));
        let mut prompt: Vec<i32> = ids.collect::<Result<_, _>>()?;
        let split = row.split();
        let response = prompt.split_off(split);

        self.groups.add(|cells| {
            cells.tokens += row.ids.len();
            cells.data_source.push(clean(&run.dataset));
            let messages = spoken.beginning();
            if messages.is_empty() {
                cells.role.push_empty_list();
                cells.content.push_empty_list();
            }
            for (place, (role, content)) in messages.iter().enumerate() {
                cells.bytes += content.len();
                cells.role.push_element(place == 0, text(role.as_str()));
                cells.content.push_element(place == 0, clean(content));
            }
            cells.ability.push(clean(&run.rollout));
            cells.style.push(text("rule"));
            let label = record.label.as_deref().unwrap_or_default();
            cells.bytes += label.len();
            cells.ground_truth.push(clean(label));
            cells.index.push(whole(record.row_index));
            cells.split.push(text("train"));
            cells.run_name.push(clean(record.run_name.as_str()));
            cells.rollout_id.push(clean(record.rollout_id.as_str()));
            cells.sample_id.push(clean(row.sample.as_str()));
            cells.run_index.push(i64::from(record.run_index));
            cells.turn.push(i64::from(row.turn));
            cells.temperature.push(row.temperature());
            cells.uid.push(clean(&row.group(record)));
            cells.prompt_ids.push_list(prompt);
            cells.response_ids.push_list(response);
            let mask = row.loss_mask[split..].iter();
            let mask = mask.map(|trained| i32::from(*trained));
            cells.response_mask.push_list(mask);
            let logprobs = row.logprobs[split..].iter().copied();
            cells.response_logprobs.push_list(logprobs);
            let versions = row.versions[split..].iter();
            let versions = versions.map(|version| version_number(*version));
            cells.response_versions.push_list(versions);
            cells.reward_score.push(row.reward);
            cells.num_turns.push(whole(spoken.turns()));
        })
    }

    pub(super) fn rows(&self) -> u64 {
        self.groups.rows()
    }

    pub(super) fn finish(self) -> Result<u64, DataError> {
        self.groups.finish()
    }
}

/// Rows that are not written yet, column by column.
#[derive(Default)]
struct Pending {
    tokens: usize,
    /// Of texts.
    bytes: usize,
    data_source: Cells<ByteArrayType>,
    role: Cells<ByteArrayType>,
    content: Cells<ByteArrayType>,
    ability: Cells<ByteArrayType>,
    style: Cells<ByteArrayType>,
    ground_truth: Cells<ByteArrayType>,
    index: Cells<Int64Type>,
    split: Cells<ByteArrayType>,
    run_name: Cells<ByteArrayType>,
    rollout_id: Cells<ByteArrayType>,
    sample_id: Cells<ByteArrayType>,
    run_index: Cells<Int64Type>,
    turn: Cells<Int64Type>,
    temperature: Cells<DoubleType>,
    uid: Cells<ByteArrayType>,
    prompt_ids: Cells<Int32Type>,
    response_ids: Cells<Int32Type>,
    response_mask: Cells<Int32Type>,
    response_logprobs: Cells<FloatType>,
    response_versions: Cells<Int64Type>,
    reward_score: Cells<DoubleType>,
    num_turns: Cells<Int64Type>,
}

impl Gathered for Pending {
    fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    fn is_full(&self) -> bool {
        self.tokens >= GROUP_TOKENS || self.bytes >= GROUP_BYTES
    }

    fn write(self, columns: &mut RowGroup<'_>) -> Result<(), ParquetError> {
        self.data_source.write(columns)?;
        self.role.write(columns)?;
        self.content.write(columns)?;
        self.ability.write(columns)?;
        self.style.write(columns)?;
        self.ground_truth.write(columns)?;
        self.index.write(columns)?;
        self.split.write(columns)?;
        self.run_name.write(columns)?;
        self.rollout_id.write(columns)?;
        self.sample_id.write(columns)?;
        self.run_index.write(columns)?;
        self.turn.write(columns)?;
        self.temperature.write(columns)?;
        self.uid.write(columns)?;
        self.prompt_ids.write(columns)?;
        self.response_ids.write(columns)?;
        self.response_mask.write(columns)?;
        self.response_logprobs.write(columns)?;
        self.response_versions.write(columns)?;
        self.reward_score.write(columns)?;
        self.num_turns.write(columns)
    }
}
