//! Messages in OpenAI's wire form, as templates expect them.

use std::borrow::Cow;

use minijinja::Value as TemplateValue;
use serde_json::{Map, Value};

use crate::TokensError;
use crate::python_json::{self, Style};

/// How a template wants what the wire leaves open. Found out by trying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dialect {
    /// The arguments of a tool call come as a mapping; else as text.
    pub arguments_as_mapping: bool,
    /// A message that only calls tools has `none` for content; else the empty text.
    pub content_none: bool,
}

impl Dialect {
    pub(crate) const ALL: [Self; 4] = [
        Self::new(true, true),
        Self::new(true, false),
        Self::new(false, true),
        Self::new(false, false),
    ];

    const fn new(arguments_as_mapping: bool, content_none: bool) -> Self {
        Self {
            arguments_as_mapping,
            content_none,
        }
    }
}

/// The names under which clients send reasoning, the standard one first.
pub(crate) const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Messages as values of the template engine.
pub(crate) fn prepare(messages: &[Value], dialect: Dialect) -> Result<TemplateValue, TokensError> {
    let prepared: Result<Vec<TemplateValue>, TokensError> = messages
        .iter()
        .enumerate()
        .map(|(index, message)| prepare_one(index, message, dialect))
        .collect();
    Ok(TemplateValue::from(prepared?))
}

fn prepare_one(
    index: usize,
    message: &Value,
    dialect: Dialect,
) -> Result<TemplateValue, TokensError> {
    let bad = |text: &str| TokensError::Message {
        index,
        message: text.to_owned(),
    };
    let fields = message
        .as_object()
        .ok_or_else(|| bad("a message is an object with `role` and `content`"))?;
    if !fields.get("role").is_some_and(Value::is_string) {
        return Err(bad("`role` is missing or no text"));
    }
    let tool_calls = match fields.get("tool_calls") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(calls)) => calls.as_slice(),
        Some(_) => return Err(bad("`tool_calls` is no list")),
    };
    let content = match content_text(fields.get("content")) {
        Ok(None) => empty_content(tool_calls, dialect),
        Ok(Some(text)) if text.is_empty() => empty_content(tool_calls, dialect),
        Ok(Some(text)) => TemplateValue::from(text.into_owned()),
        Err(problem) => return Err(bad(&problem)),
    };

    let mut prepared: Vec<(&str, TemplateValue)> = Vec::with_capacity(fields.len() + 2);
    let mut has_content = false;
    for (name, value) in fields {
        match name.as_str() {
            "content" => {
                has_content = true;
                prepared.push(("content", content.clone()));
            }
            "tool_calls" if tool_calls.is_empty() => {}
            "tool_calls" => {
                let calls: Result<Vec<TemplateValue>, TokensError> = tool_calls
                    .iter()
                    .map(|call| tool_call(call, dialect).map_err(|problem| bad(&problem)))
                    .collect();
                prepared.push(("tool_calls", TemplateValue::from(calls?)));
            }
            // Templates ask `is defined`; on the wire null means absent.
            _ if value.is_null() => {}
            other => prepared.push((other, to_template_value(value))),
        }
    }
    if !has_content {
        prepared.push(("content", content));
    }
    if let Some(reasoning) = REASONING_FIELDS
        .iter()
        .find_map(|name| fields.get(*name).filter(|value| !value.is_null()))
    {
        // As transformers does it: templates read either name.
        prepared.retain(|(field, _)| *field != "reasoning_content");
        prepared.push(("reasoning_content", to_template_value(reasoning)));
        if !prepared.iter().any(|(field, _)| *field == "thinking") {
            prepared.push(("thinking", to_template_value(reasoning)));
        }
    }
    Ok(TemplateValue::from_pairs(prepared))
}

fn empty_content(tool_calls: &[Value], dialect: Dialect) -> TemplateValue {
    if dialect.content_none && !tool_calls.is_empty() {
        TemplateValue::from(())
    } else {
        TemplateValue::from("")
    }
}

/// The text of a content: its text parts joined. `None` when it is absent or null.
pub(crate) fn content_text(content: Option<&Value>) -> Result<Option<Cow<'_, str>>, String> {
    match content {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(Cow::Borrowed(text))),
        Some(Value::Array(parts)) => {
            let mut joined = String::new();
            for part in parts {
                match part {
                    Value::String(text) => joined.push_str(text),
                    part => match (part["type"].as_str(), part["text"].as_str()) {
                        (Some("text" | "input_text" | "output_text") | None, Some(text)) => {
                            joined.push_str(text);
                        }
                        (Some("refusal"), _) => {
                            joined.push_str(part["refusal"].as_str().unwrap_or_default());
                        }
                        (kind, _) => {
                            return Err(format!(
                                "a content part of type `{}` can't be given to this model, which takes text only",
                                kind.unwrap_or("unknown")
                            ));
                        }
                    },
                }
            }
            Ok(Some(Cow::Owned(joined)))
        }
        Some(_) => Err("`content` is neither text nor a list of parts".to_owned()),
    }
}

fn tool_call(call: &Value, dialect: Dialect) -> Result<TemplateValue, String> {
    let fields = call
        .as_object()
        .ok_or_else(|| "a tool call is no object".to_owned())?;
    let mut prepared: Vec<(&str, TemplateValue)> = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("function", Value::Object(function)) => {
                prepared.push(("function", function_call(function, dialect)?));
            }
            (_, Value::Null) => {}
            (other, value) => prepared.push((other, to_template_value(value))),
        }
    }
    Ok(TemplateValue::from_pairs(prepared))
}

fn function_call(function: &Map<String, Value>, dialect: Dialect) -> Result<TemplateValue, String> {
    if !function.get("name").is_some_and(Value::is_string) {
        return Err("a tool call has no `function.name`".to_owned());
    }
    let fields = function.iter().map(|(name, value)| {
        let value = match name.as_str() {
            "arguments" => arguments(value, dialect),
            _ => to_template_value(value),
        };
        (name.as_str(), value)
    });
    Ok(TemplateValue::from_pairs(fields))
}

fn arguments(value: &Value, dialect: Dialect) -> TemplateValue {
    match value {
        Value::String(text) if dialect.arguments_as_mapping => {
            // Clients send the empty text for a call without arguments.
            let text = if text.trim().is_empty() { "{}" } else { text };
            match serde_json::from_str::<Map<String, Value>>(text) {
                Ok(fields) => to_template_value(&Value::Object(fields)),
                Err(_) => TemplateValue::from(text),
            }
        }
        Value::Object(_) if !dialect.arguments_as_mapping => {
            let mapping = to_template_value(value);
            python_json::dumps(&mapping, &Style::default()).map_or(mapping, TemplateValue::from)
        }
        value => to_template_value(value),
    }
}

pub(crate) fn to_template_value(value: &Value) -> TemplateValue {
    match value {
        Value::Null => TemplateValue::from(()),
        Value::Bool(yes) => TemplateValue::from(*yes),
        Value::Number(number) => {
            if let Some(n) = number.as_i64() {
                TemplateValue::from(n)
            } else if let Some(n) = number.as_u64() {
                TemplateValue::from(n)
            } else {
                TemplateValue::from(number.as_f64().unwrap_or(f64::NAN))
            }
        }
        Value::String(text) => TemplateValue::from(text.as_str()),
        Value::Array(items) => TemplateValue::from(
            items
                .iter()
                .map(to_template_value)
                .collect::<Vec<TemplateValue>>(),
        ),
        Value::Object(fields) => TemplateValue::from_pairs(
            fields
                .iter()
                .map(|(name, value)| (name.as_str(), to_template_value(value))),
        ),
    }
}
