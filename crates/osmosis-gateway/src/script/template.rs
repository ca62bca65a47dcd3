//! Texts with values in them: `{name}`, `{name:int}`, and `{{` or `}}` for the braces themselves.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};

/// Values that every rule can use, besides the groups its expressions capture.
pub(super) const BUILT_IN: [&str; 6] = [
    "last_user",
    "tool_result",
    "tool_results",
    "turn",
    "rollout_id",
    "sample_id",
];

/// What a call offers to templates.
pub(super) type Values = HashMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Value { name: String, kind: Kind },
}

/// What a value shall become where it is more than a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Int,
    Number,
    Bool,
    Json,
}

const KINDS: [&str; 5] = ["text", "int", "number", "bool", "json"];

impl Kind {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "int" => Some(Self::Int),
            "number" => Some(Self::Number),
            "bool" => Some(Self::Bool),
            "json" => Some(Self::Json),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Int => "int",
            Self::Number => "number",
            Self::Bool => "bool",
            Self::Json => "json",
        }
    }

    fn read(self, text: &str) -> Option<Value> {
        let text = text.trim();
        match self {
            Self::Text => Some(Value::from(text)),
            Self::Int => text.parse::<i64>().ok().map(Value::from),
            Self::Number => text
                .parse::<i64>()
                .map(Value::from)
                .ok()
                .or_else(|| Number::from_f64(text.parse().ok()?).map(Value::Number)),
            Self::Bool => match text.to_ascii_lowercase().as_str() {
                "true" | "yes" => Some(Value::Bool(true)),
                "false" | "no" => Some(Value::Bool(false)),
                _ => None,
            },
            Self::Json => serde_json::from_str(text).ok(),
        }
    }
}

impl Template {
    /// Reads a template that may use the names in `known`.
    pub(super) fn parse(text: &str, known: &[&str]) -> Result<Self, Vec<TemplateError>> {
        let mut errors = Vec::new();
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, brace) = rest.split_at(at);
            literal.push_str(before);
            if let Some(after) = brace.strip_prefix("{{") {
                literal.push('{');
                rest = after;
            } else if let Some(after) = brace.strip_prefix("}}") {
                literal.push('}');
                rest = after;
            } else if let Some(after) = brace.strip_prefix('}') {
                errors.push(TemplateError::plain(
                    "a lone `}`; write `}}` for the brace itself",
                ));
                rest = after;
            } else {
                let inside = &brace[1..];
                let Some(end) = inside.find('}') else {
                    errors.push(TemplateError::plain(
                        "a `{` without its `}`; write `{{` for the brace itself",
                    ));
                    return Err(errors);
                };
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal)));
                }
                match placeholder(&inside[..end], known) {
                    Ok(part) => parts.push(part),
                    Err(error) => errors.push(error),
                }
                rest = &inside[end + 1..];
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        if errors.is_empty() {
            Ok(Self { parts })
        } else {
            Err(errors)
        }
    }

    pub(super) fn text(&self, values: &Values) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(literal) => text.push_str(literal),
                Part::Value { name, kind } => {
                    let value = value(name, values)?;
                    match kind {
                        Kind::Text => text.push_str(value),
                        Kind::Int | Kind::Number | Kind::Bool | Kind::Json => {
                            text.push_str(&typed(name, *kind, value)?.to_string());
                        }
                    }
                }
            }
        }
        Ok(text)
    }

    /// A single `{name:kind}` is a value of that kind; everything else is a text.
    fn json(&self, values: &Values) -> Result<Value, String> {
        match self.parts.as_slice() {
            [Part::Value { name, kind }] if *kind != Kind::Text => {
                typed(name, *kind, value(name, values)?)
            }
            _ => self.text(values).map(Value::from),
        }
    }
}

/// A JSON value with templates for its texts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ValueTemplate {
    Text(Template),
    Fixed(Value),
    List(Vec<Self>),
    Table(Vec<(String, Self)>),
}

impl ValueTemplate {
    pub(super) fn json(&self, values: &Values) -> Result<Value, String> {
        match self {
            Self::Text(template) => template.json(values),
            Self::Fixed(value) => Ok(value.clone()),
            Self::List(items) => items.iter().map(|item| item.json(values)).collect(),
            Self::Table(entries) => {
                let mut object = Map::new();
                for (key, item) in entries {
                    object.insert(key.clone(), item.json(values)?);
                }
                Ok(Value::Object(object))
            }
        }
    }
}

/// Why a text is not a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TemplateError {
    pub(super) message: String,
    pub(super) nearest: Option<String>,
}

impl TemplateError {
    fn plain(message: &str) -> Self {
        Self {
            message: message.to_owned(),
            nearest: None,
        }
    }
}

fn placeholder(inside: &str, known: &[&str]) -> Result<Part, TemplateError> {
    let (name, kind) = inside.split_once(':').unwrap_or((inside, "text"));
    let (name, kind) = (name.trim(), kind.trim());
    if !known.contains(&name) {
        return Err(TemplateError {
            message: format!("`{{{name}}}` is neither captured by this rule nor built in"),
            nearest: super::problem::nearest(name, known),
        });
    }
    let Some(kind) = Kind::parse(kind) else {
        return Err(TemplateError {
            message: format!(
                "`{kind}` is not a kind of value; there are {}",
                KINDS.join(", ")
            ),
            nearest: super::problem::nearest(kind, &KINDS),
        });
    };
    Ok(Part::Value {
        name: name.to_owned(),
        kind,
    })
}

fn value<'a>(name: &str, values: &'a Values) -> Result<&'a str, String> {
    values
        .get(name)
        .map(String::as_str)
        .ok_or_else(|| format!("`{{{name}}}` has no value in this call"))
}

fn typed(name: &str, kind: Kind, text: &str) -> Result<Value, String> {
    kind.read(text).ok_or_else(|| {
        let shown: String = text.chars().take(60).collect();
        format!("`{{{name}:{}}}` cannot be made of `{shown}`", kind.name())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn values() -> Values {
        [
            ("a", "6"),
            ("big", "1e3"),
            ("word", "six"),
            ("list", "[1, 2]"),
        ]
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.to_owned()))
        .collect()
    }

    fn json_of(text: &str) -> Result<Value, String> {
        let template = Template::parse(text, &["a", "big", "word", "list", "absent"])
            .map_err(|errors| errors[0].message.clone())?;
        template.json(&values())
    }

    #[test]
    fn a_template_becomes_a_text_or_a_typed_value() {
        for (text, expected) in [
            ("plain", json!("plain")),
            ("", json!("")),
            ("{a}", json!("6")),
            ("{a:int}", json!(6)),
            ("{ a : int }", json!(6)),
            ("{big:number}", json!(1000.0)),
            ("{a:number}", json!(6)),
            ("{list:json}", json!([1, 2])),
            ("{a:int} apples", json!("6 apples")),
            ("{{a}} is {a}", json!("{a} is 6")),
        ] {
            assert_eq!(json_of(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_bad_template_says_why() {
        for (text, expected) in [
            ("{b}", "`{b}` is neither captured"),
            ("{a:integer}", "`integer` is not a kind of value"),
            ("{a", "a `{` without its `}`"),
            ("a}", "a lone `}`"),
            ("{word:int}", "`{word:int}` cannot be made of `six`"),
            ("{absent}", "`{absent}` has no value in this call"),
        ] {
            let error = json_of(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
