use serde_json::Value;

/// The text of a message, in whatever shape its framework gave it: `content` as a string, or as a
/// list of parts of which those with text are joined. `None` when there is no text.
///
/// ```
/// use osmosis_sdk::message_text;
/// use serde_json::json;
///
/// let plain = json!({"role": "user", "content": "hello"});
/// assert_eq!(message_text(&plain).as_deref(), Some("hello"));
///
/// let parts = json!({"role": "user", "content": [{"type": "text", "text": "hello"}]});
/// assert_eq!(message_text(&parts).as_deref(), Some("hello"));
///
/// let call = json!({"role": "assistant", "content": null, "tool_calls": []});
/// assert_eq!(message_text(&call), None);
/// ```
pub fn message_text(message: &Value) -> Option<String> {
    match message.get("content")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(part_text).collect();
            (!texts.is_empty()).then(|| texts.concat())
        }
        part @ Value::Object(_) => part_text(part).map(str::to_owned),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

fn part_text(part: &Value) -> Option<&str> {
    if let Value::String(text) = part {
        return Some(text);
    }
    // A tool result nests its text; it is the tool's, not the speaker's.
    match part.get("type").and_then(Value::as_str) {
        None | Some("text" | "input_text" | "output_text") => part.get("text")?.as_str(),
        Some(_) => None,
    }
}

/// The text of the last message with this role that has one.
pub(crate) fn last_text(messages: &[Value], role: &str) -> Option<String> {
    messages
        .iter()
        .rev()
        .filter(|message| message.get("role").and_then(Value::as_str) == Some(role))
        .find_map(message_text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_text_of_a_role_skips_messages_without_text() {
        let messages = [
            json!({"role": "user", "content": "1 + 1?"}),
            json!({"role": "assistant", "content": "two"}),
            json!({"role": "assistant", "content": [{"type": "tool_call", "text": "no"}]}),
            json!({"role": "tool", "content": "2"}),
        ];
        assert_eq!(last_text(&messages, "assistant").as_deref(), Some("two"));
        assert_eq!(last_text(&messages, "system"), None);
    }

    #[test]
    fn the_parts_of_a_message_are_joined() {
        let message = json!({"content": [
            {"type": "output_text", "text": "a"}, {"type": "image"}, {"text": "b"}, "c",
        ]});
        assert_eq!(message_text(&message).as_deref(), Some("abc"));
    }
}
