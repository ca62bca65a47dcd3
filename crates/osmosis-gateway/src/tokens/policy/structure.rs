//! What a reply must be, by `response_format` and `tool_choice`, as a constraint for the engine.

use memchr::memmem;
use osmosis_core::generation::Constraint;
use osmosis_tokens::{StructuredReply, TokensError};
use serde_json::{Value, json};

use super::Inner;
use super::checked_request::{CheckedRequest, Refusal};

/// Calls in a reply that must have at least one. A model that does not know how to end would go on for ever.
const MOST_CALLS: usize = 8;

/// Which tools a reply has to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToolChoice {
    /// The model decides.
    Auto,
    /// No tool is offered.
    None,
    /// At least one of those offered.
    Required,
    /// This one.
    Named(String),
}

impl ToolChoice {
    /// Both forms of the Chat Completions API.
    pub(super) fn parse(given: &Value) -> Result<Self, Refusal> {
        match given {
            Value::Null => Ok(Self::Auto),
            Value::String(choice) if choice == "auto" => Ok(Self::Auto),
            Value::String(choice) if choice == "none" => Ok(Self::None),
            Value::String(choice) if choice == "required" => Ok(Self::Required),
            Value::Object(choice) if choice.get("type") == Some(&json!("function")) => {
                let name = given["function"]["name"].as_str();
                let name = name.filter(|name| !name.is_empty());
                name.map(|name| Self::Named(name.to_owned()))
                    .ok_or_else(|| {
                        Refusal::of("tool_choice", "`tool_choice.function.name` is missing")
                    })
            }
            other => Err(Refusal::unsupported(
                "tool_choice",
                format!(
                    "`tool_choice` is {other}; it can be \"auto\", \"none\", \"required\" or a function by its name"
                ),
            )),
        }
    }

    pub(super) fn forces_a_call(&self) -> bool {
        match self {
            Self::Auto | Self::None => false,
            Self::Required | Self::Named(_) => true,
        }
    }
}

/// The schema of a reply that must be JSON; `None` for text.
pub(super) fn reply_schema(format: &Value) -> Result<Option<Value>, Refusal> {
    let kind = format.get("type").and_then(Value::as_str);
    match (kind, format) {
        (None, Value::Null) | (Some("text"), _) => Ok(None),
        (Some("json_object"), _) => Ok(Some(json!({"type": "object"}))),
        (Some("json_schema"), _) => match format["json_schema"].get("schema") {
            Some(schema @ Value::Object(_)) => Ok(Some(schema.clone())),
            _ => Err(Refusal::of(
                "response_format",
                "`response_format.json_schema.schema` is not an object",
            )),
        },
        _ => Err(Refusal::unsupported(
            "response_format",
            format!(
                "`response_format` is {format}; its type can be text, json_object or json_schema"
            ),
        )),
    }
}

/// Whether a body may ask for a structure. Its grammar is compiled then, which nobody else shall wait for.
pub(super) fn is_mentioned(body: &[u8]) -> bool {
    ["\"response_format\"", "\"tool_choice\""]
        .into_iter()
        .any(|name| memmem::find(body, name.as_bytes()).is_some())
}

impl Inner {
    /// What the tokens of a reply have to follow, if anything.
    pub(super) fn constraint(&self, asked: &CheckedRequest) -> Result<Option<Constraint>, Refusal> {
        let forced = asked.tool_choice.forces_a_call();
        let (param, wanted) = match (&asked.json, forced) {
            (None, false) => return Ok(None),
            (_, true) => ("tool_choice", "a tool call can't be forced"),
            (Some(_), false) => ("response_format", "replies can't be held to a format"),
        };
        if !self.engine.constrains() {
            let endpoint = &self.options.endpoint;
            return Err(Refusal::unsupported(
                param,
                format!(
                    "{wanted} here: tokens are sampled at `{endpoint}`, which takes no grammars. `{param}` can be \
                     given to embedded models"
                ),
            ));
        }
        if asked.ignore_eos {
            return Err(Refusal::unsupported(
                "ignore_eos",
                format!("`ignore_eos` can't be true beside `{param}`: the grammar ends the reply"),
            ));
        }
        let offered = asked.tools.as_deref().unwrap_or_default();
        let named: Vec<Value>;
        let tools = match &asked.tool_choice {
            ToolChoice::Auto | ToolChoice::None | ToolChoice::Required => offered,
            ToolChoice::Named(name) => {
                let of_name = |tool: &&Value| tool["function"]["name"] == name.as_str();
                named = offered.iter().filter(of_name).take(1).cloned().collect();
                named.as_slice()
            }
        };
        if forced && tools.is_empty() {
            return Err(Refusal::of(
                "tool_choice",
                match &asked.tool_choice {
                    ToolChoice::Named(name) => {
                        format!("`tool_choice` names `{name}`, which is not among `tools`")
                    }
                    _ => "`tool_choice` is \"required\", and there are no `tools`".to_owned(),
                },
            ));
        }
        let one_call = !asked.parallel_calls || matches!(asked.tool_choice, ToolChoice::Named(_));
        let reply = StructuredReply {
            json: asked.json.as_ref().filter(|_| !forced),
            tools,
            most_calls: if one_call { 1 } else { MOST_CALLS },
        };
        let made = self.chat().constraint(&reply);
        made.map(Some).map_err(|error| {
            let message = match error {
                TokensError::Constraint { message } => message,
                other => other.to_string(),
            };
            Refusal::of(param, format!("`{param}` can't be followed: {message}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_of_tools_are_those_of_the_api() {
        for (given, expected) in [
            (json!(null), ToolChoice::Auto),
            (json!("auto"), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!("required"), ToolChoice::Required),
            (
                json!({"type": "function", "function": {"name": "f"}}),
                ToolChoice::Named("f".to_owned()),
            ),
        ] {
            assert_eq!(ToolChoice::parse(&given), Ok(expected), "{given}");
        }
        for given in [
            json!("any"),
            json!({"type": "function"}),
            json!({"type": "allowed_tools", "tools": []}),
            json!(3),
        ] {
            let refusal = ToolChoice::parse(&given).unwrap_err();
            assert_eq!(refusal.param, Some("tool_choice"), "{given}");
        }
    }

    #[test]
    fn formats_of_replies_are_those_of_the_api() {
        let schema = json!({"type": "array"});
        for (given, expected) in [
            (json!(null), None),
            (json!({"type": "text"}), None),
            (
                json!({"type": "json_object"}),
                Some(json!({"type": "object"})),
            ),
            (
                json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}),
                Some(schema.clone()),
            ),
        ] {
            assert_eq!(reply_schema(&given), Ok(expected));
        }
        for given in [
            json!({"type": "json_schema"}),
            json!({"type": "json_schema", "json_schema": {"schema": 3}}),
            json!({"type": "grammar"}),
            json!("json"),
        ] {
            let refusal = reply_schema(&given).unwrap_err();
            assert_eq!(refusal.param, Some("response_format"), "{given}");
        }
    }
}
