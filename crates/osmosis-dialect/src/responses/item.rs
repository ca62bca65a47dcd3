//! An item of a response's output: reasoning, a message, or a function call.

use serde_json::{Value, json};

#[derive(Debug)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) kind: Kind,
    /// `None` while more may come.
    pub(super) status: Option<&'static str>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Reasoning(String),
    /// The last part is the one that grows.
    Message(Vec<Part>),
    Call {
        /// Which call of the chat reply.
        index: u64,
        id: String,
        name: String,
        arguments: String,
    },
}

#[derive(Debug)]
pub(super) enum Part {
    Text { text: String, logprobs: Vec<Value> },
    Refusal(String),
}

impl Part {
    pub(super) fn value(&self) -> Value {
        match self {
            Self::Text { text, logprobs } => json!({
                "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs,
            }),
            Self::Refusal(text) => json!({"type": "refusal", "refusal": text}),
        }
    }

    /// The same, before anything was said.
    pub(super) fn empty(&self) -> Value {
        match self {
            Self::Text { .. } => Self::Text {
                text: String::new(),
                logprobs: Vec::new(),
            },
            Self::Refusal(_) => Self::Refusal(String::new()),
        }
        .value()
    }
}

pub(super) fn reasoning_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

impl Item {
    pub(super) fn value(&self) -> Value {
        let status = self.status.unwrap_or("in_progress");
        match &self.kind {
            Kind::Reasoning(text) => json!({
                "id": self.id, "type": "reasoning", "summary": [],
                "content": [reasoning_part(text)], "status": status,
            }),
            Kind::Message(parts) => {
                let parts: Vec<Value> = parts.iter().map(Part::value).collect();
                json!({
                    "id": self.id, "type": "message", "status": status, "role": "assistant",
                    "content": parts,
                })
            }
            Kind::Call {
                id,
                name,
                arguments,
                ..
            } => json!({
                "id": self.id, "type": "function_call", "status": status, "call_id": id,
                "name": name, "arguments": arguments,
            }),
        }
    }

    /// The same as it is announced, before it has any content.
    pub(super) fn announced(&self) -> Value {
        let mut value = self.value();
        match &self.kind {
            Kind::Reasoning(_) | Kind::Message(_) => value["content"] = json!([]),
            Kind::Call { .. } => value["arguments"] = json!(""),
        }
        value
    }
}
