//! Answers in the wire format of the Chat Completions API, with vLLM's token ids when asked for.

use bytes::{BufMut as _, Bytes, BytesMut};
use osmosis_core::generation::SampledToken;
use osmosis_tokens::{ChatFormat, ParsedReply, ToolCall};
use serde_json::{Map, Value, json};

use super::draw;
use super::reading::Said;

/// JSON has no infinity; the API writes this for what is next to impossible.
pub(super) const IMPOSSIBLE: f32 = -9999.0;

/// What all parts of an answer share.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) model: String,
    /// Seconds since 1970.
    pub(super) created: u64,
    /// Delivered when the caller asked for token ids.
    pub(super) prompt_token_ids: Option<Vec<u32>>,
}

/// How many tokens an answer took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tokens {
    pub(super) prompt: u64,
    pub(super) completion: u64,
}

impl Tokens {
    fn usage(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        })
    }
}

/// A choice of a whole answer.
#[derive(Debug)]
pub(super) struct WholeChoice {
    pub(super) message: Value,
    pub(super) finish_reason: &'static str,
    pub(super) logprobs: Option<Vec<Value>>,
    pub(super) token_ids: Option<Vec<u32>>,
}

/// The message a caller gets.
pub(super) fn message(said: &ParsedReply, completion_id: &str, choice: u32) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    let content = match &said.content {
        Some(content) => json!(content),
        None if said.tool_calls.is_empty() => json!(""),
        None => Value::Null,
    };
    message.insert("content".to_owned(), content);
    if let Some(reasoning) = &said.reasoning {
        message.insert("reasoning_content".to_owned(), json!(reasoning));
    }
    if !said.tool_calls.is_empty() {
        let calls = said.tool_calls.iter().enumerate();
        let calls = calls.map(|(position, call)| tool_call(call, completion_id, choice, position));
        message.insert("tool_calls".to_owned(), calls.collect());
    }
    Value::Object(message)
}

fn tool_call(call: &ToolCall, completion_id: &str, choice: u32, position: usize) -> Value {
    json!({
        "id": draw::tool_call_id(completion_id, choice, position),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    })
}

/// A token's logprob as the API tells it.
pub(super) fn logprob_entry(chat: &ChatFormat, token: &SampledToken) -> Value {
    let entry = |id: u32, logprob: f32| {
        let text = chat.token_text(id).unwrap_or_default();
        let mut entry = Map::new();
        entry.insert("bytes".to_owned(), json!(text.as_bytes()));
        entry.insert("token".to_owned(), json!(text));
        entry.insert("logprob".to_owned(), json!(logprob.max(IMPOSSIBLE)));
        entry
    };
    let mut told = entry(token.id, token.logprob);
    let alternatives = token.alternatives.iter();
    let alternatives: Vec<_> = alternatives
        .map(|(id, logprob)| entry(*id, *logprob))
        .collect();
    told.insert("top_logprobs".to_owned(), json!(alternatives));
    Value::Object(told)
}

fn logprobs(entries: Option<Vec<Value>>) -> Value {
    match entries {
        None => Value::Null,
        Some(entries) => json!({"content": entries, "refusal": null}),
    }
}

pub(super) fn completion(head: Head, choices: Vec<WholeChoice>, tokens: Tokens) -> Bytes {
    let choices: Vec<Value> = choices
        .into_iter()
        .enumerate()
        .map(|(index, choice)| {
            let mut told = json!({
                "index": index,
                "message": choice.message,
                "logprobs": logprobs(choice.logprobs),
                "finish_reason": choice.finish_reason,
            });
            if let Some(ids) = choice.token_ids {
                told["token_ids"] = json!(ids);
            }
            told
        })
        .collect();
    let mut completion = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "usage": tokens.usage(),
    });
    if let Some(ids) = head.prompt_token_ids {
        completion["prompt_token_ids"] = json!(ids);
    }
    Bytes::from(completion.to_string())
}

/// What a chunk tells of the tokens since the one before it.
#[derive(Debug, Default)]
pub(super) struct TokenNews {
    pub(super) logprobs: Option<Vec<Value>>,
    pub(super) token_ids: Option<Vec<u32>>,
}

impl TokenNews {
    /// What there is to tell, leaving nothing but the wish to be told.
    fn take(&mut self) -> Self {
        Self {
            logprobs: self.logprobs.as_mut().map(std::mem::take),
            token_ids: self.token_ids.as_mut().map(std::mem::take),
        }
    }
}

/// Writes the chunks of a stream.
#[derive(Debug)]
pub(super) struct ChunkWriter {
    head: Head,
    written: BytesMut,
}

impl ChunkWriter {
    pub(super) fn new(head: Head) -> Self {
        Self {
            head,
            written: BytesMut::new(),
        }
    }

    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// What was written since the last time.
    pub(super) fn take(&mut self) -> Bytes {
        self.written.split().freeze()
    }

    /// A choice begins.
    pub(super) fn begin(&mut self, choice: u32, has_content: bool) {
        let content = if has_content { json!("") } else { Value::Null };
        let delta = json!({"role": "assistant", "content": content});
        self.delta(choice, &delta, &mut TokenNews::default());
    }

    /// A choice goes on; `position` is that of a tool call among those of the choice.
    pub(super) fn say(
        &mut self,
        choice: u32,
        said: &Said,
        position: usize,
        tokens: &mut TokenNews,
    ) {
        let delta = match said {
            Said::Reasoning(text) => json!({"reasoning_content": text}),
            Said::Content(text) => json!({"content": text}),
            Said::ToolCall(call) => {
                let mut call = tool_call(call, &self.head.id, choice, position);
                call["index"] = json!(position);
                json!({"tool_calls": [call]})
            }
        };
        self.delta(choice, &delta, tokens);
    }

    /// A choice ends.
    pub(super) fn end(&mut self, choice: u32, reason: &'static str, tokens: &mut TokenNews) {
        self.choice(choice, &json!({}), &json!(reason), tokens);
    }

    /// The stream ends.
    pub(super) fn done(&mut self, tokens: Tokens, include_usage: bool) {
        if include_usage {
            self.chunk(&json!([]), Some(tokens));
        }
        self.written.put_slice(b"data: [DONE]\n\n");
    }

    fn delta(&mut self, choice: u32, delta: &Value, tokens: &mut TokenNews) {
        self.choice(choice, delta, &Value::Null, tokens);
    }

    fn choice(&mut self, choice: u32, delta: &Value, finish: &Value, tokens: &mut TokenNews) {
        let tokens = tokens.take();
        let mut told = json!({
            "index": choice,
            "delta": delta,
            "logprobs": logprobs(tokens.logprobs),
            "finish_reason": finish,
        });
        if let Some(ids) = tokens.token_ids {
            told["token_ids"] = json!(ids);
        }
        self.chunk(&json!([told]), None);
    }

    fn chunk(&mut self, choices: &Value, usage: Option<Tokens>) {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        });
        if let Some(ids) = self.head.prompt_token_ids.take() {
            chunk["prompt_token_ids"] = json!(ids);
        }
        if let Some(tokens) = usage {
            chunk["usage"] = tokens.usage();
        }
        self.written.put_slice(b"data: ");
        self.written.put_slice(chunk.to_string().as_bytes());
        self.written.put_slice(b"\n\n");
    }
}
