//! `sft`: rows for fine-tuning a chat model: whole conversations that ended well.

use osmosis_core::OutcomeKind;
use serde_json::{Value, json};

use super::ExportRecord;
use super::talk::{SampleTalk, SftFilter};
use crate::conversation::{Conversation, Role, Turn};

/// What dialects say of a reply that was cut off.
const CUT_OFF: [&str; 4] = [
    "length",
    "max_tokens",
    "max_output_tokens",
    "content_filter",
];

pub(super) fn rows(record: &ExportRecord, samples: &[SampleTalk], filter: SftFilter) -> Vec<Value> {
    if record.outcome != Some(OutcomeKind::Scored) || filter.passed && !record.passed {
        return Vec::new();
    }
    let mut rows = Vec::new();
    for sample in samples {
        let Some(reward) = sample.reward.filter(|_| !sample.removed) else {
            continue;
        };
        if filter.min_reward.is_some_and(|least| reward < least) {
            continue;
        }
        let conversations = sample.conversations.iter();
        rows.extend(conversations.filter_map(|talk| row(record, sample, reward, talk)));
    }
    rows
}

/// `None` when there is nothing to learn: no reply, or one that was cut off.
fn row(
    record: &ExportRecord,
    sample: &SampleTalk,
    reward: f64,
    conversation: &Conversation,
) -> Option<Value> {
    let turns = &conversation.turns;
    let last = turns
        .iter()
        .rposition(|turn| turn.role == Role::Assistant)?;
    let end = turns[last].call.as_ref();
    let finish = end.and_then(|call| call.finish_reason.as_deref());
    if finish.is_some_and(|reason| CUT_OFF.contains(&reason)) {
        return None;
    }
    let messages: Vec<Value> = turns[..=last].iter().map(Turn::chat_message).collect();
    let mut row = json!({ "messages": messages });
    // A column that is empty everywhere has no type for those who read it.
    if !conversation.tools.is_empty() {
        row["tools"] = json!(conversation.tools);
    }
    row["reward"] = json!(reward);
    row["rollout_id"] = json!(record.rollout_id);
    row["sample_id"] = json!(sample.id);
    Some(row)
}
