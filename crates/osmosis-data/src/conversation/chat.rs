//! Turns in the shape of Chat Completions.

use serde_json::{Map, Value, json};

use super::{Part, Role, ToolCall, Turn};

impl Turn {
    /// The turn as a message of Chat Completions.
    pub fn chat_message(&self) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!(self.role.as_str()));
        if self.role == Role::Tool {
            let id = self.answers.as_deref().unwrap_or_default();
            message.insert("tool_call_id".to_owned(), json!(id));
        }
        message.insert("content".to_owned(), self.chat_content());
        if let Some(reasoning) = &self.reasoning {
            message.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        if !self.tool_calls.is_empty() {
            let calls: Vec<Value> = self.tool_calls.iter().map(ToolCall::chat).collect();
            message.insert("tool_calls".to_owned(), json!(calls));
        }
        Value::Object(message)
    }

    /// A text, unless there are pictures; null for a turn that only calls tools.
    fn chat_content(&self) -> Value {
        let has_images = self
            .content
            .iter()
            .any(|part| matches!(part, Part::Image(_)));
        if has_images {
            let parts = self.content.iter().map(|part| match part {
                Part::Text(text) => json!({"type": "text", "text": text}),
                Part::Image(url) => json!({"type": "image_url", "image_url": {"url": url}}),
                Part::Other(value) => json!({"type": "text", "text": value.to_string()}),
            });
            return parts.collect();
        }
        if self.content.is_empty() && !self.tool_calls.is_empty() {
            return Value::Null;
        }
        self.text().into()
    }
}

impl ToolCall {
    fn chat(&self) -> Value {
        json!({"id": self.id, "type": "function",
            "function": {"name": self.name, "arguments": self.arguments}})
    }
}
