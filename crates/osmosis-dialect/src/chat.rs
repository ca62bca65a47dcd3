//! Reads the replies of a chat policy: chunks of a stream, and whole completions as one chunk.
//!
//! Servers differ in what they leave out, so everything is optional here, and what has an unexpected
//! type counts as absent. Of several choices the first is read: the other dialects have no more.

use serde_json::Value;

/// What one event of a stream adds to the answer.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) id: Option<String>,
    pub(crate) model: Option<String>,
    /// Seconds since 1970.
    pub(crate) created: Option<u64>,
    pub(crate) reasoning: Option<String>,
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    pub(crate) tool_calls: Vec<CallPiece>,
    /// Entries as chat tells them, which is as Responses does.
    pub(crate) logprobs: Vec<Value>,
    pub(crate) finish: Option<Finish>,
    /// The stop text that ended the answer; vLLM tells it.
    pub(crate) stop_text: Option<String>,
    pub(crate) usage: Option<ChatUsage>,
}

/// A tool call, or more of its arguments.
#[derive(Debug)]
pub(crate) struct CallPiece {
    /// Which call of the answer.
    pub(crate) index: u64,
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
    ContentFilter,
}

/// What an answer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChatUsage {
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) completion: u64,
    pub(crate) reasoning: u64,
}

impl Chunk {
    /// An event of a stream.
    pub(crate) fn of_event(chunk: &Value) -> Self {
        Self::read(chunk, "delta")
    }

    /// A whole completion.
    pub(crate) fn of_completion(completion: &Value) -> Self {
        Self::read(completion, "message")
    }

    fn read(reply: &Value, holder: &str) -> Self {
        let mut chunk = Self {
            id: text(reply.get("id")),
            model: text(reply.get("model")),
            created: reply.get("created").and_then(Value::as_u64),
            usage: reply.get("usage").and_then(ChatUsage::read),
            ..Self::default()
        };
        let choices = reply.get("choices").and_then(Value::as_array);
        let Some(choice) = choices.and_then(|choices| {
            choices
                .iter()
                .find(|choice| choice.get("index").is_none_or(|index| *index == 0))
        }) else {
            return chunk;
        };
        chunk.finish = choice
            .get("finish_reason")
            .and_then(Value::as_str)
            .map(Finish::read);
        chunk.stop_text = text(choice.get("stop_reason"));
        chunk.logprobs = choice
            .pointer("/logprobs/content")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let Some(said) = choice.get(holder) else {
            return chunk;
        };
        chunk.reasoning = ["reasoning_content", "reasoning"]
            .iter()
            .find_map(|name| text(said.get(*name)));
        chunk.content = content_text(said.get("content"));
        chunk.refusal = text(said.get("refusal"));
        let calls = said.get("tool_calls").and_then(Value::as_array);
        chunk.tool_calls = (0..)
            .zip(calls.into_iter().flatten())
            .map(|(position, call)| CallPiece::read(position, call))
            .collect();
        chunk
    }
}

impl CallPiece {
    fn read(position: u64, call: &Value) -> Self {
        let function = call.get("function");
        let field = |name: &str| function.and_then(|function| function.get(name));
        Self {
            index: call
                .get("index")
                .and_then(Value::as_u64)
                .unwrap_or(position),
            id: text(call.get("id")),
            name: text(field("name")),
            arguments: match field("arguments") {
                Some(Value::String(text)) => text.clone(),
                // Some servers send what the text would say.
                Some(arguments @ Value::Object(_)) => arguments.to_string(),
                _ => String::new(),
            },
        }
    }
}

impl Finish {
    fn read(reason: &str) -> Self {
        match reason {
            "length" => Self::Length,
            "tool_calls" | "function_call" => Self::ToolCalls,
            "content_filter" => Self::ContentFilter,
            // `stop`, and names that servers make up for it.
            _ => Self::Stop,
        }
    }
}

impl ChatUsage {
    fn read(usage: &Value) -> Option<Self> {
        let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
        Some(Self {
            prompt: count("/prompt_tokens")?,
            cached: count("/prompt_tokens_details/cached_tokens").unwrap_or(0),
            completion: count("/completion_tokens").unwrap_or(0),
            reasoning: count("/completion_tokens_details/reasoning_tokens").unwrap_or(0),
        })
    }
}

/// A text that says something.
fn text(value: Option<&Value>) -> Option<String> {
    value
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

/// Some servers answer in parts.
fn content_text(content: Option<&Value>) -> Option<String> {
    let Some(Value::Array(parts)) = content else {
        return text(content);
    };
    let joined: String = parts
        .iter()
        .filter_map(|part| part.get("text").and_then(Value::as_str))
        .collect();
    (!joined.is_empty()).then_some(joined)
}
