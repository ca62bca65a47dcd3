//! Messages as a readable transcript, whatever framework's shape they have.

use serde::Serialize;
use serde_json::Value;

/// One thing that was said or done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    /// `user`, `assistant`, `tool call`, …
    pub(crate) speaker: String,
    pub(crate) text: String,
}

impl Entry {
    pub(crate) fn new(speaker: &str, text: String) -> Self {
        Self {
            speaker: speaker.to_owned(),
            text,
        }
    }
}

/// The entries of a conversation: messages of Chat Completions, of Anthropic's dialect or of Strands, or
/// Responses items.
/// What has an unknown shape is shown as JSON rather than left out.
pub(crate) fn entries(messages: &[Value]) -> Vec<Entry> {
    messages.iter().flat_map(message_entries).collect()
}

fn message_entries(message: &Value) -> Vec<Entry> {
    match message["type"].as_str() {
        Some("function_call") => vec![tool_call(&message["name"], &message["arguments"])],
        Some("function_call_output") => vec![entry("tool result", text_of(&message["output"]))],
        Some("reasoning") => vec![entry("reasoning", reasoning(message))],
        Some("message") | None if message["role"].is_string() => role_entries(message),
        _ => vec![entry("item", message.to_string())],
    }
}

fn role_entries(message: &Value) -> Vec<Entry> {
    let role = match message["role"].as_str() {
        Some("tool") => "tool result",
        Some(role) => role,
        None => "unknown",
    };
    let mut found = vec![];
    let mut text = String::new();
    let mut thought = ["reasoning_content", "reasoning"]
        .iter()
        .find_map(|name| message[*name].as_str())
        .unwrap_or_default()
        .to_owned();
    match &message["content"] {
        Value::Array(blocks) => {
            for block in blocks {
                if let Some(tool) = block.get("toolUse") {
                    found.push(tool_call(&tool["name"], &tool["input"]));
                } else if let Some(result) = block.get("toolResult") {
                    found.push(entry("tool result", text_of(&result["content"])));
                } else if block["type"] == "tool_use" {
                    found.push(tool_call(&block["name"], &block["input"]));
                } else if block["type"] == "tool_result" {
                    found.push(entry("tool result", text_of(&block["content"])));
                } else if block["type"] == "thinking" {
                    push_line(&mut thought, &text_of(&block["thinking"]));
                } else if block["type"] == "toolcall" {
                    let function = &block["function"];
                    found.push(tool_call(&function["name"], &function["arguments"]));
                } else if block["type"] == "toolresult" {
                    found.push(entry("tool result", text_of(&block["content"])));
                } else {
                    push_line(&mut text, &text_of(block));
                }
            }
        }
        other => text = text_of(other),
    }
    if !text.is_empty() {
        found.insert(0, entry(role, text));
    }
    if !thought.is_empty() {
        found.insert(0, entry("reasoning", thought));
    }
    if let Some(calls) = message["tool_calls"].as_array() {
        for call in calls {
            let function = &call["function"];
            found.push(tool_call(&function["name"], &function["arguments"]));
        }
    }
    if found.is_empty() {
        found.push(entry(role, String::new()));
    }
    found
}

fn tool_call(name: &Value, arguments: &Value) -> Entry {
    let arguments = match arguments {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let name = name.as_str().unwrap_or("?");
    entry("tool call", format!("{name}({arguments})"))
}

fn reasoning(message: &Value) -> String {
    let summary = text_of(&message["summary"]);
    if summary.is_empty() {
        text_of(&message["content"])
    } else {
        summary
    }
}

/// The text in a content value: a string, a block, or a list of either.
fn text_of(content: &Value) -> String {
    match content {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let mut text = String::new();
            for block in blocks {
                push_line(&mut text, &text_of(block));
            }
            text
        }
        Value::Object(block) => ["text", "refusal", "content"]
            .iter()
            .find_map(|key| block.get(*key)?.as_str())
            .map(str::to_owned)
            .or_else(|| Some(block.get("value")?.to_string()))
            .unwrap_or_else(|| content.to_string()),
        other => other.to_string(),
    }
}

fn push_line(text: &mut String, line: &str) {
    if !text.is_empty() && !line.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

fn entry(speaker: &str, text: String) -> Entry {
    Entry::new(speaker, text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(message: Value, expected: &[(&str, &str)]) {
        let found = entries(&[message]);
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|e| (e.speaker.as_str(), e.text.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn chat_messages_are_readable() {
        check(json!({"role": "user", "content": "hi"}), &[("user", "hi")]);
        check(
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]}),
            &[("tool call", "f({\"a\":1})")],
        );
        check(
            json!({"role": "tool", "tool_call_id": "1", "content": "3"}),
            &[("tool result", "3")],
        );
    }

    #[test]
    fn responses_items_are_readable() {
        check(
            json!({"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "six"}]}),
            &[("assistant", "six")],
        );
        check(
            json!({"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}),
            &[("tool call", "f({})")],
        );
        check(
            json!({"type": "function_call_output", "call_id": "c", "output": "42"}),
            &[("tool result", "42")],
        );
    }

    #[test]
    fn strands_messages_are_readable() {
        check(
            json!({"role": "assistant", "content": [
                {"text": "let me see"}, {"toolUse": {"name": "f", "input": {"a": 1}, "toolUseId": "t"}}]}),
            &[("assistant", "let me see"), ("tool call", "f({\"a\":1})")],
        );
    }

    #[test]
    fn rig_messages_are_readable() {
        check(
            json!({"role": "assistant", "content": [
                {"type": "toolcall", "id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]}),
            &[("tool call", "f({\"a\":1})")],
        );
        check(
            json!({"role": "user", "content": [
                {"type": "toolresult", "name": "f", "content": [{"type": "json", "value": 6}]}]}),
            &[("tool result", "6")],
        );
    }

    #[test]
    fn an_unknown_item_is_shown_and_not_dropped() {
        check(
            json!({"type": "web_search_call", "id": "w"}),
            &[("item", "{\"type\":\"web_search_call\",\"id\":\"w\"}")],
        );
    }
}
