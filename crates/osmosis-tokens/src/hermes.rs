//! Tools in prompts without support by the chat template, in the style of Hermes: tools as JSON between `<tools>`
//! tags in the system message, calls between `<tool_call>` tags, results between `<tool_response>` tags. Replies are
//! read back by `reply`, as those of templates of that style are.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::messages::{content_text, to_template_value};
use crate::python_json::{self, Style};

/// The words that Qwen's and Hermes' own templates have, so that models trained on them know what is meant.
const BEFORE_TOOLS: &str = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
     You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
const AFTER_TOOLS: &str = "\n</tools>\n\nFor each function call, return a json object with function name and \
     arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n\
     {\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

/// Which message gets the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolsPlace {
    SystemMessage,
    /// For templates without a system role.
    FirstUserMessage,
}

/// The messages with tools, calls and results as text, so that the template needs to know of none.
pub(crate) fn in_text(
    messages: &[Value],
    tools: Option<&[Value]>,
    place: ToolsPlace,
) -> Vec<Value> {
    let mut rewritten: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    let mut after_result = false;
    for message in messages {
        let is_result = message["role"] == "tool";
        match message {
            Value::Object(_) if is_result => {
                let result = format!("<tool_response>\n{}\n</tool_response>", text(message));
                // All results of a turn are one message.
                match rewritten.last_mut() {
                    Some(last) if after_result => {
                        last["content"] = json!(format!("{}\n{result}", text(last)));
                    }
                    _ => rewritten.push(json!({"role": "user", "content": result})),
                }
            }
            Value::Object(fields) => rewritten.push(Value::Object(with_calls_in_text(fields))),
            other => rewritten.push(other.clone()),
        }
        after_result = is_result;
    }
    if let Some(tools @ [_, ..]) = tools {
        put_tools(&mut rewritten, tools, place);
    }
    rewritten
}

fn put_tools(messages: &mut Vec<Value>, tools: &[Value], place: ToolsPlace) {
    let mut prompt = BEFORE_TOOLS.to_owned();
    for tool in tools {
        prompt.push('\n');
        prompt.push_str(&dumped(tool));
    }
    prompt.push_str(AFTER_TOOLS);
    match place {
        ToolsPlace::SystemMessage => match messages.first_mut() {
            Some(first) if first["role"] == "system" => {
                first["content"] = json!(joined(&text(first), &prompt));
            }
            _ => messages.insert(0, json!({"role": "system", "content": prompt})),
        },
        ToolsPlace::FirstUserMessage => {
            match messages
                .iter_mut()
                .find(|message| message["role"] == "user")
            {
                Some(first) => first["content"] = json!(joined(&prompt, &text(first))),
                None => messages.insert(0, json!({"role": "user", "content": prompt})),
            }
        }
    }
}

/// An assistant's message whose calls are part of its text.
fn with_calls_in_text(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut fields = fields.clone();
    let calls = match fields.remove("tool_calls") {
        Some(Value::Array(calls)) if !calls.is_empty() => calls,
        _ => return fields,
    };
    let mut content = content_text(fields.get("content"))
        .ok()
        .flatten()
        .map(Cow::into_owned)
        .unwrap_or_default();
    for call in &calls {
        if !content.is_empty() {
            content.push('\n');
        }
        let function = &call["function"];
        content.push_str("<tool_call>\n{\"name\": ");
        content.push_str(&dumped(&function["name"]));
        content.push_str(", \"arguments\": ");
        content.push_str(&arguments(&function["arguments"]));
        content.push_str("}\n</tool_call>");
    }
    fields.insert("content".to_owned(), json!(content));
    fields
}

/// The arguments of a call, which are a JSON text on the wire.
fn arguments(given: &Value) -> String {
    match given {
        Value::String(text) if text.trim().is_empty() => "{}".to_owned(),
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(parsed) => dumped(&parsed),
            Err(_) => text.clone(),
        },
        Value::Null => "{}".to_owned(),
        other => dumped(other),
    }
}

/// As `tojson` of templates writes it.
fn dumped(value: &Value) -> String {
    python_json::dumps(&to_template_value(value), &Style::default())
        .unwrap_or_else(|_| value.to_string())
}

fn text(message: &Value) -> String {
    content_text(message.get("content"))
        .ok()
        .flatten()
        .map(Cow::into_owned)
        .unwrap_or_default()
}

fn joined(before: &str, after: &str) -> String {
    if before.is_empty() || after.is_empty() {
        format!("{before}{after}")
    } else {
        format!("{before}\n\n{after}")
    }
}
