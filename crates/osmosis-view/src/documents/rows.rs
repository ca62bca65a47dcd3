//! Dataset rows: all attempts at one, and how rows begin.

use std::collections::HashSet;

use osmosis_core::JsonText;
use osmosis_run::reports::{RolloutGrid, RowGroup};
use osmosis_run::transcript_search::TranscriptMatches;
use serde::Serialize;

use super::{Documents, OpenRun};
use crate::api::ApiError;
use crate::response::{self, ListEnvelope};

/// Characters of a row in a list.
const ROW_TEXT: usize = 300;
/// Rows that one request may name.
const MOST_ROWS: usize = 1000;

/// A dataset row in a list.
#[derive(Debug, Serialize)]
pub(crate) struct RowText {
    row_index: u64,
    text: String,
}

impl Documents {
    pub(crate) async fn row(&self, name: &str, row_index: u64) -> Result<Vec<u8>, ApiError> {
        let run = self.open(name).await?;
        let (store, calls) = (&*run.read.store, &*run.calls);
        response::data(&RowGroup::of(store, calls, &run.record, row_index).await?)
    }

    /// How these rows begin.
    pub(crate) async fn row_texts(
        &self,
        name: &str,
        indices: &[u64],
    ) -> Result<ListEnvelope<RowText>, ApiError> {
        let run = self.open(name).await?;
        let indices = &indices[..indices.len().min(MOST_ROWS)];
        let rows = run.read.store.rows(indices).await?;
        let items = rows.iter().map(|row| RowText {
            row_index: row.row_index,
            text: row_text(&row.body).chars().take(ROW_TEXT).collect(),
        });
        Ok(ListEnvelope::whole(items.collect()))
    }
}

/// The rollouts of rows that hold a text, whatever its case.
pub(super) async fn with_text(
    run: &OpenRun,
    text: &str,
    grid: &RolloutGrid,
) -> Result<TranscriptMatches, ApiError> {
    let wanted = text.to_lowercase();
    let mut indices: Vec<u64> = grid.row_index.clone();
    indices.dedup();
    let mut found = HashSet::new();
    for some in indices.chunks(MOST_ROWS) {
        for row in run.read.store.rows(some).await? {
            if row.body.as_str().to_lowercase().contains(&wanted)
                || row_text(&row.body).to_lowercase().contains(&wanted)
            {
                found.insert(row.row_index);
            }
        }
    }
    let places = grid
        .row_index
        .iter()
        .copied()
        .zip(grid.run_index.iter().copied());
    Ok(TranscriptMatches {
        rollouts: places.filter(|(row, _)| found.contains(row)).collect(),
        searched: grid.len() as u64,
        finished: grid.len() as u64,
    })
}

/// What a row asks: its prompt, or else the whole of it.
fn row_text(body: &JsonText) -> String {
    let Ok(serde_json::Value::Object(row)) = body.read::<serde_json::Value>() else {
        return body.as_str().to_owned();
    };
    for column in [
        "user_prompt",
        "prompt",
        "question",
        "problem",
        "input",
        "messages",
    ] {
        match row.get(column) {
            Some(serde_json::Value::String(text)) => return text.clone(),
            Some(serde_json::Value::Array(messages)) => {
                let mut texts = messages
                    .iter()
                    .filter_map(|message| message.get("content")?.as_str());
                if let Some(last) = texts.next_back() {
                    return last.to_owned();
                }
            }
            Some(_) | None => {}
        }
    }
    body.as_str().to_owned()
}
