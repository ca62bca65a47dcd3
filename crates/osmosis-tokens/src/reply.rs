//! What a sampled text says: content, reasoning, tool calls.

pub(crate) mod bare_json;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A sampled turn, parsed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParsedReply {
    /// `None` when there is nothing but tool calls.
    pub content: Option<String>,
    /// What stood between `<think>` and `</think>`.
    pub reasoning: Option<String>,
    pub tool_calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    pub name: String,
    /// A JSON object as text, as the model wrote it.
    pub arguments: String,
}

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// JSON between `<tool_call>` tags.
    Tagged,
    /// A reply that is nothing but JSON objects, as the templates of Llama 3 ask for.
    BareJson,
}

/// `in_thinking`: the prompt ended with an open `<think>`.
pub(crate) fn parse(text: &str, in_thinking: bool, style: CallStyle) -> ParsedReply {
    let (reasoning, rest) = split_reasoning(text, in_thinking);
    if style == CallStyle::BareJson
        && let Some(tool_calls) = bare_json::calls(rest)
    {
        return ParsedReply {
            content: None,
            reasoning,
            tool_calls,
        };
    }
    let mut content = String::new();
    let mut tool_calls = Vec::new();
    let mut rest = rest;
    while let Some(start) = rest.find(CALL) {
        let (before, from_call) = rest.split_at(start);
        let body = &from_call[CALL.len()..];
        content.push_str(before);
        if let Some((call, after)) = parse_call(body) {
            tool_calls.push(call);
            rest = after;
        } else {
            content.push_str(CALL);
            rest = body;
        }
    }
    content.push_str(rest);
    let content = if tool_calls.is_empty() {
        Some(content)
    } else {
        // The line breaks around calls belong to the form, not to the text.
        Some(content.trim().to_owned()).filter(|content| !content.is_empty())
    };
    ParsedReply {
        content,
        reasoning,
        tool_calls,
    }
}

fn split_reasoning(text: &str, in_thinking: bool) -> (Option<String>, &str) {
    let start = text.trim_start();
    let thoughts = match start.strip_prefix(THINK) {
        Some(thoughts) => thoughts,
        None if in_thinking => start,
        None => return (None, text),
    };
    match thoughts.split_once(THINK_END) {
        Some((thoughts, rest)) => {
            let thoughts = thoughts.trim();
            let reasoning = Some(thoughts.to_owned()).filter(|thoughts| !thoughts.is_empty());
            (reasoning, rest.trim_start_matches('\n'))
        }
        None => (None, text),
    }
}

#[derive(Deserialize)]
struct RawCall<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

/// The call at the start of `text`, and what follows its closing tag.
fn parse_call(text: &str) -> Option<(ToolCall, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<RawCall<'_>>();
    let call = values.next()?.ok()?;
    let after = text.get(values.byte_offset()..)?;
    let after = after.trim_start().strip_prefix(CALL_END)?;
    Some((tool_call(call.name, call.arguments)?, after))
}

/// The call, if it has a name, and its arguments are an object or the text of one.
fn tool_call(name: Cow<'_, str>, arguments: &RawValue) -> Option<ToolCall> {
    let written = arguments.get();
    let arguments = match serde_json::from_str(written).ok()? {
        Value::Object(_) => written.to_owned(),
        Value::String(text) => {
            serde_json::from_str::<Map<String, Value>>(&text).ok()?;
            text
        }
        _ => return None,
    };
    let name = name.into_owned();
    (!name.is_empty()).then_some(ToolCall { name, arguments })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str, in_thinking: bool) -> ParsedReply {
        super::parse(text, in_thinking, CallStyle::Tagged)
    }

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        }
    }

    #[test]
    fn a_text_without_marks_is_content_as_it_stands() {
        for text in ["", " hello \n", "a < b > c", "</think> late", "<tool_call"] {
            let reply = parse(text, false);
            assert_eq!(reply.content.as_deref(), Some(text));
            assert_eq!(reply.reasoning, None);
            assert!(reply.tool_calls.is_empty());
        }
    }

    #[test]
    fn tool_calls_keep_the_models_own_text_of_the_arguments() {
        let text = concat!(
            "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": { \"a\" :1.50, \"a\": \"</tool_call>\"}}\n</tool_call>\n",
            "<tool_call>{\"arguments\":\"{\\\"b\\\": 2}\",\"name\":\"g\",\"id\":7}</tool_call>",
        );
        let reply = parse(text, false);
        assert_eq!(reply.content.as_deref(), Some("Let me see."));
        assert_eq!(
            reply.tool_calls,
            [
                call("f", "{ \"a\" :1.50, \"a\": \"</tool_call>\"}"),
                call("g", "{\"b\": 2}")
            ]
        );
    }

    #[test]
    fn nothing_but_tool_calls_leaves_no_content() {
        let reply = parse(
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
            false,
        );
        assert_eq!(reply.content, None);
        assert_eq!(reply.tool_calls, [call("f", "{}")]);
    }

    #[test]
    fn a_malformed_tool_call_stays_in_the_content() {
        for text in [
            "<tool_call>",
            "<tool_call></tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}",
            "<tool_call>{\"name\": \"f\"}</tool_call>",
            "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": \"no json\"}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}} and more</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}</tool_call>",
        ] {
            let reply = parse(text, false);
            assert_eq!(reply.content.as_deref(), Some(text));
            assert!(reply.tool_calls.is_empty(), "{text}");
        }
        let reply = parse(
            "<tool_call>x</tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
            false,
        );
        assert_eq!(reply.content.as_deref(), Some("<tool_call>x</tool_call>"));
        assert_eq!(reply.tool_calls, [call("f", "{}")]);
    }

    #[test]
    fn what_was_thought_is_taken_apart() {
        let reply = parse("<think>\nhm <tool_call>\n</think>\n\n42", false);
        assert_eq!(reply.reasoning.as_deref(), Some("hm <tool_call>"));
        assert_eq!(reply.content.as_deref(), Some("42"));

        let reply = parse("<think>\n\n</think>\n\n42", false);
        assert_eq!(reply.reasoning, None);
        assert_eq!(reply.content.as_deref(), Some("42"));

        let unfinished = "<think>and then";
        assert_eq!(
            parse(unfinished, false).content.as_deref(),
            Some(unfinished)
        );

        let reply = parse("hm</think>42", true);
        assert_eq!(reply.reasoning.as_deref(), Some("hm"));
        assert_eq!(reply.content.as_deref(), Some("42"));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_none_is_lost_without_marks(
            pieces in prop::collection::vec(
                prop_oneof![
                    Just("<tool_call>".to_owned()),
                    Just("</tool_call>".to_owned()),
                    Just("<think>".to_owned()),
                    Just("</think>".to_owned()),
                    Just("{\"name\":\"f\",\"arguments\":{}}".to_owned()),
                    ".{0,6}",
                ],
                0..12,
            ),
            in_thinking: bool,
        ) {
            let text = pieces.concat();
            let reply = parse(&text, in_thinking);
            prop_assert_eq!(reply.content.is_none(), {
                let content = reply.content.as_deref().unwrap_or_default();
                content.is_empty() && !reply.tool_calls.is_empty()
            });
            if !text.contains('<') && !in_thinking {
                prop_assert_eq!(reply.content, Some(text));
            }
        }
    }
}
