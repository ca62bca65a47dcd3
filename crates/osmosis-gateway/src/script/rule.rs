//! Which rule answers a call, and what it says.

use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::template::{Template, ValueTemplate, Values};

#[derive(Debug)]
pub(super) struct Rule {
    /// Where it stands in the file.
    pub(super) line: usize,
    pub(super) when: When,
    /// It answers only this many calls of a rollout.
    pub(super) times: Option<u32>,
    pub(super) delay: Duration,
    pub(super) chunk_delay: Duration,
    /// The reply breaks off after so many events.
    pub(super) cut_after: Option<usize>,
    pub(super) reply: Reply,
}

/// Conditions that must all hold.
#[derive(Debug, Default)]
pub(super) struct When {
    pub(super) turns: Option<Vec<u64>>,
    pub(super) last_role: Option<String>,
    pub(super) last_user: Option<Regex>,
    pub(super) tool_result: Option<Regex>,
    pub(super) system: Option<Regex>,
}

#[derive(Debug)]
pub(super) enum Reply {
    /// One of these; a rule without variants has one.
    Say(Vec<Variant>),
    Error {
        status: u16,
        message: Template,
    },
    Garbage(Template),
}

#[derive(Debug)]
pub(super) struct Variant {
    pub(super) weight: u64,
    pub(super) text: Option<Template>,
    pub(super) tool_calls: Vec<ToolCall>,
    pub(super) finish_reason: Option<String>,
}

#[derive(Debug)]
pub(super) struct ToolCall {
    pub(super) name: Template,
    pub(super) arguments: Arguments,
}

#[derive(Debug)]
pub(super) enum Arguments {
    Json(ValueTemplate),
    /// As it is; need not be JSON.
    Text(Template),
}

impl When {
    /// The captured values when every condition holds.
    pub(super) fn matches(&self, conversation: &Conversation) -> Option<Values> {
        if let Some(turns) = &self.turns
            && !turns.contains(&conversation.turn)
        {
            return None;
        }
        if let Some(role) = &self.last_role
            && *role != conversation.last_role
        {
            return None;
        }
        let mut values = Values::new();
        for (expression, text) in [
            (&self.last_user, &conversation.last_user),
            (&self.tool_result, &conversation.tool_result),
            (&self.system, &conversation.system),
        ] {
            let Some(expression) = expression else {
                continue;
            };
            let captures = expression.captures(text.as_deref()?)?;
            for name in expression.capture_names().flatten() {
                let text = captures.name(name).map_or("", |found| found.as_str());
                values.insert(name.to_owned(), text.to_owned());
            }
        }
        Some(values)
    }
}

/// What a script can see of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Conversation {
    /// Which answer of the model this is, from 1: the assistant's messages so far, plus one.
    pub(super) turn: u64,
    pub(super) last_role: String,
    pub(super) last_text: String,
    pub(super) last_user: Option<String>,
    /// The last message, when it is a tool's.
    pub(super) tool_result: Option<String>,
    /// All tool messages at the end, joined.
    pub(super) tool_results: Option<String>,
    pub(super) system: Option<String>,
    pub(super) prompt_tokens: u64,
    pub(super) choices: u64,
    pub(super) include_usage: bool,
}

#[derive(Deserialize)]
struct Body {
    messages: Vec<Message>,
    #[serde(default)]
    n: Option<u64>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Value,
}

/// More choices than this are refused, like everywhere.
const MAX_CHOICES: u64 = 128;

impl Conversation {
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        let body: Body = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let choices = body.n.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&choices) {
            return Err(format!("`n` is {choices}, not 1 to {MAX_CHOICES}"));
        }
        let mut conversation = Self {
            turn: 1,
            last_role: String::new(),
            last_text: String::new(),
            last_user: None,
            tool_result: None,
            tool_results: None,
            system: None,
            prompt_tokens: 0,
            choices,
            include_usage: body
                .stream_options
                .and_then(|options| options.include_usage)
                .unwrap_or(false),
        };
        for Message { role, content } in body.messages {
            let text = text_of(&content);
            conversation.prompt_tokens += approximate_tokens(&text);
            if role != "tool" {
                conversation.tool_result = None;
                conversation.tool_results = None;
            }
            match role.as_str() {
                "assistant" => conversation.turn += 1,
                "user" => conversation.last_user = Some(text.clone()),
                "tool" => {
                    join(&mut conversation.tool_results, &text, ", ");
                    conversation.tool_result = Some(text.clone());
                }
                "system" | "developer" => join(&mut conversation.system, &text, "\n"),
                _ => {}
            }
            conversation.last_role = role;
            conversation.last_text = text;
        }
        Ok(conversation)
    }

    pub(super) fn values(&self) -> Values {
        let mut values = Values::new();
        values.insert("turn".to_owned(), self.turn.to_string());
        for (name, value) in [
            ("last_user", &self.last_user),
            ("tool_result", &self.tool_result),
            ("tool_results", &self.tool_results),
        ] {
            if let Some(value) = value {
                values.insert(name.to_owned(), value.clone());
            }
        }
        values
    }
}

fn join(all: &mut Option<String>, text: &str, between: &str) {
    match all {
        Some(all) => {
            all.push_str(between);
            all.push_str(text);
        }
        None => *all = Some(text.to_owned()),
    }
}

/// The text of a message's content: a string, or the text parts of a list.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part.get("text").and_then(Value::as_str).or(part.as_str()))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => String::new(),
    }
}

/// One token for every four characters begun. A script has no tokenizer; this only makes longer texts
/// count for more.
pub(super) fn approximate_tokens(text: &str) -> u64 {
    text.chars().count().div_ceil(4) as u64
}
