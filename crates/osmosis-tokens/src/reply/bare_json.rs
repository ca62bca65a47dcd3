//! Tool calls as the templates of Llama 3 ask for them: the reply is `{"name": …, "parameters": {…}}` and nothing
//! else, or several of these with `;` between them. `<|python_tag|>` may stand in front.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{ToolCall, tool_call};

pub(crate) const PYTHON_TAG: &str = "<|python_tag|>";

#[derive(Deserialize)]
struct BareCall<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    /// Models that saw other formats write `arguments`.
    #[serde(borrow, alias = "arguments")]
    parameters: &'a RawValue,
}

/// The calls of a reply; `None` if it is anything but calls.
pub(super) fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let mut rest = text.strip_prefix(PYTHON_TAG).unwrap_or(text).trim_start();
    let mut found = Vec::new();
    loop {
        if !rest.starts_with('{') {
            return None;
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<BareCall<'_>>();
        let call = values.next()?.ok()?;
        let after = rest.get(values.byte_offset()..)?.trim_start();
        found.push(tool_call(call.name, call.parameters)?);
        rest = after.strip_prefix(';').unwrap_or(after).trim_start();
        if rest.is_empty() {
            return Some(found);
        }
    }
}

/// Whether a text that is still coming may become a reply of calls.
pub(crate) fn may_be_calls(text: &str) -> bool {
    let start = text.trim_start();
    start.starts_with('{') || start.starts_with(PYTHON_TAG) || PYTHON_TAG.starts_with(start)
}

/// A conversation with a call, to see how a template writes it.
pub(crate) fn probe() -> (Vec<Value>, Vec<Value>) {
    let arguments = format!("{{\"a\": \"{VALUE}\"}}");
    let messages = vec![
        json!({"role": "user", "content": "a question"}),
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": NAME, "arguments": arguments}},
        ]}),
    ];
    let tools = vec![json!({"type": "function", "function": {
        "name": NAME,
        "description": "text",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    }})];
    (messages, tools)
}

/// No template has these words by itself.
const NAME: &str = "osmosis_probe_call";
const VALUE: &str = "osmosis probe value";

/// Whether the conversation of [`probe`] was written with a bare call.
pub(crate) fn is_bare(rendered: &str) -> bool {
    let places = rendered.match_indices('{').map(|(place, _)| place);
    places.into_iter().any(|place| {
        let rest = &rendered[place..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        matches!(values.next(), Some(Ok(value))
            if value == json!({"name": NAME, "parameters": {"a": VALUE}}))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        }
    }

    #[test]
    fn a_reply_of_objects_is_calls() {
        for (text, expected) in [
            (
                r#"{"name": "f", "parameters": {"a": 1.50}}"#,
                vec![call("f", r#"{"a": 1.50}"#)],
            ),
            (
                "\n<|python_tag|>{\"name\": \"f\", \"parameters\": {}}",
                vec![call("f", "{}")],
            ),
            (
                r#"{"type": "function", "name": "f", "arguments": "{\"b\": 2}"}"#,
                vec![call("f", r#"{"b": 2}"#)],
            ),
            (
                r#"{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"c": "}; {"}};"#,
                vec![call("f", "{}"), call("g", r#"{"c": "}; {"}"#)],
            ),
            (
                "{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\", \"parameters\": {}}",
                vec![call("f", "{}"), call("g", "{}")],
            ),
        ] {
            assert_eq!(calls(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_call() {
        for text in [
            "",
            "42",
            "{}",
            "<|python_tag|>print(1)",
            r#"{"answer": 42}"#,
            r#"{"name": "f"}"#,
            r#"{"name": "", "parameters": {}}"#,
            r#"{"name": "f", "parameters": [1]}"#,
            r#"{"name": "f", "parameters": {}"#,
            r#"{"name": "f", "parameters": {}} is what I would call"#,
            r#"I would call {"name": "f", "parameters": {}}"#,
            r#"{"name": "f", "parameters": {}}; 3"#,
        ] {
            assert_eq!(calls(text), None, "{text}");
        }
    }

    #[test]
    fn a_text_may_become_calls_until_it_begins_otherwise() {
        for (text, may) in [
            ("", true),
            (" {", true),
            ("<|pyth", true),
            ("<|python_tag|>", true),
            ("T", false),
            ("<|begin", false),
        ] {
            assert_eq!(may_be_calls(text), may, "{text}");
        }
    }
}
