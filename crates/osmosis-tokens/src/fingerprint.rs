//! Which messages mean the same.

use std::borrow::Cow;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::messages::{REASONING_FIELDS, content_text};

/// A digest that stands for what was digested; two that are equal come from the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Fingerprint([u8; 16]);

impl Fingerprint {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let digest = Sha256::digest(bytes);
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        Self(first)
    }

    /// The fingerprint of a list that is this one's with one more at the end.
    pub(crate) fn then(self, next: Self) -> Self {
        let mut both = [0; 32];
        both[..16].copy_from_slice(&self.0);
        both[16..].copy_from_slice(&next.0);
        Self::of(&both)
    }
}

/// Fields that say nothing about the conversation. Reasoning is here because most clients drop it when
/// they send a reply back; see [`reasoning`].
const IGNORED: [&str; 4] = ["refusal", "annotations", "audio", "content"];

/// A message, whatever way a client writes it: absent is null; text parts are their joined text; empty
/// content is none; the arguments of a tool call are JSON, not text.
pub(crate) fn of_message(message: &Value) -> Fingerprint {
    let mut out = Vec::new();
    match message {
        Value::Object(fields) => {
            let content = match content_text(fields.get("content")) {
                Ok(text) => Value::String(text.map(Cow::into_owned).unwrap_or_default()),
                // No model here can be given it; it is still not equal to something else.
                Err(_) => fields["content"].clone(),
            };
            write_text(&mut out, "content");
            write_value(&mut out, &content);
            write_fields(&mut out, fields, |name, value| {
                if IGNORED.contains(&name) || REASONING_FIELDS.contains(&name) {
                    return None;
                }
                match (name, value) {
                    ("tool_calls", Value::Array(calls)) if calls.is_empty() => None,
                    ("tool_calls", Value::Array(calls)) => {
                        Some(Cow::Owned(calls.iter().map(tool_call).collect()))
                    }
                    (_, value) => Some(Cow::Borrowed(value)),
                }
            });
        }
        other => write_value(&mut out, other),
    }
    Fingerprint::of(&out)
}

/// The reasoning that a message carries.
pub(crate) fn reasoning(message: &Value) -> Option<&str> {
    REASONING_FIELDS
        .iter()
        .find_map(|name| message.get(*name)?.as_str())
        .filter(|text| !text.trim().is_empty())
}

pub(crate) fn of_tools(tools: Option<&[Value]>) -> Fingerprint {
    let mut out = Vec::new();
    for tool in tools.unwrap_or_default() {
        write_value(&mut out, tool);
    }
    Fingerprint::of(&out)
}

pub(crate) fn of_extra(extra: &Map<String, Value>) -> Fingerprint {
    let mut out = Vec::new();
    write_fields(&mut out, extra, |_, value| Some(Cow::Borrowed(value)));
    Fingerprint::of(&out)
}

fn tool_call(call: &Value) -> Value {
    let mut call = call.clone();
    if let Some(fields) = call.as_object_mut() {
        // Where it stood in a stream.
        fields.remove("index");
        fields
            .entry("type")
            .or_insert_with(|| Value::String("function".to_owned()));
    }
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(text) = arguments.as_str()
    {
        let text = if text.trim().is_empty() { "{}" } else { text };
        if let Ok(parsed) = serde_json::from_str(text) {
            *arguments = parsed;
        }
    }
    call
}

/// Fields in the order of their names, without those that are null.
fn write_fields<'a>(
    out: &mut Vec<u8>,
    fields: &'a Map<String, Value>,
    kept: impl Fn(&str, &'a Value) -> Option<Cow<'a, Value>>,
) {
    let mut kept: Vec<(&str, Cow<'_, Value>)> = fields
        .iter()
        .filter(|(_, value)| !value.is_null())
        .filter_map(|(name, value)| Some((name.as_str(), kept(name, value)?)))
        .collect();
    kept.sort_by_key(|(name, _)| *name);
    for (name, value) in kept {
        write_text(out, name);
        write_value(out, &value);
    }
}

/// A form that no two values share: a tag, and a length before what varies.
fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(b'n'),
        Value::Bool(true) => out.push(b't'),
        Value::Bool(false) => out.push(b'f'),
        Value::Number(number) => {
            out.push(b'd');
            write_text(out, &number.to_string());
        }
        Value::String(text) => {
            out.push(b's');
            write_text(out, text);
        }
        Value::Array(items) => {
            out.push(b'[');
            out.extend_from_slice(&(items.len() as u64).to_le_bytes());
            for item in items {
                write_value(out, item);
            }
        }
        Value::Object(fields) => {
            out.push(b'{');
            out.extend_from_slice(&(fields.len() as u64).to_le_bytes());
            let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            for (name, value) in sorted {
                write_text(out, name);
                write_value(out, value);
            }
        }
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn assistant(arguments: &str) -> Value {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}},
        ]})
    }

    #[test]
    fn ways_to_write_the_same_message_are_equal() {
        for (one, other) in [
            (
                json!({"role": "assistant", "content": "x"}),
                json!({"content": [{"type": "text", "text": "x"}], "role": "assistant", "refusal": null,
                    "annotations": [], "audio": null, "function_call": null, "tool_calls": [], "name": null,
                    "reasoning_content": "hm"}),
            ),
            (
                assistant("{\"a\":1,\"b\":[2]}"),
                json!({"role": "assistant", "content": "", "tool_calls": [
                    {"index": 0, "id": "1", "function": {"arguments": {"b": [2], "a": 1}, "name": "f"}},
                ]}),
            ),
            (assistant(""), assistant("{}")),
            (
                json!({"role": "assistant"}),
                json!({"role": "assistant", "content": null}),
            ),
        ] {
            assert_eq!(of_message(&one), of_message(&other), "{one} {other}");
        }
    }

    #[test]
    fn messages_that_say_something_else_differ() {
        let all = [
            json!({"role": "assistant", "content": "x"}),
            json!({"role": "user", "content": "x"}),
            json!({"role": "user", "content": "x "}),
            json!({"role": "user", "content": "x", "name": "n"}),
            json!({"role": "tool", "content": "x", "tool_call_id": "1"}),
            json!({"role": "tool", "content": "x", "tool_call_id": "2"}),
            assistant("{\"a\":1}"),
            assistant("{\"a\":\"1\"}"),
            assistant("{\"a\":null}"),
            assistant("{}"),
            assistant("not json"),
            json!({"role": "user", "content": [{"type": "image_url", "image_url": "a"}]}),
            json!({"role": "user", "content": [{"type": "image_url", "image_url": "b"}]}),
        ];
        for (n, one) in all.iter().enumerate() {
            for other in &all[n + 1..] {
                assert_ne!(of_message(one), of_message(other), "{one} {other}");
            }
        }
    }
}
