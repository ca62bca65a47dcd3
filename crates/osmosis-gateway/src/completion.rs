//! Completions in the wire format of the Chat Completions API: as events of a stream, and their usage.

use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::policy::TokenAccount;

/// How many tokens a call took, as the policy counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Counts")]
#[expect(clippy::struct_field_names, reason = "they are the names on the wire")]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: Option<u64>,
    pub(crate) completion_tokens: Option<u64>,
    /// Of the prompt tokens.
    pub(crate) cached_tokens: Option<u64>,
    /// Of the completion tokens.
    pub(crate) reasoning_tokens: Option<u64>,
}

/// The names that the dialects have for it.
#[derive(Deserialize)]
struct Counts {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    /// Anthropic does not count these as input.
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
    completion_tokens_details: Option<Details>,
    output_tokens_details: Option<Details>,
    /// `DeepSeek` says it beside the others.
    prompt_cache_hit_tokens: Option<u64>,
}

#[derive(Default, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
}

impl From<Counts> for Usage {
    fn from(counts: Counts) -> Self {
        let input = counts.input_tokens.map(|input| {
            input
                .saturating_add(counts.cache_creation_input_tokens.unwrap_or(0))
                .saturating_add(counts.cache_read_input_tokens.unwrap_or(0))
        });
        let prompt = counts.prompt_tokens_details.or(counts.input_tokens_details);
        let completion = counts
            .completion_tokens_details
            .or(counts.output_tokens_details);
        Self {
            prompt_tokens: counts.prompt_tokens.or(input),
            completion_tokens: counts.completion_tokens.or(counts.output_tokens),
            cached_tokens: prompt
                .and_then(|details| details.cached_tokens)
                .or(counts.cache_read_input_tokens)
                .or(counts.prompt_cache_hit_tokens),
            reasoning_tokens: completion.and_then(|details| details.reasoning_tokens),
        }
    }
}

impl Usage {
    /// What a later event of the same stream says counts for more.
    pub(crate) fn updated_by(self, later: Self) -> Self {
        Self {
            prompt_tokens: later.prompt_tokens.or(self.prompt_tokens),
            completion_tokens: later.completion_tokens.or(self.completion_tokens),
            cached_tokens: later.cached_tokens.or(self.cached_tokens),
            reasoning_tokens: later.reasoning_tokens.or(self.reasoning_tokens),
        }
    }

    pub(crate) fn of(account: &TokenAccount) -> Self {
        // No prompt is empty: then nobody could tell.
        let is_known = account.prompt_tokens > 0;
        Self {
            prompt_tokens: is_known.then_some(account.prompt_tokens),
            completion_tokens: is_known.then_some(account.completion_tokens),
            ..Self::default()
        }
    }
}

/// Servers tell the usage at the end of a completion, nearly all of them.
const END_BYTES: usize = 2 << 10;
const USAGE: &[u8] = b"\"usage\"";

/// The usage in a completion, found from its end without reading the rest (which may be megabytes of
/// logprobs). Anything odd is no usage.
pub(crate) fn usage_in(body: &[u8]) -> Option<Usage> {
    // Searching backwards is many times slower than forwards, so it is done in two steps.
    let end = body.len().saturating_sub(END_BYTES);
    let found = last_usage(body, end);
    if found.is_some() || end == 0 {
        return found;
    }
    last_usage(body, 0)
}

/// The last one from `start` on that reads as usage: a choice may carry something of the same name.
fn last_usage(body: &[u8], start: usize) -> Option<Usage> {
    let places: Vec<usize> = memmem::find_iter(&body[start..], USAGE).collect();
    places.into_iter().rev().find_map(|at| {
        let rest = body[start + at + USAGE.len()..].trim_ascii_start();
        let value = rest.strip_prefix(b":")?;
        let mut values = serde_json::Deserializer::from_slice(value).into_iter::<Usage>();
        values
            .next()?
            .ok()
            .filter(|usage| *usage != Usage::default())
    })
}

/// The events of the stream that carries the same answer as `completion`, `[DONE]` included. Text and
/// tool arguments come in pieces of a word each.
pub(crate) fn completion_to_sse(completion: &Value, include_usage: bool) -> Vec<Bytes> {
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
    fn usage_is_found_wherever_it_stands() {
        let found = Some(Usage {
            prompt_tokens: Some(7),
            completion_tokens: Some(2),
            ..Usage::default()
        });
        let cached = found.map(|usage| Usage {
            cached_tokens: Some(4),
            ..usage
        });
        let detailed = cached.map(|usage| Usage {
            reasoning_tokens: Some(1),
            ..usage
        });
        #[rustfmt::skip]
        let cases: &[(&str, Option<Usage>)] = &[
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2},"choices":[]}"#, found),
            (r#"{"choices":[],"usage" : {"completion_tokens":2,"prompt_tokens":7,"details":{"x":[1]}}}"#, found),
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2},"choices":[{"usage":null}]}"#, found),
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2},"x":"\"usage\":{}"}"#, found),
            (r#"{"output":[],"usage":{"input_tokens":7,"output_tokens":2,"total_tokens":9}}"#, found),
            (r#"{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":2}}"#, cached),
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_cache_hit_tokens":4}}"#, cached),
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":1}}}"#, detailed),
            (r#"{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":2,"output_tokens_details":{"reasoning_tokens":1}}}"#, detailed),
            (r#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":{}}}"#, found),
            (r#"{"usage":null}"#, None),
            (r#"{"usage":{"prompt_tokens":-7}}"#, None),
            (r#"{"usage":{"prompt_tokens":"#, None),
            (r#""usage""#, None),
            ("", None),
        ];
        for (body, expected) in cases {
            assert_eq!(usage_in(body.as_bytes()), *expected, "{body}");
        }
        // Wherever it stands in a long reply, across the edge of what is looked at first too.
        let usage = r#""usage":{"prompt_tokens":7,"completion_tokens":2}"#;
        for after in [
            0,
            10,
            END_BYTES - 60,
            END_BYTES - 55,
            END_BYTES - 50,
            3 * END_BYTES,
        ] {
            let body = format!(
                r#"{{"a":"{}",{usage},"b":"{}"}}"#,
                "x".repeat(9_000),
                "y".repeat(after)
            );
            assert_eq!(usage_in(body.as_bytes()), found, "{after}");
        }
    }

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
