//! What a caller asks a token policy for, checked.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::structure::{self, ToolChoice};
use crate::policy::{ModelReply, ReplyBody};

/// More choices than anybody asks for by intent.
const MAX_CHOICES: u64 = 128;
/// As many as the Chat Completions API has.
const MAX_ALTERNATIVES: u64 = 20;

/// A request, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CheckedRequest {
    pub(super) messages: Vec<Value>,
    /// `None` when there are none, or when the caller wants none used.
    pub(super) tools: Option<Vec<Value>>,
    pub(super) tool_choice: ToolChoice,
    /// Whether a reply may have several calls.
    pub(super) parallel_calls: bool,
    /// The schema of a reply that must be JSON.
    pub(super) json: Option<Value>,
    /// Further variables of the template.
    pub(super) extra: Map<String, Value>,
    pub(super) temperature: f32,
    pub(super) top_p: f32,
    pub(super) top_k: usize,
    pub(super) max_tokens: Option<usize>,
    pub(super) stop: Vec<String>,
    pub(super) seed: Option<i64>,
    pub(super) choices: u32,
    /// How many alternatives to tell beside each token's logprob; `None` for no logprobs.
    pub(super) logprobs: Option<usize>,
    pub(super) include_usage: bool,
    pub(super) return_token_ids: bool,
    /// vLLM's extension: sample on after the end of the turn, until another limit.
    pub(super) ignore_eos: bool,
}

/// A request the policy cannot serve, by the caller's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) message: String,
    pub(super) param: Option<&'static str>,
    pub(super) code: &'static str,
}

impl Refusal {
    pub(super) fn of(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            param: Some(param),
            code: "invalid_value",
        }
    }

    pub(super) fn unsupported(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            param: Some(param),
            code: "unsupported_parameter",
        }
    }

    pub(super) fn too_long(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            param: Some("messages"),
            code: "context_length_exceeded",
        }
    }

    pub(super) fn reply(&self) -> ModelReply {
        let error = json!({"error": {
            "message": self.message,
            "type": "invalid_request_error",
            "param": self.param,
            "code": self.code,
        }});
        ModelReply {
            status: 400,
            content_type: "application/json".to_owned(),
            body: ReplyBody::Whole(Bytes::from(error.to_string())),
        }
    }
}

/// The fields that are read, whatever they hold. Others are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    messages: Value,
    tools: Value,
    tool_choice: Value,
    parallel_tool_calls: Value,
    chat_template_kwargs: Value,
    temperature: Value,
    top_p: Value,
    top_k: Value,
    max_tokens: Value,
    max_completion_tokens: Value,
    stop: Value,
    seed: Value,
    n: Value,
    logprobs: Value,
    top_logprobs: Value,
    response_format: Value,
    stream_options: Value,
    return_token_ids: Value,
    ignore_eos: Value,
}

impl CheckedRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let fields: Fields = serde_json::from_slice(body).map_err(|error| {
            Refusal::of(
                "messages",
                format!("the body is not a valid request: {error}"),
            )
        })?;
        let max_tokens = match count("max_completion_tokens", &fields.max_completion_tokens)? {
            Some(tokens) => Some(tokens),
            None => count("max_tokens", &fields.max_tokens)?,
        };
        let tool_choice = ToolChoice::parse(&fields.tool_choice)?;
        let tools = offered_tools(fields.tools)?;
        Ok(Self {
            messages: messages(fields.messages)?,
            tools: tools.filter(|_| tool_choice != ToolChoice::None),
            tool_choice,
            parallel_calls: fields.parallel_tool_calls.is_null()
                || flag("parallel_tool_calls", &fields.parallel_tool_calls)?,
            json: structure::reply_schema(&fields.response_format)?,
            extra: template_variables(fields.chat_template_kwargs)?,
            temperature: temperature(&fields.temperature)?,
            top_p: top_p(&fields.top_p)?,
            top_k: top_k(&fields.top_k)?,
            max_tokens,
            stop: stop_texts(fields.stop)?,
            seed: seed(&fields.seed)?,
            choices: choices(&fields.n)?,
            logprobs: logprobs(&fields.logprobs, &fields.top_logprobs)?,
            include_usage: fields.stream_options.get("include_usage") == Some(&Value::Bool(true)),
            return_token_ids: flag("return_token_ids", &fields.return_token_ids)?,
            ignore_eos: flag("ignore_eos", &fields.ignore_eos)?,
        })
    }
}

/// The messages; what is in them is the template's business.
fn messages(given: Value) -> Result<Vec<Value>, Refusal> {
    let Value::Array(mut messages) = given else {
        return Err(Refusal::of("messages", "`messages` is not an array"));
    };
    if messages.is_empty() {
        return Err(Refusal::of("messages", "`messages` is empty"));
    }
    for message in &mut messages {
        // Templates know the older name of the same thing.
        if let Some(role) = message.get_mut("role")
            && role == "developer"
        {
            *role = Value::from("system");
        }
    }
    Ok(messages)
}

/// The tools, if there are any.
fn offered_tools(tools: Value) -> Result<Option<Vec<Value>>, Refusal> {
    let tools = match tools {
        Value::Null => Vec::new(),
        Value::Array(tools) => tools,
        _ => return Err(Refusal::of("tools", "`tools` is not an array")),
    };
    if let Some(wrong) = tools.iter().position(|tool| !tool.is_object()) {
        return Err(Refusal::of(
            "tools",
            format!("`tools[{wrong}]` is not an object"),
        ));
    }
    Ok((!tools.is_empty()).then_some(tools))
}

fn template_variables(given: Value) -> Result<Map<String, Value>, Refusal> {
    match given {
        Value::Null => Ok(Map::new()),
        Value::Object(variables) => Ok(variables),
        _ => Err(Refusal::of(
            "chat_template_kwargs",
            "`chat_template_kwargs` is not an object",
        )),
    }
}

pub(super) fn temperature(given: &Value) -> Result<f32, Refusal> {
    let value = number("temperature", given)?.unwrap_or(1.0);
    // Below a thousandth the logits would be divided by next to nothing.
    if value == 0.0 || (0.001..=100.0).contains(&value) {
        Ok(narrowed(value))
    } else {
        Err(Refusal::of(
            "temperature",
            format!("`temperature` is {value}; it must be 0, or from 0.001 to 100"),
        ))
    }
}

pub(super) fn top_p(given: &Value) -> Result<f32, Refusal> {
    let value = number("top_p", given)?.unwrap_or(1.0);
    if value > 0.0 && value <= 1.0 {
        // Very small ones must not become 0 on the way.
        Ok(narrowed(value).max(f32::MIN_POSITIVE))
    } else {
        Err(Refusal::of(
            "top_p",
            format!("`top_p` is {value}; it must be above 0 and at most 1"),
        ))
    }
}

pub(super) fn top_k(given: &Value) -> Result<usize, Refusal> {
    if given.is_null() || given.as_i64() == Some(-1) {
        return Ok(0);
    }
    given
        .as_u64()
        .and_then(|k| usize::try_from(k).ok())
        .ok_or_else(|| {
            Refusal::of(
                "top_k",
                format!("`top_k` is {given}; it must be a whole number, -1 or 0 for all tokens"),
            )
        })
}

pub(super) fn stop_texts(given: Value) -> Result<Vec<String>, Refusal> {
    let wrong = || Refusal::of("stop", "`stop` must be a text or a list of texts");
    let texts = match given {
        Value::Null => Vec::new(),
        Value::String(text) => vec![text],
        Value::Array(items) => items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(text),
                _ => Err(wrong()),
            })
            .collect::<Result<_, _>>()?,
        _ => return Err(wrong()),
    };
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
}

pub(super) fn seed(given: &Value) -> Result<Option<i64>, Refusal> {
    if given.is_null() {
        return Ok(None);
    }
    let seed = given
        .as_i64()
        .or_else(|| given.as_u64().map(u64::cast_signed));
    match seed {
        Some(seed) => Ok(Some(seed)),
        None => Err(Refusal::of(
            "seed",
            format!("`seed` is {given}; it must be a whole number of 64 bits"),
        )),
    }
}

pub(super) fn choices(given: &Value) -> Result<u32, Refusal> {
    if given.is_null() {
        return Ok(1);
    }
    given
        .as_u64()
        .filter(|n| (1..=MAX_CHOICES).contains(n))
        .and_then(|n| u32::try_from(n).ok())
        .ok_or_else(|| {
            Refusal::of(
                "n",
                format!("`n` is {given}; it must be a whole number from 1 to {MAX_CHOICES}"),
            )
        })
}

fn logprobs(wanted: &Value, alternatives: &Value) -> Result<Option<usize>, Refusal> {
    let wanted = flag("logprobs", wanted)?;
    if alternatives.is_null() {
        return Ok(wanted.then_some(0));
    }
    let count = alternatives
        .as_u64()
        .filter(|count| *count <= MAX_ALTERNATIVES)
        .and_then(|count| usize::try_from(count).ok())
        .ok_or_else(|| {
            Refusal::of(
                "top_logprobs",
                format!(
                    "`top_logprobs` is {alternatives}; it must be a whole number from 0 to {MAX_ALTERNATIVES}"
                ),
            )
        })?;
    if count > 0 && !wanted {
        return Err(Refusal::of(
            "top_logprobs",
            "`top_logprobs` needs `logprobs` to be true",
        ));
    }
    Ok(wanted.then_some(count))
}

pub(super) fn count(name: &'static str, given: &Value) -> Result<Option<usize>, Refusal> {
    if given.is_null() {
        return Ok(None);
    }
    match given.as_u64().filter(|count| *count > 0) {
        Some(count) => Ok(Some(usize::try_from(count).unwrap_or(usize::MAX))),
        None => Err(Refusal::of(
            name,
            format!("`{name}` is {given}; it must be a whole number above 0"),
        )),
    }
}

pub(super) fn number(name: &'static str, given: &Value) -> Result<Option<f64>, Refusal> {
    if given.is_null() {
        return Ok(None);
    }
    match given.as_f64() {
        Some(number) => Ok(Some(number)),
        None => Err(Refusal::of(name, format!("`{name}` is not a number"))),
    }
}

pub(super) fn flag(name: &'static str, given: &Value) -> Result<bool, Refusal> {
    match given {
        Value::Null => Ok(false),
        Value::Bool(flag) => Ok(*flag),
        _ => Err(Refusal::of(
            name,
            format!("`{name}` is neither true nor false"),
        )),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "settings of sampling are single precision, and in range"
)]
fn narrowed(value: f64) -> f32 {
    value as f32
}
