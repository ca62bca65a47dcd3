//! What a row of tokens says, found by its ids.

use osmosis_core::JsonText;
use serde_json::{Map, Value, json};

use super::TokenRow;
use crate::conversation::{CallTokens, Turn};
use crate::export::{ExportRecord, SampleTalk};
use crate::{Row, conversation};

/// What is known of it beyond the ids.
pub(super) enum Spoken<'a> {
    /// The turns up to the reply that the row ends with, and the place of the reply that it is trained on
    /// first.
    Turns { turns: &'a [Turn], first: usize },
    /// No call has these ids, or it has no text: a sequence that user code put together, a call in token ids.
    /// What the dataset asks is the best there is.
    Asked {
        prompt: Vec<Map<String, Value>>,
        calls: u64,
    },
}

impl<'a> Spoken<'a> {
    pub(super) fn of(record: &ExportRecord, row: &TokenRow, samples: &'a [SampleTalk]) -> Self {
        Self::heard(row, samples).unwrap_or_else(|| Self::Asked {
            prompt: asked(record.row_index, &record.row),
            calls: row.calls,
        })
    }

    fn heard(row: &TokenRow, samples: &'a [SampleTalk]) -> Option<Self> {
        let prompt = &row.ids[..row.split()];
        let sample = samples.iter().find(|sample| sample.id == row.sample)?;
        sample.conversations.iter().find_map(|talk| {
            let tokens = |turn: &'a Turn| turn.call.as_ref().and_then(|call| call.tokens.as_ref());
            let turns = &talk.turns;
            let last = turns
                .iter()
                .rposition(|turn| tokens(turn).is_some_and(|tokens| is_whole(tokens, &row.ids)))?;
            let first = turns[..=last]
                .iter()
                .position(|turn| tokens(turn).is_some_and(|tokens| tokens.prompt == prompt))?;
            let has_text = turns[..=last].iter().all(|turn| turn.token_ids.is_none());
            has_text.then(|| Self::Turns {
                turns: &turns[..=last],
                first,
            })
        })
    }

    /// Who said what before the first reply.
    pub(super) fn beginning(&self) -> Vec<(String, String)> {
        match self {
            Self::Turns { turns, .. } => turns
                .iter()
                .take_while(|turn| turn.call.is_none())
                .map(|turn| (turn.role.as_str().to_owned(), turn.text()))
                .collect(),
            Self::Asked { prompt, .. } => prompt
                .iter()
                .map(|message| {
                    let content = match &message["content"] {
                        Value::String(text) => text.clone(),
                        other => other.to_string(),
                    };
                    let role = message["role"].as_str().unwrap_or("user").to_owned();
                    (role, content)
                })
                .collect(),
        }
    }

    /// The messages before what is trained on, in the shape of Chat Completions.
    pub(super) fn prompt(&self) -> Vec<Value> {
        match self {
            Self::Turns { turns, first } => {
                turns[..*first].iter().map(Turn::chat_message).collect()
            }
            Self::Asked { prompt, .. } => prompt.iter().map(|message| json!(message)).collect(),
        }
    }

    /// What was said from there on, the replies and what stands between them; empty when it is not known.
    pub(super) fn response(&self) -> String {
        match self {
            Self::Turns { turns, first } => {
                let texts: Vec<String> = turns[*first..].iter().map(read_aloud).collect();
                texts.join("\n")
            }
            Self::Asked { .. } => String::new(),
        }
    }

    /// Why the last reply ended, as the dialect says it.
    pub(super) fn finish_reason(&self) -> Option<&str> {
        match self {
            Self::Turns { turns, .. } => turns.last()?.call.as_ref()?.finish_reason.as_deref(),
            Self::Asked { .. } => None,
        }
    }

    /// How many messages there are but the system's.
    pub(super) fn turns(&self) -> u64 {
        match self {
            Self::Turns { turns, .. } => turns
                .iter()
                .filter(|turn| turn.role != conversation::Role::System)
                .count() as u64,
            // A question and an answer each.
            Self::Asked { calls, .. } => 2 * calls.max(&1),
        }
    }
}

/// The text of a turn, and the tools it calls.
fn read_aloud(turn: &Turn) -> String {
    let mut parts = vec![turn.text()];
    let calls = turn.tool_calls.iter();
    parts.extend(calls.map(|call| format!("{}({})", call.name, call.arguments)));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

fn is_whole(tokens: &CallTokens, ids: &[u32]) -> bool {
    let at = tokens.prompt.len();
    ids.len() == at + tokens.sampled.len()
        && ids[..at] == tokens.prompt
        && ids[at..] == tokens.sampled
}

/// The messages of a dataset row; none when it has no columns for them.
fn asked(row_index: u64, body: &JsonText) -> Vec<Map<String, Value>> {
    Row::from_body(row_index, 1, body).map_or_else(|_| Vec::new(), |row| row.prompt)
}
