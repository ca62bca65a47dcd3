//! The way between the dialects and a policy that speaks only chat.
//!
//! A call becomes a chat request (`responses::request`, `messages::request`). The answer is read as chat
//! (`chat`) and written in the caller's dialect (`responses::reply`, `messages::reply`), event by event
//! when it is streamed. A whole reply goes the same way as a stream of one event, so the two can't say
//! different things.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::chat::Chunk;
use crate::dialect::Dialect;
use crate::error_shape::anthropic_shape;
use crate::output_limit::OutputLimit;
use crate::rejection::RequestError;
use crate::sse::{data_of, each_event};
use crate::{completions, messages, responses};

/// The id and the time of a reply whose server reports none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyStamp {
    pub id: u128,
    /// Seconds since 1970.
    pub created: u64,
}

/// A call in another dialect, as the chat call that stands for it.
#[derive(Debug)]
pub struct Translated {
    pub request: Bytes,
    pub translator: Translator,
}

/// Makes a chat call of `body`, a JSON object of this dialect, for a policy that calls the limit of an
/// answer `limit`.
pub fn to_chat(
    dialect: Dialect,
    body: &str,
    limit: OutputLimit,
    stamp: ReplyStamp,
) -> Result<Translated, RequestError> {
    let fields: Map<String, Value> = serde_json::from_str(body).map_err(|error| {
        RequestError::invalid(format!("the body is not a valid request: {error}"))
    })?;
    match dialect {
        // A policy that does not speak chat would be no policy.
        Dialect::ChatCompletions => Err(RequestError::invalid("this policy does not speak chat")),
        Dialect::Completions => Err(completions::refusal()),
        Dialect::Responses => {
            let (mut chat, writer) = responses::to_chat(fields, stamp)?;
            name_limit(&mut chat, limit);
            Ok(Translated {
                request: json_bytes(&Value::Object(chat)),
                translator: Translator(Writer::Responses(Box::new(writer))),
            })
        }
        Dialect::Messages => {
            let (mut chat, writer) = messages::to_chat(fields, stamp)?;
            name_limit(&mut chat, limit);
            Ok(Translated {
                request: json_bytes(&Value::Object(chat)),
                translator: Translator(Writer::Messages(Box::new(writer))),
            })
        }
    }
}

/// The translations say `max_tokens`. A call that brings the wanted name itself keeps its value.
fn name_limit(chat: &mut Map<String, Value>, limit: OutputLimit) {
    let written = OutputLimit::MaxTokens.as_str();
    if limit != OutputLimit::MaxTokens
        && let Some(value) = chat.shift_remove(written)
    {
        chat.entry(limit.as_str()).or_insert(value);
    }
}

/// Writes one chat reply in the dialect of its caller.
#[derive(Debug)]
pub struct Translator(Writer);

#[derive(Debug)]
enum Writer {
    Responses(Box<responses::ReplyWriter>),
    Messages(Box<messages::ReplyWriter>),
}

/// A chat reply that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reply is not what the protocol says")]
pub struct Unreadable;

impl Translator {
    /// Takes whole events of a chat stream, and returns what they are in the caller's dialect.
    pub fn push(&mut self, events: &[u8]) -> Result<Bytes, Unreadable> {
        for event in each_event(events) {
            let Some(data) = data_of(event) else {
                continue;
            };
            if data.is_empty() || data == b"[DONE]" {
                continue;
            }
            let chunk: Value = serde_json::from_slice(data).map_err(|_| Unreadable)?;
            // An error within the stream is told by whoever watches it.
            if chunk.get("error").is_none_or(Value::is_null) {
                self.take(Chunk::of_event(&chunk));
            }
        }
        Ok(self.written())
    }

    /// The stream has ended well: returns what is still to be said.
    pub fn finish(&mut self) -> Bytes {
        self.0.finish();
        self.written()
    }

    /// A whole chat completion in the caller's dialect.
    pub fn whole(mut self, completion: &[u8]) -> Result<Bytes, Unreadable> {
        let completion: Value = serde_json::from_slice(completion).map_err(|_| Unreadable)?;
        self.take(Chunk::of_completion(&completion));
        Ok(json_bytes(&self.0.finish()))
    }

    /// How many numbered events there have been.
    pub fn sequence(&self) -> u64 {
        match &self.0 {
            Writer::Responses(writer) => writer.sequence(),
            Writer::Messages(_) => 0,
        }
    }

    fn take(&mut self, chunk: Chunk) {
        match &mut self.0 {
            Writer::Responses(writer) => writer.take(chunk),
            Writer::Messages(writer) => writer.take(chunk),
        }
    }

    fn written(&mut self) -> Bytes {
        match &mut self.0 {
            Writer::Responses(writer) => writer.written(),
            Writer::Messages(writer) => writer.written(),
        }
    }
}

impl Writer {
    /// Says that the reply is over, and returns it whole.
    fn finish(&mut self) -> Value {
        match self {
            Self::Responses(writer) => writer.finish(),
            Self::Messages(writer) => writer.finish(),
        }
    }
}

/// A refusal of the policy, said by a chat server, in the shape of `dialect`.
pub fn refusal_of(dialect: Dialect, status: u16, body: Bytes) -> Bytes {
    match dialect {
        // They share the shape.
        Dialect::ChatCompletions | Dialect::Responses | Dialect::Completions => body,
        Dialect::Messages => {
            let said: Value = serde_json::from_slice(&body).unwrap_or_default();
            let error = said.get("error").unwrap_or(&said);
            let message = error.get("message").unwrap_or(error).as_str();
            let message = message.map_or_else(
                || String::from_utf8_lossy(&body).chars().take(1000).collect(),
                str::to_owned,
            );
            json_bytes(&anthropic_shape(status, &message))
        }
    }
}

/// A value in memory cannot fail to become JSON.
fn json_bytes(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}
