//! `areal`: the arrays that an AReaL workflow returns, a row of a parquet file for each sequence.

use osmosis_core::Redactor;
use parquet::data_type::{BoolType, ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;

use super::row_groups::{Gathered, RowGroups};
use super::{TokenRow, small, version_number};
use crate::DataError;
use crate::export::ExportRecord;
use crate::export::columns::{Cells, RowGroup, text, whole};
use crate::export::target::Target;

/// The file's schema; the first six columns are AReaL's.
const SCHEMA: &str = "
message sequence {
  required group input_ids (LIST) { repeated group list { required int32 element; } }
  required group attention_mask (LIST) { repeated group list { required boolean element; } }
  required group loss_mask (LIST) { repeated group list { required int32 element; } }
  required group logprobs (LIST) { repeated group list { required float element; } }
  required group versions (LIST) { repeated group list { required int32 element; } }
  required double rewards;
  required binary group (STRING);
  required binary run_name (STRING);
  required binary rollout_id (STRING);
  required binary sample_id (STRING);
  required int64 row_index;
  required int64 run_index;
  required int64 turn;
  required double temperature;
}
";

/// A row group is written when it holds this many tokens.
const GROUP_TOKENS: usize = 1 << 18;

/// A file of this format.
#[derive(Debug)]
pub struct ArealExport {
    groups: RowGroups<Pending>,
    redactor: Redactor,
}

impl ArealExport {
    pub(super) fn new(target: Target, redactor: Redactor) -> Result<Self, DataError> {
        Ok(Self {
            groups: RowGroups::new(target, SCHEMA, &["logprobs.list.element"])?,
            redactor,
        })
    }

    pub(super) fn write(&mut self, record: &ExportRecord, row: &TokenRow) -> Result<(), DataError> {
        let to = self.groups.to();
        let clean = |part: &str| text(self.redactor.clean(part));
        let ids = row.ids.iter().map(|id| small(to, *id));
        let ids: Vec<i32> = ids.collect::<Result<_, _>>()?;
        let versions = row.versions.iter();
        let versions = versions.map(|version| small(to, version_number(*version)));
        let versions: Vec<i32> = versions.collect::<Result<_, _>>()?;
        self.groups.add(|cells| {
            cells.tokens += ids.len();
            cells.attention_mask.push_list(ids.iter().map(|_| true));
            cells.input_ids.push_list(ids);
            let mask = row.loss_mask.iter().map(|trained| i32::from(*trained));
            cells.loss_mask.push_list(mask);
            cells.logprobs.push_list(row.logprobs.iter().copied());
            cells.versions.push_list(versions);
            cells.rewards.push(row.reward);
            cells.group.push(clean(&row.group(record)));
            cells.run_name.push(clean(record.run_name.as_str()));
            cells.rollout_id.push(clean(record.rollout_id.as_str()));
            cells.sample_id.push(clean(row.sample.as_str()));
            cells.row_index.push(whole(record.row_index));
            cells.run_index.push(i64::from(record.run_index));
            cells.turn.push(i64::from(row.turn));
            cells.temperature.push(row.temperature());
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
    input_ids: Cells<Int32Type>,
    attention_mask: Cells<BoolType>,
    loss_mask: Cells<Int32Type>,
    logprobs: Cells<FloatType>,
    versions: Cells<Int32Type>,
    rewards: Cells<DoubleType>,
    group: Cells<ByteArrayType>,
    run_name: Cells<ByteArrayType>,
    rollout_id: Cells<ByteArrayType>,
    sample_id: Cells<ByteArrayType>,
    row_index: Cells<Int64Type>,
    run_index: Cells<Int64Type>,
    turn: Cells<Int64Type>,
    temperature: Cells<DoubleType>,
}

impl Gathered for Pending {
    fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    fn is_full(&self) -> bool {
        self.tokens >= GROUP_TOKENS
    }

    fn write(self, columns: &mut RowGroup<'_>) -> Result<(), ParquetError> {
        self.input_ids.write(columns)?;
        self.attention_mask.write(columns)?;
        self.loss_mask.write(columns)?;
        self.logprobs.write(columns)?;
        self.versions.write(columns)?;
        self.rewards.write(columns)?;
        self.group.write(columns)?;
        self.run_name.write(columns)?;
        self.rollout_id.write(columns)?;
        self.sample_id.write(columns)?;
        self.row_index.write(columns)?;
        self.run_index.write(columns)?;
        self.turn.write(columns)?;
        self.temperature.write(columns)
    }
}
