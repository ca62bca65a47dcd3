//! `messages`: each conversation in the shape of Chat Completions, with how it ended.

use serde_json::{Value, json};

use super::talk::{SampleTalk, identity};
use super::{ExportRecord, SCHEMA_VERSION};
use crate::conversation::{CallFacts, Conversation};

pub(super) fn lines(record: &ExportRecord, samples: &[SampleTalk]) -> Vec<Value> {
    let mut lines = Vec::new();
    for sample in samples {
        for (number, conversation) in sample.conversations.iter().enumerate() {
            lines.push(line(record, sample, number, conversation));
        }
    }
    lines
}

fn line(
    record: &ExportRecord,
    sample: &SampleTalk,
    number: usize,
    conversation: &Conversation,
) -> Value {
    let sum = |count: fn(&CallFacts) -> Option<u64>| {
        let counts: Vec<u64> = conversation.calls().filter_map(count).collect();
        (!counts.is_empty()).then(|| counts.iter().sum::<u64>())
    };
    let mut line = serde_json::Map::new();
    line.insert("schema_version".to_owned(), SCHEMA_VERSION.into());
    line.extend(identity(record, sample, number));
    let rest = json!({
        "main": number == sample.main,
        "model": conversation.calls().last().map(|call| &call.model),
        "messages": conversation.chat_messages(),
        "tools": conversation.tools,
        "call_error": conversation.error,
        "label": record.label,
        "metadata": record.metadata,
        "model_calls": conversation.calls().count(),
        "prompt_tokens": sum(|call| call.usage.prompt_tokens),
        "completion_tokens": sum(|call| call.usage.completion_tokens),
        "cached_tokens": sum(|call| call.usage.cached_tokens),
        "reasoning_tokens": sum(|call| call.usage.reasoning_tokens),
    });
    if let Value::Object(rest) = rest {
        line.extend(rest);
    }
    Value::Object(line)
}
