//! What must hold for any bytes whatever: for the programs in `fuzz/`, and for their seeds in a test.
//!
//! The first byte of an input picks a way, the second one where a stream is cut; the rest is what comes
//! over the wire.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use osmosis_core::RolloutId;
use osmosis_dialect::{ChatRequest, Dialect, Sampling};
use serde_json::{Map, Value};

use crate::script::ScriptedPolicy;
use crate::serving::identity::{Route, dialect_of, key_of};
use crate::tokens::reported::{stripped_event, stripped_reply};

/// Nothing a caller says makes its call another rollout's.
pub fn identity(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == b'\n');
    let path = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let mut headers = HeaderMap::new();
    for (name, value) in ["x-rollout-id", "x-sample-id", "authorization", "x-api-key"]
        .into_iter()
        .cycle()
        .zip(parts.take(8))
    {
        if let Ok(value) = HeaderValue::from_bytes(value)
            && !value.is_empty()
        {
            headers.append(name, value);
        }
    }
    let _ = dialect_of(&path, &headers);
    assert!(key_of(&headers).is_none_or(|key| !key.is_empty() && key == key.trim()));
    let Ok(route) = Route::parse(&path) else {
        return;
    };
    let rollout = RolloutId::of(1, 0);
    if route.sample_for(&headers, &rollout, None).is_ok() {
        let claims = headers.get_all("x-rollout-id").into_iter();
        let named = path.strip_prefix("/v1/rollouts/").map(str::as_bytes);
        let named = named.and_then(|path| path.split(|byte| *byte == b'/').next());
        for claim in claims.map(HeaderValue::as_bytes).chain(named) {
            let claim = percent_encoding::percent_decode(claim).collect::<Vec<u8>>();
            assert_eq!(claim, rollout.as_str().as_bytes());
        }
    }
}

/// What the gateway changes in a body leaves the rest of it as it was.
pub fn amendments(data: &[u8]) {
    let Some((way, _, body)) = opened(data) else {
        return;
    };
    let sampling = Sampling {
        temperature: (way & 1 != 0).then_some(0.5),
        top_p: (way & 2 != 0).then_some(1.0),
        overrides: way & 4 != 0,
    };
    let dialect = Dialect::ALL[usize::from(way >> 3) % 4];
    let before = serde_json::from_slice::<Map<String, Value>>(body).ok();
    let bytes = Bytes::copy_from_slice(body);
    if let Ok(request) = ChatRequest::parse(dialect, &bytes, "policy", &sampling)
        && let Some(mut before) = before.clone()
    {
        let mut after = object(&request.body);
        assert_eq!(after["model"], "policy");
        for name in ["model", "temperature", "top_p", "stream_options"] {
            before.remove(name);
            after.remove(name);
        }
        assert_eq!(before, after, "a field changed that nobody meant to");
    }
    if let Some(stripped) = stripped_reply(body)
        && let Some(before) = before
    {
        assert_eq!(
            without_tokens(before),
            without_tokens(object(stripped.as_bytes()))
        );
    }
    let event = [b"id: 1\ndata: ".as_slice(), body, b"\n\n"].concat();
    if let Some(stripped) = stripped_event(&event) {
        assert!(stripped.starts_with("id: 1\ndata: "));
    }
}

/// A script answers, or every one of its problems is told.
pub fn scripts(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Err(errors) = ScriptedPolicy::parse("p.toml".into(), text)
    {
        assert!(!errors.to_string().is_empty());
    }
}

/// Two bytes that decide, and the rest.
fn opened(data: &[u8]) -> Option<(u8, u8, &[u8])> {
    let (&way, rest) = data.split_first()?;
    let (&cut, rest) = rest.split_first()?;
    Some((way, cut, rest))
}

fn object(json: &[u8]) -> Map<String, Value> {
    match serde_json::from_slice(json) {
        Ok(object) => object,
        Err(error) => unreachable!("{error}: {}", String::from_utf8_lossy(json)),
    }
}

fn without_tokens(mut reply: Map<String, Value>) -> Map<String, Value> {
    reply.remove("prompt_token_ids");
    for choice in reply
        .get_mut("choices")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(choice) = choice.as_object_mut() {
            choice.remove("token_ids");
            choice.remove("logprobs");
        }
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    include!("../../../fuzz/run_seeds.rs");

    #[test]
    fn every_seed_of_the_fuzzers_and_its_changes_pass() {
        run_seeds(&[
            ("identity", identity),
            ("amendments", amendments),
            ("scripts", scripts),
        ]);
    }
}
