//! One recorded call, in whatever dialect it was made: what was asked, and what was answered.

use std::collections::BTreeMap;

use osmosis_tokens::ChatFormat;
use serde_json::{Map, Value, json};

use super::Recorded;
use crate::runs::transcript::{self, Entry};

/// One answer to a call.
pub(super) struct Answer {
    pub(super) said: Vec<Entry>,
    /// The id that the caller was given.
    pub(super) id: Option<String>,
}

/// What the caller sent. A body that can't be read is shown as nothing.
pub(super) fn asked(recorded: &Recorded, tokenizer: Option<&ChatFormat>) -> Vec<Entry> {
    let request: Value = serde_json::from_slice(&recorded.body.request).unwrap_or_default();
    match recorded.call.dialect.as_str() {
        "generate" => vec![tokens("tokens in", &request["input_ids"], tokenizer)],
        "completions" => vec![Entry::new("prompt", text(&request["prompt"]))],
        "messages" => conversation(&request["system"], &request["messages"]),
        "responses" => conversation(&request["instructions"], &request["input"]),
        _ => conversation(&Value::Null, &request["messages"]),
    }
}

/// What came back: one answer, or one for each choice.
pub(super) fn answers(recorded: &Recorded, tokenizer: Option<&ChatFormat>) -> Vec<Answer> {
    let response = &recorded.body.response;
    let whole: Value = if recorded.call.streamed {
        let events = events(response);
        match recorded.call.dialect.as_str() {
            "messages" => streamed_message(&events),
            "responses" => streamed_response(&events),
            _ => streamed_choices(&events),
        }
    } else {
        serde_json::from_slice(response).unwrap_or_default()
    };
    let id = whole["id"].as_str().map(str::to_owned);
    let answer = |said| Answer {
        said,
        id: id.clone(),
    };
    match recorded.call.dialect.as_str() {
        "generate" => vec![answer(vec![tokens(
            "tokens out",
            &whole["output_ids"],
            tokenizer,
        )])],
        "messages" => {
            let message = json!({"role": "assistant", "content": whole["content"]});
            vec![answer(transcript::entries(&[message]))]
        }
        "responses" => vec![answer(transcript::entries(array(&whole["output"])))],
        dialect => array(&whole["choices"])
            .iter()
            .map(|choice| {
                answer(if dialect == "completions" {
                    vec![Entry::new("completion", text(&choice["text"]))]
                } else {
                    transcript::entries(std::slice::from_ref(&choice["message"]))
                })
            })
            .collect(),
    }
}

fn conversation(system: &Value, messages: &Value) -> Vec<Entry> {
    let mut found = vec![];
    if !system.is_null() {
        found.push(json!({"role": "system", "content": system}));
    }
    match messages {
        Value::String(text) => found.push(json!({"role": "user", "content": text})),
        other => found.extend_from_slice(array(other)),
    }
    transcript::entries(&found)
}

fn tokens(speaker: &str, ids: &Value, tokenizer: Option<&ChatFormat>) -> Entry {
    let ids: Vec<u32> = array(ids)
        .iter()
        .filter_map(|id| u32::try_from(id.as_u64()?).ok())
        .collect();
    let decoded = tokenizer.and_then(|tokenizer| tokenizer.decode(&ids, false).ok());
    let counted = match ids.len() {
        1 => "1 id".to_owned(),
        count => format!("{count} ids"),
    };
    Entry::new(speaker, decoded.unwrap_or(counted))
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The data of every event that has some.
fn events(stream: &[u8]) -> Vec<Value> {
    stream
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line.strip_prefix(b"data:")?).ok())
        .collect()
}

fn push_text(target: &mut Map<String, Value>, name: &str, more: &Value) {
    let Some(more) = more.as_str() else { return };
    let before = target.get(name).and_then(Value::as_str).unwrap_or_default();
    let joined = format!("{before}{more}");
    target.insert(name.to_owned(), Value::String(joined));
}

/// Chat chunks, and those of plain completions, as the completion they are parts of.
fn streamed_choices(events: &[Value]) -> Value {
    let mut choices: BTreeMap<u64, Choice> = BTreeMap::new();
    for delta in events.iter().flat_map(|event| array(&event["choices"])) {
        let choice = choices
            .entry(delta["index"].as_u64().unwrap_or(0))
            .or_default();
        push_text(&mut choice.fields, "text", &delta["text"]);
        for name in ["content", "refusal", "reasoning", "reasoning_content"] {
            push_text(&mut choice.message, name, &delta["delta"][name]);
        }
        for (position, call) in array(&delta["delta"]["tool_calls"]).iter().enumerate() {
            let index = call["index"].as_u64().unwrap_or(position as u64);
            let function = choice.calls.entry(index).or_default();
            for name in ["name", "arguments"] {
                push_text(function, name, &call["function"][name]);
            }
        }
    }
    let choices: Vec<Value> = choices.into_values().map(Choice::whole).collect();
    let id = events.iter().find_map(|event| event["id"].as_str());
    json!({"id": id, "choices": choices})
}

/// A choice of which pieces came.
#[derive(Default)]
struct Choice {
    fields: Map<String, Value>,
    message: Map<String, Value>,
    calls: BTreeMap<u64, Map<String, Value>>,
}

impl Choice {
    fn whole(mut self) -> Value {
        self.message.insert("role".to_owned(), json!("assistant"));
        if !self.calls.is_empty() {
            let calls: Vec<Value> = self
                .calls
                .into_values()
                .map(|function| json!({ "function": function }))
                .collect();
            self.message.insert("tool_calls".to_owned(), json!(calls));
        }
        self.fields
            .insert("message".to_owned(), Value::Object(self.message));
        Value::Object(self.fields)
    }
}

/// The events of Anthropic's dialect as the message they are parts of.
fn streamed_message(events: &[Value]) -> Value {
    let mut blocks: BTreeMap<u64, Map<String, Value>> = BTreeMap::new();
    for event in events {
        let block = blocks.entry(event["index"].as_u64().unwrap_or(0));
        match event["type"].as_str() {
            Some("content_block_start") => {
                let started = event["content_block"].as_object().cloned();
                block.or_insert_with(|| started.unwrap_or_default());
            }
            Some("content_block_delta") => {
                let block = block.or_default();
                for name in ["text", "thinking", "partial_json"] {
                    push_text(block, name, &event["delta"][name]);
                }
            }
            _ => {}
        }
    }
    for block in blocks.values_mut() {
        if let Some(Value::String(text)) = block.remove("partial_json") {
            let input = serde_json::from_str(&text).unwrap_or(Value::String(text));
            block.insert("input".to_owned(), input);
        }
    }
    let id = events
        .iter()
        .find_map(|event| event["message"]["id"].as_str());
    json!({"id": id, "content": blocks.into_values().collect::<Vec<_>>()})
}

/// The response that the last event has, or the items that were finished before the stream broke off.
fn streamed_response(events: &[Value]) -> Value {
    let ended = |event: &&Value| {
        matches!(
            event["type"].as_str(),
            Some("response.completed" | "response.incomplete")
        )
    };
    if let Some(event) = events.iter().find(ended) {
        return event["response"].clone();
    }
    let items: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| &event["item"])
        .collect();
    let id = events
        .iter()
        .find_map(|event| event["response"]["id"].as_str());
    json!({"id": id, "output": items})
}
