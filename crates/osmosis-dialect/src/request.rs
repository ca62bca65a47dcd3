//! Reads the few facts of a request body that the gateway acts on, and amends the body by splicing, so
//! that everything else reaches the policy byte for byte.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::memchr2;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::dialect::Dialect;
use crate::rejection::RequestError;
use crate::sampling::Sampling;
use crate::splice::{Field, JSON_SPACE, Splice};

/// Deeper than any prompt, shallower than any parser's stack.
const MAX_DEPTH: usize = 128;

/// A request, read and made ready for the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatRequest {
    /// The model name the caller sent, empty when it sent none.
    pub model: String,
    pub streamed: bool,
    /// The caller wants the usage of a stream; otherwise it is asked for on the gateway's behalf and
    /// not passed on.
    pub wants_usage: bool,
    /// Fields whose values, chosen by the caller, were replaced, and `n` when training uses less of it.
    pub overridden: Vec<&'static str>,
    /// The body as the policy shall see it.
    pub body: Bytes,
}

impl ChatRequest {
    /// Reads `body` and makes the policy's version of it: its model name, sampling filled in, and the
    /// usage asked for when streaming. All dialects have the same names for these.
    pub fn parse(
        dialect: Dialect,
        body: &Bytes,
        policy_model: &str,
        sampling: &Sampling,
    ) -> Result<Self, RequestError> {
        let text = checked(body)?;
        let fields: Fields<'_> = serde_json::from_str(text).map_err(|error| {
            RequestError::invalid(format!("the body is not a valid request: {error}"))
        })?;
        match dialect {
            Dialect::ChatCompletions | Dialect::Messages => match fields.messages.0 {
                Some(messages) if messages.get().starts_with('[') => {}
                Some(_) => return Err(RequestError::invalid("`messages` is not an array")),
                None => return Err(RequestError::invalid("`messages` is missing")),
            },
            // There is more than one way to say it, which the policy knows.
            Dialect::Responses | Dialect::Completions => {}
        }
        let model = match fields.model.given() {
            None => Cow::Borrowed(""),
            Some(raw) => {
                serde_json::from_str::<Text<'_>>(raw.get())
                    .map_err(|_| RequestError::invalid("`model` is not a text"))?
                    .0
            }
        };
        let streamed = fields.stream.unwrap_or(false);

        let mut splice = Splice::new(text);
        let mut overridden = Vec::new();
        if model != policy_model {
            splice.set("model", fields.model, &json_text(policy_model));
        }
        for (name, field, value) in [
            ("temperature", fields.temperature, sampling.temperature),
            ("top_p", fields.top_p, sampling.top_p),
        ] {
            if let Some(value) = value.filter(|value| value.is_finite())
                && (sampling.overrides || field.given().is_none())
            {
                let says = field.given().map(RawValue::get);
                if says.is_some_and(|says| says.parse() != Ok(value)) {
                    overridden.push(name);
                }
                splice.set(name, field, &json_text(&value));
            }
        }
        if sampling.overrides {
            for (name, field, neutral) in [
                ("top_k", fields.top_k, ALL_TOKENS),
                ("seed", fields.seed, "null"),
            ] {
                if field.given().is_some_and(|says| says.get() != neutral) {
                    overridden.push(name);
                    splice.set(name, field, neutral);
                }
            }
            let choices = fields.n.given().map(RawValue::get);
            if choices.is_some_and(|choices| choices != "1") {
                overridden.push("n");
            }
        }
        let mut wants_usage = false;
        if streamed && dialect.has_stream_options() {
            wants_usage = ask_for_usage(&mut splice, fields.stream_options)?;
        }
        let model = model.into_owned();
        let amended = splice.finish();
        Ok(Self {
            model,
            streamed,
            wants_usage,
            overridden,
            body: amended.map_or_else(|| body.clone(), Bytes::from),
        })
    }
}

/// The text of a body that begins like a JSON object and can be parsed without harm.
pub fn checked(body: &Bytes) -> Result<&str, RequestError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        RequestError::invalid(format!(
            "the body is not UTF-8 after byte {}",
            error.valid_up_to()
        ))
    })?;
    let start = text.trim_start_matches(JSON_SPACE);
    if !start.starts_with('{') {
        return Err(RequestError::invalid("the body is not a JSON object"));
    }
    if is_nested_too_deeply(body) {
        return Err(RequestError::invalid(format!(
            "the body is nested more than {MAX_DEPTH} levels deep"
        )));
    }
    Ok(text)
}

/// The model name in a request of any dialect, as far as there is one.
pub fn model_in(body: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Shape<'a> {
        #[serde(borrow)]
        model: Text<'a>,
    }
    let shape: Shape<'_> = serde_json::from_slice(body).ok()?;
    Some(shape.model.0)
}

/// The `top_k` of vLLM and SGLang that leaves no token out.
const ALL_TOKENS: &str = "-1";

/// The fields the gateway acts on, each as the text that stands in the body.
#[derive(Debug, Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    model: Field<'a>,
    #[serde(borrow, default)]
    messages: Field<'a>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(borrow, default)]
    temperature: Field<'a>,
    #[serde(borrow, default)]
    top_p: Field<'a>,
    #[serde(borrow, default)]
    top_k: Field<'a>,
    #[serde(borrow, default)]
    seed: Field<'a>,
    #[serde(borrow, default)]
    n: Field<'a>,
    #[serde(borrow, default)]
    stream_options: Field<'a>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions<'a> {
    #[serde(borrow, default)]
    include_usage: Field<'a>,
}

/// A string that is copied only when it contains escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Makes sure a stream ends with its usage; `true` when the caller wants it too.
fn ask_for_usage<'a>(splice: &mut Splice<'a>, options: Field<'a>) -> Result<bool, RequestError> {
    let Some(raw) = options.given() else {
        splice.set("stream_options", options, r#"{"include_usage":true}"#);
        return Ok(false);
    };
    if !raw.get().starts_with('{') {
        return Err(RequestError::invalid("`stream_options` is not an object"));
    }
    let inner: StreamOptions<'_> = serde_json::from_str(raw.get()).map_err(|error| {
        RequestError::invalid(format!("`stream_options` is not valid: {error}"))
    })?;
    match inner.include_usage.0.map(RawValue::get) {
        Some("true") => return Ok(true),
        Some(_) => splice.set("include_usage", inner.include_usage, "true"),
        None => {
            let open = splice.span(raw.get()).start + 1;
            let is_empty = raw.get()[1..]
                .trim_start_matches(JSON_SPACE)
                .starts_with('}');
            let comma = if is_empty { "" } else { "," };
            splice
                .edits
                .push((open..open, format!(r#""include_usage":true{comma}"#)));
        }
    }
    Ok(false)
}

/// A text or a finite number as JSON; neither can fail.
fn json_text<T: serde::Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Counts brackets outside of strings; most of a body is strings, which are skipped a chunk at a time.
fn is_nested_too_deeply(body: &[u8]) -> bool {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = body.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => loop {
                let Some(found) = body.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) else {
                    return false;
                };
                at += found + 1;
                if body.get(at - 1) == Some(&b'"') {
                    break;
                }
                at += 1;
            },
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    const FILL: Sampling = Sampling {
        temperature: Some(0.7),
        top_p: Some(1.0),
        overrides: false,
    };
    const WIN: Sampling = Sampling {
        overrides: true,
        ..FILL
    };

    fn amended(body: &str, sampling: Sampling) -> String {
        let request = ChatRequest::parse(
            Dialect::ChatCompletions,
            &Bytes::copy_from_slice(body.as_bytes()),
            "policy",
            &sampling,
        )
        .unwrap();
        String::from_utf8(request.body.to_vec()).unwrap()
    }

    fn refusal(body: &[u8]) -> String {
        let reply = ChatRequest::parse(
            Dialect::ChatCompletions,
            &Bytes::copy_from_slice(body),
            "policy",
            &FILL,
        )
        .unwrap_err();
        reply.message().to_owned()
    }

    #[test]
    fn only_what_is_missing_is_added() {
        #[rustfmt::skip]
        let cases = [
            (r#"{"model":"policy","messages":[]}"#, FILL,
             r#"{"model":"policy","messages":[],"temperature":0.7,"top_p":1.0}"#),
            (r#"{"model":"policy","messages":[],"temperature":0,"top_p":0.50}"#, FILL,
             r#"{"model":"policy","messages":[],"temperature":0,"top_p":0.50}"#),
            (r#"{ "temperature" : null , "model":"policy", "messages":[] , "top_p":1e0 } "#, FILL,
             r#"{ "temperature" : 0.7 , "model":"policy", "messages":[] , "top_p":1e0 } "#),
            (r#"{"model":"policy","messages":[],"temperature":0,"top_p":0.5}"#, WIN,
             r#"{"model":"policy","messages":[],"temperature":0.7,"top_p":1.0}"#),
            (r#"{"seed":3,"model":"policy","top_k" : 4,"messages":[],"temperature":0.7,"top_p":1.0}"#, WIN,
             r#"{"seed":null,"model":"policy","top_k" : -1,"messages":[],"temperature":0.7,"top_p":1.0}"#),
            (r#"{"seed":3,"model":"policy","top_k":4,"messages":[],"temperature":0.7,"top_p":1.0}"#, FILL,
             r#"{"seed":3,"model":"policy","top_k":4,"messages":[],"temperature":0.7,"top_p":1.0}"#),
            (r#"{"model":"openai/osmosis-rollout","seed":9007199254740993,"messages":[]}"#, Sampling::default(),
             r#"{"model":"policy","seed":9007199254740993,"messages":[]}"#),
            (r#"{"messages":[{"content":"\"}"}]}"#, Sampling::default(),
             r#"{"messages":[{"content":"\"}"}],"model":"policy"}"#),
            (r#"{"model":null,"messages":[]}"#, Sampling::default(),
             r#"{"model":"policy","messages":[]}"#),
        ];
        for (body, sampling, expected) in cases {
            assert_eq!(amended(body, sampling), expected, "{body}");
        }
    }

    #[test]
    fn what_a_caller_chose_and_does_not_get_is_named() {
        #[rustfmt::skip]
        let cases = [
            (r#"{"messages":[],"temperature":0}"#, WIN, &["temperature"][..]),
            (r#"{"messages":[],"top_p":0.5}"#, WIN, &["top_p"]),
            (r#"{"messages":[],"temperature":0.7,"top_p":1}"#, WIN, &[]),
            (r#"{"messages":[],"temperature":null}"#, WIN, &[]),
            (r#"{"messages":[]}"#, WIN, &[]),
            (r#"{"messages":[],"temperature":0}"#, FILL, &[]),
            (r#"{"messages":[],"temperature":0,"seed":1,"top_k":4,"n":2}"#, WIN, &["temperature", "top_k", "seed", "n"]),
            (r#"{"messages":[],"seed":null,"top_k":-1,"n":1}"#, WIN, &[]),
            (r#"{"messages":[],"seed":1,"top_k":4,"n":2}"#, FILL, &[]),
        ];
        for (body, sampling, expected) in cases {
            let body = Bytes::copy_from_slice(body.as_bytes());
            let request =
                ChatRequest::parse(Dialect::ChatCompletions, &body, "m", &sampling).unwrap();
            assert_eq!(request.overridden, expected, "{body:?}");
        }
    }

    #[test]
    fn the_usage_of_a_stream_is_always_asked_for() {
        #[rustfmt::skip]
        let cases = [
            ("", false, r#","stream_options":{"include_usage":true}"#),
            (r#","stream_options":null"#, false, r#","stream_options":{"include_usage":true}"#),
            (r#","stream_options":{}"#, false, r#","stream_options":{"include_usage":true}"#),
            (r#","stream_options":{ "x":1 }"#, false, r#","stream_options":{"include_usage":true, "x":1 }"#),
            (r#","stream_options":{"include_usage":false}"#, false, r#","stream_options":{"include_usage":true}"#),
            (r#","stream_options":{"include_usage": true}"#, true, r#","stream_options":{"include_usage": true}"#),
        ];
        for (given, wants, expected) in cases {
            let body = format!(r#"{{"model":"policy","messages":[],"stream":true{given}}}"#);
            let request = ChatRequest::parse(
                Dialect::ChatCompletions,
                &Bytes::from(body),
                "policy",
                &Sampling::default(),
            )
            .unwrap();
            assert!(request.streamed);
            assert_eq!(request.wants_usage, wants, "{given}");
            let expected = format!(r#"{{"model":"policy","messages":[],"stream":true{expected}}}"#);
            assert_eq!(request.body, expected.as_bytes(), "{given}");
        }
        let plain = r#"{"model":"policy","messages":[],"stream":false}"#;
        assert_eq!(amended(plain, Sampling::default()), plain);
    }

    #[test]
    fn other_dialects_are_amended_by_the_same_names_and_never_asked_for_usage() {
        #[rustfmt::skip]
        let cases = [
            (Dialect::Responses, r#"{"input":"x","stream":true,"store":true}"#,
             r#"{"input":"x","stream":true,"store":true,"model":"policy","temperature":0.7,"top_p":1.0}"#),
            (Dialect::Responses, "{ }", r#"{ "model":"policy","temperature":0.7,"top_p":1.0}"#),
            (Dialect::Messages, r#"{"model":"claude","messages":[],"top_p":0.5,"stream":true}"#,
             r#"{"model":"policy","messages":[],"top_p":0.5,"stream":true,"temperature":0.7}"#),
            (Dialect::Completions, r#"{"prompt":[1,2],"stream":true,"temperature":0,"top_p":1}"#,
             r#"{"prompt":[1,2],"stream":true,"temperature":0,"top_p":1,"model":"policy","stream_options":{"include_usage":true}}"#),
        ];
        for (dialect, body, expected) in cases {
            let request = ChatRequest::parse(dialect, &Bytes::from(body), "policy", &FILL).unwrap();
            assert_eq!(request.body, expected.as_bytes(), "{dialect:?}");
        }
    }

    #[test]
    fn bad_bodies_are_refused_with_the_reason() {
        #[rustfmt::skip]
        let cases: &[(&[u8], &str)] = &[
            (b"", "not a JSON object"),
            (b"[]", "not a JSON object"),
            (b"\"text\"", "not a JSON object"),
            (b"{", "not a valid request"),
            (b"{\"messages\":[]", "not a valid request"),
            (b"{\"messages\":[]} trailing", "not a valid request"),
            (b"{\"messages\":[],}", "not a valid request"),
            (b"{\"messages\":[],\"messages\":[]}", "duplicate field `messages`"),
            (b"{\"messages\":\"hello\"}", "`messages` is not an array"),
            (b"{\"messages\":null}", "`messages` is not an array"),
            (b"{\"model\":\"m\"}", "`messages` is missing"),
            (b"{\"messages\":[],\"model\":7}", "`model` is not a text"),
            (b"{\"messages\":[],\"stream\":\"yes\"}", "not a valid request"),
            (b"{\"messages\":[],\"stream\":true,\"stream_options\":[]}", "`stream_options` is not an object"),
            (b"{\"messages\":[\"\xff\"]}", "not UTF-8 after byte 14"),
        ];
        for (body, expected) in cases {
            let message = refusal(body);
            assert!(message.contains(expected), "{message}");
        }
        let deep = format!(
            "{{\"messages\":{}{}}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert!(refusal(deep.as_bytes()).contains("nested more than 128"));
        let brackets_in_text = format!("{{\"messages\":[\"\\\"{}\"]}}", "[".repeat(1_000));
        amended(&brackets_in_text, FILL);
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((".{0,6}", inner), 0..4)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn everything_but_the_sampling_stays_as_it_was(
            others in prop::collection::vec(("[a-z_]{3,9}x", json()), 0..6),
            temperature in prop::option::of(0.0..2.0_f64),
            pretty in any::<bool>(),
        ) {
            let mut object: serde_json::Map<String, Value> = others.into_iter().collect();
            object.insert("messages".to_owned(), Value::Array(vec![]));
            object.insert("model".to_owned(), Value::from("policy"));
            if let Some(temperature) = temperature {
                object.insert("temperature".to_owned(), Value::from(temperature));
            }
            let body = if pretty {
                serde_json::to_string_pretty(&object).unwrap()
            } else {
                serde_json::to_string(&object).unwrap()
            };
            let result = amended(&body, FILL);
            let end = body.rfind('}').unwrap();
            // What was there is a prefix, what was added stands before the last brace.
            prop_assert_eq!(&result[..end], &body[..end]);
            prop_assert!(result.ends_with(&body[end..]));
            // Read back from the text: reading a float is not exact, which is why nothing is re-rendered.
            let mut object: serde_json::Map<String, Value> = serde_json::from_str(&body).unwrap();
            object.entry("temperature").or_insert_with(|| Value::from(0.7));
            object.insert("top_p".to_owned(), Value::from(1.0));
            prop_assert_eq!(serde_json::from_str::<Value>(&result).unwrap(), Value::Object(object));
        }

        #[test]
        fn no_body_makes_the_reader_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ChatRequest::parse(Dialect::ChatCompletions, &Bytes::from(body), "policy", &WIN);
        }

        #[test]
        fn no_almost_valid_body_makes_the_reader_panic(body in r#"\{("messages"|"model"|"stream_options"|"stream"|[\[\]{},:"\\]|\\u12|true|null|1e9|é){0,30}\}?"#) {
            let _ = ChatRequest::parse(Dialect::ChatCompletions, &Bytes::from(body), "policy", &WIN);
        }
    }
}
