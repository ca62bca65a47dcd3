//! Grammars for replies of a given structure: JSON by a schema, calls of tools in the model's own format.

use std::fmt::Write as _;

use osmosis_core::generation::Constraint;
use serde_json::{Map, Value, json};

use crate::closed_objects;
use crate::reply::CallStyle;
use crate::{ChatFormat, TokensError};

/// What a reply may be. At least one of both is there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StructuredReply<'a> {
    /// Text that is JSON by this schema.
    pub json: Option<&'a Value>,
    /// Calls of these tools, as the Chat Completions API writes them.
    pub tools: &'a [Value],
    /// Calls in one reply.
    pub most_calls: usize,
}

impl ChatFormat {
    /// The grammar of such replies, compiled once to see that it can be followed. Reasoning that the prompt opens may
    /// come first, in any words.
    pub fn constraint(&self, reply: &StructuredReply<'_>) -> Result<Constraint, TokensError> {
        let constraint = Constraint {
            grammar: self.grammar(reply)?.into(),
        };
        let grammars = self.grammars()?;
        match grammars.compile(&constraint) {
            Ok(_) => Ok(constraint),
            Err(error) => {
                // Said of the schema that is the reason, where it is one of them.
                for (whose, schema) in schemas(reply) {
                    let alone = Constraint {
                        grammar: format!("start: %json {}", checked(&whose, schema)?).into(),
                    };
                    if let Err(TokensError::Constraint { message }) = grammars.compile(&alone) {
                        return Err(refused(format!("{whose}: {message}")));
                    }
                }
                Err(error)
            }
        }
    }

    fn grammar(&self, reply: &StructuredReply<'_>) -> Result<String, TokensError> {
        let mut answers = Vec::new();
        let mut rules = String::new();
        if let Some(schema) = reply.json {
            answers.push("json");
            let schema = checked(JSON_REPLY, Some(schema))?;
            rule(&mut rules, &format!("json: %json {schema}"));
        }
        if !reply.tools.is_empty() {
            answers.push("calls");
            let (before, between, after, separator) = match self.call_style() {
                CallStyle::Tagged => (
                    "<tool_call>\n{\"name\": ",
                    ", \"arguments\": ",
                    "}\n</tool_call>",
                    "\n",
                ),
                CallStyle::BareJson => ("{\"name\": ", ", \"parameters\": ", "}", "; "),
            };
            let more = reply.most_calls.saturating_sub(1);
            if more == 0 {
                rule(&mut rules, "calls: call");
            } else {
                let separator = json!(separator);
                rule(
                    &mut rules,
                    &format!("calls: call ({separator} call){{0,{more}}}"),
                );
            }
            let names: Vec<String> = (0..reply.tools.len())
                .map(|n| format!("call_{n}"))
                .collect();
            rule(&mut rules, &format!("call: {}", names.join(" | ")));
            for (number, tool) in reply.tools.iter().enumerate() {
                let (name, schema) = function(tool)?;
                let schema = checked(&whose_tool(name), schema)?;
                let opening = json!(format!("{before}{}{between}", json!(name)));
                let closing = json!(after);
                rule(
                    &mut rules,
                    &format!("call_{number}: {opening} arguments_{number} {closing}"),
                );
                rule(&mut rules, &format!("arguments_{number}: %json {schema}"));
            }
        }
        if answers.is_empty() {
            return Err(refused("there is nothing that the reply may be"));
        }
        let answer = answers.join(" | ");
        let start = if self.opens_thinking() {
            format!(
                "start: thoughts answer\nthoughts[suffix=\"</think>\"]: /(.|\\n)*/\nanswer: /\\n{{0,2}}/ ({answer})"
            )
        } else {
            format!("start: {answer}")
        };
        Ok(format!("{start}\n{rules}"))
    }
}

const JSON_REPLY: &str = "the JSON schema of the reply";

fn whose_tool(name: &str) -> String {
    format!("the parameters of tool `{name}`")
}

fn rule(rules: &mut String, text: &str) {
    // Writing into a `String` cannot fail.
    let _ = writeln!(rules, "{text}");
}

/// The schemas, and what each is the schema of.
fn schemas<'a>(reply: &StructuredReply<'a>) -> Vec<(String, Option<&'a Value>)> {
    let json = reply
        .json
        .map(|schema| (JSON_REPLY.to_owned(), Some(schema)));
    let tools = reply.tools.iter().filter_map(|tool| function(tool).ok());
    let tools = tools.map(|(name, schema)| (whose_tool(name), schema));
    json.into_iter().chain(tools).collect()
}

/// The name of a tool and the schema of its arguments.
fn function(tool: &Value) -> Result<(&str, Option<&Value>), TokensError> {
    let function = &tool["function"];
    let Some(name) = function["name"].as_str().filter(|name| !name.is_empty()) else {
        return Err(refused("a tool is no function with a name"));
    };
    let parameters = function.get("parameters").filter(|given| !given.is_null());
    Ok((name, parameters))
}

/// The schema as text, with how JSON is to be written: as Python's `json.dumps` does. Other white space would be one
/// more choice at every place, and a model that knows no better could go on with it for ever.
fn checked(whose: &str, schema: Option<&Value>) -> Result<String, TokensError> {
    let mut schema = match schema {
        None => Map::from_iter([("type".to_owned(), json!("object"))]),
        Some(Value::Object(schema)) => schema.clone(),
        Some(Value::Bool(true)) => Map::new(),
        Some(_) => return Err(refused(format!("{whose} is not an object"))),
    };
    closed_objects::close(&mut schema);
    schema.insert(
        "x-guidance".to_owned(),
        json!({
            "whitespace_flexible": false,
            "item_separator": ", ",
            "key_separator": ": ",
            "coerce_one_of": true,
        }),
    );
    Ok(Value::Object(schema).to_string())
}

fn refused(message: impl Into<String>) -> TokensError {
    TokensError::Constraint {
        message: message.into(),
    }
}
