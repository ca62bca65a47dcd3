//! What the server answers: one conversation, whole or as the events of a stream.

use bytes::Bytes;
use serde_json::{Value, json};

pub(super) const DONE: &[u8] = b"data: [DONE]\n\n";

/// The answer to a conversation.
pub(super) fn completion(body: &Value) -> Value {
    let messages = body["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let last = messages.last().cloned().unwrap_or_default();
    let asked = messages
        .iter()
        .rev()
        .find(|message| message["role"] == "user")
        .and_then(|message| factors_in(&text_of(&message["content"])));
    let has_tools = body["tools"]
        .as_array()
        .is_some_and(|tools| !tools.is_empty());
    let (message, finish_reason) = if last["role"] == "tool" {
        say(&format!("The answer is {}.", text_of(&last["content"])))
    } else {
        match asked {
            Some((a, b)) if has_tools => call_multiply(a, b),
            Some((a, b)) => say(&format!("The answer is {}.", a.wrapping_mul(b))),
            None => say("Hello from the model server."),
        }
    };
    let words: usize = messages
        .iter()
        .map(|message| text_of(&message["content"]).split_whitespace().count())
        .sum();
    json!({
        "id": format!("chatcmpl-fake-{}", messages.len()),
        "object": "chat.completion",
        "created": 1_735_689_600,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": words, "completion_tokens": 5, "total_tokens": words + 5},
    })
}

fn say(text: &str) -> (Value, &'static str) {
    (json!({"role": "assistant", "content": text}), "stop")
}

fn call_multiply(a: i64, b: i64) -> (Value, &'static str) {
    let arguments = json!({"a": a, "b": b}).to_string();
    let call = json!({"id": format!("call_{a}_{b}"), "type": "function",
        "function": {"name": "multiply", "arguments": arguments}});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    (message, "tool_calls")
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

/// A and B of `What is A times B`.
fn factors_in(text: &str) -> Option<(i64, i64)> {
    let (_, rest) = text.split_once("What is ")?;
    let (a, rest) = rest.split_once(" times ")?;
    let end = rest
        .char_indices()
        .find(|(at, c)| !(c.is_ascii_digit() || (*at == 0 && *c == '-')))
        .map_or(rest.len(), |(at, _)| at);
    Some((a.trim().parse().ok()?, rest[..end].parse().ok()?))
}

/// The events of a stream: role, pieces, why it finished, usage when asked for, `[DONE]`.
pub(super) fn events_of(completion: &Value, wants_usage: bool) -> Vec<Bytes> {
    let chunk = |delta: Value, finish_reason: Value| {
        json!({"id": completion["id"], "object": "chat.completion.chunk", "created": completion["created"],
            "model": completion["model"],
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})
    };
    let choice = &completion["choices"][0];
    let mut chunks = vec![chunk(
        json!({"role": "assistant", "content": ""}),
        Value::Null,
    )];
    if let Some(text) = choice["message"]["content"].as_str() {
        for piece in text.split_inclusive(' ') {
            chunks.push(chunk(json!({"content": piece}), Value::Null));
        }
    }
    if let Some(call) = choice["message"]["tool_calls"].get(0) {
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        let (first, second) = arguments.split_at(arguments.len() / 2);
        let opening = json!({"index": 0, "id": call["id"], "type": "function",
            "function": {"name": call["function"]["name"], "arguments": ""}});
        chunks.push(chunk(json!({"tool_calls": [opening]}), Value::Null));
        for piece in [first, second] {
            let delta = json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]});
            chunks.push(chunk(delta, Value::Null));
        }
    }
    chunks.push(chunk(json!({}), choice["finish_reason"].clone()));
    if wants_usage {
        for chunk in &mut chunks {
            chunk["usage"] = Value::Null;
        }
        let mut last = chunk(json!({}), Value::Null);
        last["choices"] = json!([]);
        last["usage"] = completion["usage"].clone();
        chunks.push(last);
    }
    let mut events: Vec<Bytes> = chunks
        .iter()
        .map(|chunk| Bytes::from(format!("data: {chunk}\n\n")))
        .collect();
    events.push(Bytes::from_static(DONE));
    events
}
