//! Asks for what the caller did not ask for.

use bytes::Bytes;
use osmosis_core::generation::LogprobsOf;
use osmosis_dialect::json_edit::Edits;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::reply::Wanted;
use crate::tokens::engine::ServerLogprobs;

/// A request that asks for ids and logprobs.
#[derive(Debug)]
pub(super) struct IdRequest {
    pub(super) body: Bytes,
    pub(super) wanted: Wanted,
    pub(super) settings: Settings,
}

/// What was said about sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Settings {
    pub(super) temperature: f32,
    pub(super) logprobs_of: LogprobsOf,
    pub(super) choices: u32,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    return_token_ids: Field<'a>,
    #[serde(borrow, default)]
    logprobs: Field<'a>,
    #[serde(default)]
    temperature: Option<f32>,
    #[serde(default)]
    top_p: Option<f32>,
    #[serde(default)]
    top_k: Option<i64>,
    #[serde(default)]
    n: Option<u32>,
}

/// What changes the distribution that is sampled from, beside temperature, top-p and top-k. The logprobs
/// don't show it, or not in a way that is known.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Shaping {
    frequency_penalty: Value,
    presence_penalty: Value,
    repetition_penalty: Value,
    min_p: Value,
    min_tokens: Value,
    logit_bias: Value,
    allowed_token_ids: Value,
    bad_words: Value,
    structured_outputs: Value,
    guided_json: Value,
    guided_regex: Value,
    guided_choice: Value,
    guided_grammar: Value,
    response_format: Value,
    tool_choice: Value,
}

impl Shaping {
    fn is_none(&self) -> bool {
        let is = |value: &Value, neutral: f64| value.is_null() || value.as_f64() == Some(neutral);
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        let free = [
            &self.logit_bias,
            &self.allowed_token_ids,
            &self.bad_words,
            &self.structured_outputs,
            &self.guided_json,
            &self.guided_regex,
            &self.guided_choice,
            &self.guided_grammar,
        ];
        let format = self.response_format.get("type").and_then(Value::as_str);
        is(&self.frequency_penalty, 0.0)
            && is(&self.presence_penalty, 0.0)
            && is(&self.repetition_penalty, 1.0)
            && is(&self.min_p, 0.0)
            && is(&self.min_tokens, 0.0)
            && free.into_iter().all(is_empty)
            && (self.response_format.is_null() || format == Some("text"))
            && (self.tool_choice.is_null()
                || self.tool_choice == "auto"
                || self.tool_choice == "none")
    }
}

/// A field's text, `null` included.
#[derive(Default, Clone, Copy)]
struct Field<'a>(Option<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Field<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&'a RawValue>::deserialize(deserializer).map(|raw| Self(Some(raw)))
    }
}

/// `None` for a body that cannot be read.
pub(super) fn amend(body: &Bytes, server: ServerLogprobs) -> Option<IdRequest> {
    let text = std::str::from_utf8(body).ok()?;
    let fields: Fields<'_> = serde_json::from_str(text).ok()?;
    let shaping: Shaping = serde_json::from_str(text).ok()?;
    let mut edits = Edits::new(text);
    let mut added = Vec::new();
    let is_true = |field: Field<'_>| field.0.map(RawValue::get) == Some("true");
    let wanted = Wanted {
        token_ids: is_true(fields.return_token_ids),
        logprobs: is_true(fields.logprobs),
    };
    for (name, field, has) in [
        (
            "return_token_ids",
            fields.return_token_ids,
            wanted.token_ids,
        ),
        ("logprobs", fields.logprobs, wanted.logprobs),
    ] {
        match field.0 {
            _ if has => {}
            Some(value) => edits.replace(value.get(), "true"),
            None => added.push(format!("\"{name}\":true")),
        }
    }
    if !added.is_empty() {
        edits.append_fields(&added.join(","));
    }
    // -1 and 0 are all tokens; what is left out the server takes from the model's files.
    let top_k = fields.top_k.map(|k| usize::try_from(k).unwrap_or(0));
    Some(IdRequest {
        body: edits.finish().map_or_else(|| body.clone(), Bytes::from),
        wanted,
        settings: Settings {
            temperature: fields.temperature.unwrap_or(1.0),
            logprobs_of: if shaping.is_none() {
                server.of(fields.temperature, fields.top_p, top_k)
            } else {
                LogprobsOf::Unknown
            },
            choices: fields.n.unwrap_or(1),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &'static str) -> IdRequest {
        amend(&Bytes::from_static(body.as_bytes()), ServerLogprobs::Raw).unwrap()
    }

    #[test]
    fn only_what_is_missing_is_asked_for() {
        for (body, expected, token_ids, logprobs) in [
            (
                r#"{"messages":[] }"#,
                r#"{"messages":[] ,"return_token_ids":true,"logprobs":true}"#,
                false,
                false,
            ),
            (
                r#"{"logprobs":false,"messages":[]}"#,
                r#"{"logprobs":true,"messages":[],"return_token_ids":true}"#,
                false,
                false,
            ),
            (
                r#"{"return_token_ids":null,"logprobs":true,"top_logprobs":2}"#,
                r#"{"return_token_ids":true,"logprobs":true,"top_logprobs":2}"#,
                false,
                true,
            ),
            (
                r#"{"return_token_ids": true, "logprobs": true}"#,
                r#"{"return_token_ids": true, "logprobs": true}"#,
                true,
                true,
            ),
        ] {
            let asked = asked(body);
            assert_eq!(asked.body, expected.as_bytes());
            assert_eq!(
                asked.wanted,
                Wanted {
                    token_ids,
                    logprobs
                },
                "{body}"
            );
        }
        assert!(amend(&Bytes::from_static(b"{"), ServerLogprobs::Raw).is_none());
    }

    #[test]
    fn logprobs_of_a_distribution_that_is_shaped_otherwise_are_not_known() {
        for (field, is_known) in [
            (r#""frequency_penalty":0.5"#, false),
            (r#""presence_penalty":0"#, true),
            (r#""repetition_penalty":1.1"#, false),
            (r#""repetition_penalty":1.0"#, true),
            (r#""min_p":0.05"#, false),
            (r#""min_tokens":4"#, false),
            (r#""logit_bias":{"7":-100}"#, false),
            (r#""logit_bias":{}"#, true),
            (r#""guided_choice":["a"]"#, false),
            (r#""response_format":{"type":"json_object"}"#, false),
            (r#""response_format":{"type":"text"}"#, true),
            (r#""tool_choice":"required""#, false),
            (r#""tool_choice":"auto""#, true),
            (r#""seed":7"#, true),
        ] {
            let body = format!(r#"{{"temperature":1,"top_p":1,"top_k":-1,{field}}}"#);
            let settings = amend(&Bytes::from(body), ServerLogprobs::Raw)
                .unwrap()
                .settings;
            let expected = if is_known {
                LogprobsOf::Tempered
            } else {
                LogprobsOf::Unknown
            };
            assert_eq!(settings.logprobs_of, expected, "{field}");
        }
    }

    #[test]
    fn settings_say_what_the_logprobs_are() {
        let warm = asked(r#"{"temperature":0.5,"n":3}"#).settings;
        assert_eq!(
            (warm.logprobs_of, warm.choices),
            (LogprobsOf::Untempered, 3)
        );
        assert!((warm.temperature - 0.5).abs() < 1e-9);
        assert_eq!(asked("{}").settings.logprobs_of, LogprobsOf::Unknown);
        assert_eq!(
            asked(r#"{"temperature":1}"#).settings.logprobs_of,
            LogprobsOf::Tempered
        );
    }
}
