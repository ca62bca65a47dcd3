//! Streamed replies put together: the body that the same reply would have had whole.

use serde_json::{Map, Value, json};

/// `None` when there is not one event.
pub(super) fn assemble(dialect: &str, body: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(body);
    let events = text.lines().filter_map(|line| {
        let data = line.strip_prefix("data:")?;
        serde_json::from_str::<Value>(data.trim()).ok()
    });
    let mut events = events.filter(Value::is_object).peekable();
    events.peek()?;
    Some(match dialect {
        "responses" => response(events),
        "messages" => message(events),
        _ => chat(events),
    })
}

/// Chunks of Chat Completions, or of plain completions.
fn chat(chunks: impl Iterator<Item = Value>) -> Value {
    let mut choices: Vec<Value> = Vec::new();
    let (mut id, mut usage) = (Value::Null, Value::Null);
    for mut chunk in chunks {
        if id.is_null() {
            id = chunk["id"].take();
        }
        if chunk["usage"].is_object() {
            usage = chunk["usage"].take();
        }
        for change in chunk["choices"].as_array().into_iter().flatten() {
            let choice = place(&mut choices, change["index"].as_u64());
            if let Some(text) = change["text"].as_str() {
                append(&mut choice["text"], text);
            }
            if let Some(delta) = change["delta"].as_object() {
                chat_delta(&mut choice["message"], delta);
            }
            if change["finish_reason"].is_string() {
                choice["finish_reason"] = change["finish_reason"].clone();
            }
        }
    }
    json!({"id": id, "choices": choices, "usage": usage})
}

fn chat_delta(message: &mut Value, delta: &Map<String, Value>) {
    if message.is_null() {
        *message = json!({"role": "assistant", "content": null});
    }
    for name in ["content", "refusal", "reasoning_content", "reasoning"] {
        if let Some(text) = delta.get(name).and_then(Value::as_str) {
            append(&mut message[name], text);
        }
    }
    let changes = delta.get("tool_calls").and_then(Value::as_array);
    for change in changes.into_iter().flatten() {
        if !message["tool_calls"].is_array() {
            message["tool_calls"] = json!([]);
        }
        let Value::Array(calls) = &mut message["tool_calls"] else {
            continue;
        };
        let call = place(calls, change["index"].as_u64());
        if call["id"].is_null() && change["id"].is_string() {
            call["id"] = change["id"].clone();
        }
        for name in ["name", "arguments"] {
            if let Some(text) = change["function"][name].as_str() {
                append(&mut call["function"][name], text);
            }
        }
    }
}

/// Events of Responses: the last has the whole response, unless the stream broke off.
fn response(events: impl Iterator<Item = Value>) -> Value {
    let mut id = Value::Null;
    let mut output = Vec::new();
    for mut event in events {
        match event["type"].as_str() {
            Some("response.created") => id = event["response"]["id"].clone(),
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                return event["response"].take();
            }
            Some("response.output_item.done") => output.push(event["item"].take()),
            _ => {}
        }
    }
    json!({"id": id, "output": output})
}

/// Events of Anthropic's Messages.
fn message(events: impl Iterator<Item = Value>) -> Value {
    let mut message = json!({"content": []});
    let mut blocks: Vec<Value> = Vec::new();
    for mut event in events {
        match event["type"].as_str() {
            Some("message_start") => message = object(event["message"].take()),
            Some("content_block_start") => {
                let index = event["index"].as_u64();
                *place(&mut blocks, index) = object(event["content_block"].take());
            }
            Some("content_block_delta") => {
                let block = place(&mut blocks, event["index"].as_u64());
                let delta = &event["delta"];
                for name in ["text", "thinking"] {
                    if let Some(text) = delta[name].as_str() {
                        append(&mut block[name], text);
                    }
                }
                if let Some(json) = delta["partial_json"].as_str() {
                    append(&mut block["partial_json"], json);
                }
            }
            Some("message_delta") => {
                if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                    message["stop_reason"] = json!(reason);
                }
                // It has the final counts of what it names.
                if let Some(counts) = event["usage"].as_object() {
                    if !message["usage"].is_object() {
                        message["usage"] = json!({});
                    }
                    for (name, count) in counts.iter().filter(|(_, count)| !count.is_null()) {
                        message["usage"][name] = count.clone();
                    }
                }
            }
            _ => {}
        }
    }
    for block in &mut blocks {
        let Some(partial) = block.get("partial_json").and_then(Value::as_str) else {
            continue;
        };
        let input = serde_json::from_str(partial).unwrap_or_else(|_| json!(partial));
        block["input"] = input;
    }
    message["content"] = Value::Array(blocks);
    message
}

/// What fields can be set in; a server may send anything in its place.
fn object(value: Value) -> Value {
    if value.is_object() { value } else { json!({}) }
}

/// The element at a place that a server named, made if need be.
fn place(list: &mut Vec<Value>, index: Option<u64>) -> &mut Value {
    /// More choices, calls or blocks than this are nobody's.
    const MOST: usize = 1024;
    let index = usize::try_from(index.unwrap_or(0))
        .unwrap_or(MOST)
        .min(MOST);
    if list.len() <= index {
        list.resize(index + 1, json!({}));
    }
    &mut list[index]
}

fn append(value: &mut Value, text: &str) {
    if let Value::String(said) = value {
        said.push_str(text);
    } else {
        *value = json!(text);
    }
}

#[cfg(test)]
mod tests {
    use crate::conversation::{Part, reply};

    use super::*;

    fn streamed(events: &[Value]) -> String {
        let lines = events.iter().map(|event| format!("data: {event}\n\n"));
        lines.collect::<String>() + "data: [DONE]\n\n"
    }

    #[test]
    fn events_that_hold_something_else_than_they_should_are_passed_over() {
        for odd in [json!("x"), json!(7), json!([1]), json!(null)] {
            let events = [
                json!({"type": "message_start", "message": odd}),
                json!({"type": "content_block_start", "index": 0, "content_block": odd}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"text": "t"}}),
                json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}),
                json!({"type": "response.created", "response": odd}),
                json!({"type": "message_start", "message": {"usage": odd}}),
                json!({"type": "message_delta", "usage": {"output_tokens": 1}}),
            ];
            for (dialect, expected) in [
                ("messages", r#"([Text("t")], Some(1))"#),
                ("responses", "([], None)"),
                ("chat_completions", "([], Some(1))"),
            ] {
                let read = reply::read(dialect, streamed(&events).as_bytes());
                let turns = read.choices.iter().flat_map(|choice| &choice.turns);
                let parts: Vec<&Part> = turns.flat_map(|turn| &turn.content).collect();
                let found = (parts, read.usage.completion_tokens);
                assert_eq!(format!("{found:?}"), expected, "{dialect} {odd}");
            }
        }
    }

    /// A stream says what the whole reply says.
    fn check(dialect: &str, events: &[Value], whole: &Value) {
        let stream = reply::read(dialect, streamed(events).as_bytes());
        assert!(!stream.choices.is_empty());
        assert_eq!(stream, reply::read(dialect, whole.to_string().as_bytes()));
    }

    #[test]
    fn chunks_of_chat_become_a_message() {
        let call = |index: u64, change: Value| {
            let mut change = change;
            change["index"] = json!(index);
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [change]}}]})
        };
        check(
            "chat_completions",
            &[
                json!({"id": "r", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
                json!({"choices": [{"index": 0, "delta": {"reasoning_content": "h"}}]}),
                json!({"choices": [{"index": 0, "delta": {"reasoning_content": "m"}}]}),
                json!({"choices": [{"index": 0, "delta": {"content": "let me"}}]}),
                json!({"choices": [{"index": 0, "delta": {"content": " see"}}]}),
                call(
                    0,
                    json!({"id": "c", "function": {"name": "f", "arguments": ""}}),
                ),
                call(0, json!({"function": {"arguments": "{\"a\""}})),
                call(
                    1,
                    json!({"id": "d", "function": {"name": "g", "arguments": "{}"}}),
                ),
                call(0, json!({"function": {"arguments": ":6}"}})),
                json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
                json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}),
            ],
            &json!({"id": "r", "choices": [{"finish_reason": "tool_calls", "message": {
                "content": "let me see", "reasoning_content": "hm", "tool_calls": [
                    {"id": "c", "function": {"name": "f", "arguments": "{\"a\":6}"}},
                    {"id": "d", "function": {"name": "g", "arguments": "{}"}}]}}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 4}}),
        );
    }

    #[test]
    fn events_of_responses_become_its_items() {
        let output = json!([{"type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": "42"}]}]);
        let whole = json!({"status": "completed", "output": output,
            "usage": {"input_tokens": 9, "output_tokens": 4}});
        let done = json!({"type": "response.output_item.done", "item": output[0]});
        let completed = json!({"type": "response.completed", "response": whole});
        check("responses", &[done.clone(), completed], &whole);
        // Broken off before its end.
        let created = json!({"type": "response.created", "response": {"id": "r", "output": []}});
        check(
            "responses",
            &[created, done],
            &json!({"id": "r", "output": output}),
        );
    }

    #[test]
    fn events_of_anthropic_become_its_blocks() {
        let delta = |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
        let start = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
        check(
            "messages",
            &[
                json!({"type": "message_start", "message": {"id": "r", "role": "assistant", "content": [],
                    "usage": {"input_tokens": 9, "output_tokens": 1}}}),
                start(0, json!({"type": "thinking", "thinking": ""})),
                delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
                start(1, json!({"type": "text", "text": ""})),
                delta(1, json!({"type": "text_delta", "text": "let me"})),
                delta(1, json!({"type": "text_delta", "text": " see"})),
                start(
                    2,
                    json!({"type": "tool_use", "id": "c", "name": "f", "input": {}}),
                ),
                delta(
                    2,
                    json!({"type": "input_json_delta", "partial_json": "{\"a\""}),
                ),
                delta(
                    2,
                    json!({"type": "input_json_delta", "partial_json": ":6}"}),
                ),
                json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"},
                    "usage": {"output_tokens": 4}}),
                json!({"type": "message_stop"}),
            ],
            &json!({"id": "r", "stop_reason": "tool_use", "content": [
                {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 6}}],
                "usage": {"input_tokens": 9, "output_tokens": 4}}),
        );
    }
}
