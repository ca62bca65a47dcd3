//! A whole chat completion as the events of a stream.

use bytes::Bytes;
use serde_json::{Map, Value, json};

/// The events of the stream that carries the same answer as `completion`, `[DONE]` included. Text and
/// tool arguments come in pieces of a word each.
pub fn completion_to_sse(completion: &Value, include_usage: bool) -> Vec<Bytes> {
    let mut chunks = Vec::new();
    let head = |choices: Value| {
        let mut chunk = Map::new();
        for key in ["id", "created", "model", "system_fingerprint"] {
            if let Some(value) = completion.get(key) {
                chunk.insert(key.to_owned(), value.clone());
            }
        }
        chunk.insert("object".to_owned(), json!("chat.completion.chunk"));
        chunk.insert("choices".to_owned(), choices);
        Value::Object(chunk)
    };
    let choices = completion.get("choices").and_then(Value::as_array);
    for (position, choice) in choices.into_iter().flatten().enumerate() {
        let index = choice.get("index").cloned().unwrap_or(json!(position));
        let deltas = deltas_of(choice.get("message").unwrap_or(&Value::Null));
        for delta in deltas {
            let choice =
                json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
            chunks.push(head(Value::Array(vec![choice])));
        }
        let finish = choice
            .get("finish_reason")
            .cloned()
            .unwrap_or(json!("stop"));
        let logprobs = choice.get("logprobs").cloned().unwrap_or(Value::Null);
        let last =
            json!({"index": index, "delta": {}, "logprobs": logprobs, "finish_reason": finish});
        chunks.push(head(Value::Array(vec![last])));
    }
    if include_usage && let Some(usage) = completion.get("usage") {
        let mut chunk = head(Value::Array(Vec::new()));
        chunk["usage"] = usage.clone();
        chunks.push(chunk);
    }
    let mut events: Vec<Bytes> = chunks
        .iter()
        .map(|chunk| Bytes::from(format!("data: {chunk}\n\n")))
        .collect();
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}

/// A message as the increments it is sent in.
fn deltas_of(message: &Value) -> Vec<Value> {
    let mut opening = Map::new();
    opening.insert("role".to_owned(), json!("assistant"));
    let mut rest = Vec::new();
    for (key, value) in message.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            ("role", _) => {}
            ("content", Value::String(text)) => {
                opening.insert(key.clone(), json!(""));
                rest.extend(words(text).map(|word| json!({"content": word})));
            }
            ("tool_calls", Value::Array(calls)) => {
                for (index, call) in calls.iter().enumerate() {
                    rest.extend(tool_call_deltas(index, call));
                }
            }
            // `reasoning_content`, `refusal` and whatever else a server says travel in one piece.
            (_, value) => {
                opening.insert(key.clone(), value.clone());
            }
        }
    }
    let mut deltas = vec![Value::Object(opening)];
    deltas.append(&mut rest);
    deltas
}

fn tool_call_deltas(index: usize, call: &Value) -> Vec<Value> {
    let mut opening = call.clone();
    let arguments = call
        .pointer("/function/arguments")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if let Some(object) = opening.as_object_mut() {
        object.insert("index".to_owned(), json!(index));
    }
    if let Some(place) = opening.pointer_mut("/function/arguments") {
        *place = json!("");
    }
    let mut deltas = vec![json!({"tool_calls": [opening]})];
    deltas.extend(
        words(&arguments).map(
            |piece| json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}),
        ),
    );
    deltas
}

/// Pieces that end after a run of spaces; together they are the text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_becomes_a_stream() {
        let completion = json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 5, "model": "m",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
                "role": "assistant", "content": "Let me see.",
                "tool_calls": [{"id": "call_1", "type": "function",
                    "function": {"name": "multiply", "arguments": "{\"a\": 6, \"b\": 7}"}}]}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        });
        let text: Vec<String> = completion_to_sse(&completion, true)
            .iter()
            .map(|event| String::from_utf8(event.to_vec()).unwrap())
            .collect();
        insta::assert_snapshot!(text.concat());
        assert_eq!(completion_to_sse(&completion, false).len(), text.len() - 1);
    }
}
