//! Chat messages, put together from the pieces in which other dialects have them.

use serde_json::{Map, Value, json};

/// The messages of a chat request as they grow. What an assistant said in one turn (its reasoning, its
/// text, its tool calls) is one message in chat, and has to be: a policy recognises its own reply by it.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Value>,
    turn: Option<Turn>,
}

#[derive(Debug, Default)]
struct Turn {
    reasoning: Option<String>,
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Vec<Value>,
}

impl Conversation {
    /// A message of somebody else; it ends the assistant's turn.
    pub(crate) fn message(&mut self, role: &str, content: Value) {
        self.end_turn();
        let mut message = Map::new();
        message.insert("role".to_owned(), Value::from(role));
        message.insert("content".to_owned(), content);
        self.messages.push(Value::Object(message));
    }

    pub(crate) fn tool_result(&mut self, call_id: &str, content: Value) {
        self.end_turn();
        let mut message = Map::new();
        message.insert("role".to_owned(), Value::from("tool"));
        message.insert("tool_call_id".to_owned(), Value::from(call_id));
        message.insert("content".to_owned(), content);
        self.messages.push(Value::Object(message));
    }

    /// The assistant thought; a turn that has spoken already is over.
    pub(crate) fn reasoning(&mut self, text: &str) {
        if let Some(turn) = &self.turn
            && (turn.content.is_some() || !turn.tool_calls.is_empty())
        {
            self.end_turn();
        }
        self.thought(text);
    }

    /// The assistant thought this in the same turn.
    pub(crate) fn thought(&mut self, text: &str) {
        append(&mut self.turn().reasoning, text);
    }

    /// The assistant said this in a message of its own.
    pub(crate) fn said(&mut self, text: &str) {
        if let Some(turn) = &self.turn
            && turn.content.is_some()
        {
            self.end_turn();
        }
        append(&mut self.turn().content, text);
    }

    /// The assistant went on saying this.
    pub(crate) fn went_on(&mut self, text: &str) {
        append(&mut self.turn().content, text);
    }

    pub(crate) fn refused(&mut self, text: &str) {
        append(&mut self.turn().refusal, text);
    }

    pub(crate) fn called(&mut self, id: &str, name: &str, arguments: &str) {
        self.turn().tool_calls.push(json!({
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }));
    }

    pub(crate) fn end_turn(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        let content = match turn.content {
            Some(content) => json!(content),
            None if turn.tool_calls.is_empty() => json!(""),
            None => Value::Null,
        };
        message.insert("content".to_owned(), content);
        for (name, text) in [
            ("reasoning_content", turn.reasoning),
            ("refusal", turn.refusal),
        ] {
            if let Some(text) = text {
                message.insert(name.to_owned(), json!(text));
            }
        }
        if !turn.tool_calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(turn.tool_calls));
        }
        self.messages.push(Value::Object(message));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.turn.is_none()
    }

    pub(crate) fn into_messages(mut self) -> Vec<Value> {
        self.end_turn();
        self.messages
    }

    fn turn(&mut self) -> &mut Turn {
        self.turn.get_or_insert_with(Turn::default)
    }
}

fn append(text: &mut Option<String>, more: &str) {
    text.get_or_insert_default().push_str(more);
}

/// The parts of a message. One text is said plainly, which every server understands.
pub(crate) fn content_of(mut parts: Vec<Value>) -> Value {
    match parts.as_mut_slice() {
        [] => json!(""),
        [only] if only["type"] == "text" => only["text"].take(),
        _ => Value::Array(parts),
    }
}

pub(crate) fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(crate) fn image_part(url: &str, detail: Option<String>) -> Value {
    let mut image = json!({"url": url});
    if let Some(detail) = detail {
        image["detail"] = json!(detail);
    }
    json!({"type": "image_url", "image_url": image})
}
