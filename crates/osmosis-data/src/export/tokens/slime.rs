//! `slime`: a line for each `Sample`, as its `to_dict` tells it.

use std::collections::HashMap;

use osmosis_core::{PolicyVersion, SampleId};
use serde::Serialize;
use serde_json::{Value, json};

use super::TokenRow;
use super::spoken::Spoken;
use crate::DataError;
use crate::export::lines::JsonLines;
use crate::export::{ExportRecord, SampleTalk};

/// What dialects say of a reply that reached its limit.
const TRUNCATED: [&str; 3] = ["length", "max_tokens", "max_output_tokens"];

/// The fields of a `Sample`; those that are not here have their defaults.
#[derive(Serialize)]
struct Line<'a> {
    group_index: u64,
    index: u64,
    prompt: Vec<Value>,
    tokens: &'a [u32],
    response: String,
    response_length: usize,
    label: Option<&'a str>,
    reward: f64,
    loss_mask: Vec<u8>,
    weight_versions: Vec<String>,
    rollout_log_probs: &'a [f32],
    remove_sample: bool,
    status: &'static str,
    metadata: Value,
}

#[derive(Debug)]
pub struct SlimeExport {
    lines: JsonLines,
    rows: u64,
    /// The groups of the dataset row that is being written, by visit, sample and turn.
    row_index: Option<u64>,
    groups: HashMap<(u32, SampleId, u32), u64>,
    next_group: u64,
}

impl SlimeExport {
    pub(super) fn new(lines: JsonLines) -> Self {
        Self {
            lines,
            rows: 0,
            row_index: None,
            groups: HashMap::new(),
            next_group: 0,
        }
    }

    pub(super) fn write(
        &mut self,
        record: &ExportRecord,
        row: &TokenRow,
        samples: &[SampleTalk],
    ) -> Result<(), DataError> {
        let spoken = Spoken::of(record, row, samples);
        let split = row.split();
        let mask = row.loss_mask[split..].iter();
        let mask = mask.map(|trained| u8::from(*trained));
        let truncated = spoken
            .finish_reason()
            .is_some_and(|reason| TRUNCATED.contains(&reason));
        let line = Line {
            group_index: self.group_of(record, row),
            index: self.rows,
            prompt: spoken.prompt(),
            tokens: &row.ids,
            response: spoken.response(),
            response_length: row.ids.len() - split,
            label: record.label.as_deref(),
            reward: row.reward,
            loss_mask: mask.collect(),
            weight_versions: weight_versions(&row.versions[split..]),
            rollout_log_probs: &row.logprobs[split..],
            remove_sample: false,
            status: if truncated { "truncated" } else { "completed" },
            metadata: json!({
                "run_name": record.run_name,
                "rollout_id": record.rollout_id,
                "sample_id": row.sample,
                "row_index": record.row_index,
                "run_index": record.run_index,
                "turn": row.turn,
                "temperature": row.temperature(),
                "group": row.group(record),
            }),
        };
        self.lines.write(&line)?;
        self.rows += 1;
        Ok(())
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn finish(self) -> Result<u64, DataError> {
        self.lines.finish()
    }

    /// The number of the row's group; groups are numbered as they come.
    fn group_of(&mut self, record: &ExportRecord, row: &TokenRow) -> u64 {
        if self.row_index != Some(record.row_index) {
            self.row_index = Some(record.row_index);
            self.groups.clear();
        }
        let key = (row.visit, row.sample.clone(), row.turn);
        *self.groups.entry(key).or_insert_with(|| {
            self.next_group += 1;
            self.next_group - 1
        })
    }
}

/// The versions that sampled, in their order, each change told once.
fn weight_versions(versions: &[Option<PolicyVersion>]) -> Vec<String> {
    let mut sampled: Vec<PolicyVersion> = versions.iter().copied().flatten().collect();
    sampled.dedup();
    sampled
        .iter()
        .map(|version| version.0.to_string())
        .collect()
}
