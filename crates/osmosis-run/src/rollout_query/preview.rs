//! What a rollout in a list was about: the beginning of its prompt and of its answer.

use osmosis_core::{RolloutId, Sample};
use osmosis_data::Row;
use osmosis_data::conversation::{Conversation, Role, Turn};
use osmosis_store::{RowRecord, Store};
use serde_json::Value;

use super::ListedRollout;
use super::text::has_messages;
use crate::RunError;
use crate::transcripts::{self, Telling};

/// Characters of a preview.
const WIDTH: usize = 200;
/// Rollouts whose samples are in memory at once.
const AT_ONCE: usize = 100;

/// Adds previews to the rollouts of a page.
pub(super) async fn add(store: &dyn Store, items: &mut [ListedRollout]) -> Result<(), RunError> {
    for some in items.chunks_mut(AT_ONCE) {
        let mut rows: Vec<u64> = some.iter().map(|item| item.line.result.row_index).collect();
        rows.dedup();
        let rows = store.rows(&rows).await?;
        let ids: Vec<RolloutId> = some
            .iter()
            .map(|item| item.line.result.rollout_id.clone())
            .collect();
        let samples = store.samples_of(&ids).await?;
        for (item, samples) in some.iter_mut().zip(&samples) {
            let row_index = item.line.result.row_index;
            if let Some(row) = rows.iter().find(|row| row.row_index == row_index) {
                (item.prompt, item.ground_truth) = of_row(row);
            }
            item.answer = of_samples(samples);
        }
        let silent: Vec<usize> = (0..some.len())
            .filter(|place| !has_messages(&samples[*place]))
            .filter(|place| some[*place].line.effort.model_calls > 0)
            .collect();
        let silent_ids: Vec<RolloutId> = silent.iter().map(|place| ids[*place].clone()).collect();
        let theirs = silent.iter().map(|place| samples[*place].as_slice());
        let talks = transcripts::of_each(store, &silent_ids, theirs, &Telling::default()).await?;
        for (place, talks) in silent.into_iter().zip(&talks) {
            let mains = talks
                .iter()
                .filter_map(|talk| talk.conversations.get(talk.main));
            some[place].answer = mains.filter_map(answer).next_back();
        }
    }
    Ok(())
}

fn of_row(row: &RowRecord) -> (Option<String>, Option<String>) {
    let Ok(row) = Row::from_body(row.row_index, row.line, &row.body) else {
        return (None, None);
    };
    let messages: Vec<Value> = row.prompt.into_iter().map(Value::Object).collect();
    let turns = Conversation::of_messages(&messages).turns;
    let asked = turns.iter().rev().find(|turn| turn.role == Role::User);
    let prompt = asked.map(Turn::text).filter(|text| !text.is_empty());
    (
        prompt.map(|text| short(&text)),
        row.label.map(|label| short(&label)),
    )
}

fn of_samples(samples: &[Sample]) -> Option<String> {
    let kept = samples.iter().filter(|sample| !sample.remove_sample);
    kept.filter_map(|sample| {
        let messages: Vec<Value> = sample.messages.read().ok()?;
        answer(&Conversation::of_messages(&messages))
    })
    .next_back()
}

fn answer(conversation: &Conversation) -> Option<String> {
    let said = conversation.turns.iter().rev();
    let mut said = said.filter(|turn| turn.role == Role::Assistant);
    said.next().map(|turn| {
        let text = turn.text();
        if text.is_empty()
            && let Some(call) = turn.tool_calls.last()
        {
            return short(&format!("{}({})", call.name, call.arguments));
        }
        short(&text)
    })
}

/// The beginning, on one line.
fn short(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.chars().count() > WIDTH {
            line = line.chars().take(WIDTH).collect();
            line.push('…');
            break;
        }
    }
    line
}
