//! Whose call is it? Rules without I/O: the key comes first, then the URL, then the headers, and
//! whatever contradicts the key is refused.

use http::HeaderMap;
use osmosis_core::{RolloutId, SampleId};
use osmosis_dialect::Dialect;
use percent_encoding::percent_decode_str;

use crate::serving::error_reply::ErrorReply;

const ROLLOUT_HEADER: &str = "x-rollout-id";
const SAMPLE_HEADER: &str = "x-sample-id";

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Call(Dialect),
    /// Token ids in, token ids out.
    Generate,
    Models,
}

/// A path, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) endpoint: Endpoint,
    rollout: Option<String>,
    sample: Option<String>,
}

impl Route {
    /// `/v1/…`, `/v1/rollouts/{rollout}/…` or `/v1/rollouts/{rollout}/samples/{sample}/…`.
    pub(crate) fn parse(path: &str) -> Result<Self, ErrorReply> {
        let unknown = || {
            ErrorReply::not_found(format!(
                "nothing is served at `{}`; try `/v1/chat/completions`, `/v1/responses`, \
                 `/v1/messages` or `/v1/models`",
                shortened(path)
            ))
        };
        let mut rest = path.strip_prefix("/v1/").ok_or_else(unknown)?;
        let mut rollout = None;
        let mut sample = None;
        if let Some(below) = rest.strip_prefix("rollouts/") {
            let (id, below) = below.split_once('/').ok_or_else(unknown)?;
            rollout = Some(decoded(id)?);
            rest = below;
            if let Some(below) = rest.strip_prefix("samples/") {
                let (id, below) = below.split_once('/').ok_or_else(unknown)?;
                sample = Some(decoded(id)?);
                rest = below;
            }
        }
        // Clients of some dialects append the version themselves.
        let rest = rest.strip_prefix("v1/").unwrap_or(rest);
        let call = Dialect::ALL
            .into_iter()
            .find(|dialect| dialect.path() == rest);
        let endpoint = match (call, rest) {
            (Some(dialect), _) => Endpoint::Call(dialect),
            (None, "generate") => Endpoint::Generate,
            (None, "models") => Endpoint::Models,
            (None, _) => return Err(unknown()),
        };
        Ok(Self {
            endpoint,
            rollout,
            sample,
        })
    }

    /// The sample a call belongs to, or why its ids do not fit `rollout`, the one its key opens, nor the
    /// other name it may have.
    pub(crate) fn sample_for(
        &self,
        headers: &HeaderMap,
        rollout: &RolloutId,
        alias: Option<&RolloutId>,
    ) -> Result<SampleId, ErrorReply> {
        let from_headers = header_texts(headers, ROLLOUT_HEADER)?;
        for claimed in self.rollout.iter().chain(&from_headers) {
            let known = |name: &RolloutId| name.as_str() == claimed;
            if !known(rollout) && !alias.is_some_and(known) {
                return Err(ErrorReply::forbidden(format!(
                    "rollout `{}` is not the one this key opens; leave `{ROLLOUT_HEADER}` and the \
                     rollout in the URL out, the key says whose call it is",
                    shortened(claimed)
                )));
            }
        }
        let mut sample: Option<&str> = self.sample.as_deref();
        let from_headers = header_texts(headers, SAMPLE_HEADER)?;
        for claimed in &from_headers {
            match sample {
                Some(known) if known != claimed => {
                    return Err(ErrorReply::forbidden(format!(
                        "the call says it belongs to sample `{}` and to sample `{}`",
                        shortened(known),
                        shortened(claimed)
                    )));
                }
                Some(_) => {}
                None => sample = Some(claimed),
            }
        }
        match sample {
            None => Ok(SampleId::main()),
            Some(id) => {
                SampleId::new(id).map_err(|error| ErrorReply::bad_request(error.to_string()))
            }
        }
    }
}

/// In which dialect a request gets its errors, also one that asks for nothing we have.
pub(crate) fn dialect_of(path: &str, headers: &HeaderMap) -> Dialect {
    let asks_for = |dialect: Dialect| {
        path.strip_suffix(dialect.path())
            .is_some_and(|before| before.ends_with('/'))
    };
    if path.ends_with("/messages/count_tokens") || headers.contains_key("anthropic-version") {
        return Dialect::Messages;
    }
    // `chat/completions` comes before `completions`.
    Dialect::ALL
        .into_iter()
        .find(|dialect| asks_for(*dialect))
        .unwrap_or_default()
}

/// The key a caller shows, as a bearer token or else as `x-api-key`.
pub(crate) fn key_of(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers
        .get(http::header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| {
            let (scheme, token) = text.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
    let key = match bearer {
        Some(key) => Some(key),
        None => headers
            .get("x-api-key")
            .and_then(|value| value.to_str().ok())
            .map(str::trim),
    };
    key.filter(|key| !key.is_empty())
}

/// The non-empty values of a header, percent-decoded (names chosen by users are not ASCII).
fn header_texts(headers: &HeaderMap, name: &str) -> Result<Vec<String>, ErrorReply> {
    let mut texts = Vec::new();
    for value in headers.get_all(name) {
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|_| ErrorReply::bad_request(format!("header `{name}` is not UTF-8")))?;
        if !text.is_empty() {
            texts.push(decoded(text)?);
        }
    }
    Ok(texts)
}

fn decoded(text: &str) -> Result<String, ErrorReply> {
    percent_decode_str(text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| {
            ErrorReply::bad_request(format!(
                "id `{}` is not UTF-8 when decoded",
                shortened(text)
            ))
        })
}

/// Enough of a caller's text to recognise it by.
fn shortened(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    type Pairs<'a> = &'a [(&'static str, &'a str)];

    fn headers(pairs: Pairs<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    /// `Ok(sample)` or the refusing status.
    fn identify(path: &str, pairs: Pairs<'_>) -> Result<String, u16> {
        let rollout = RolloutId::new("r1-0").unwrap();
        let alias = RolloutId::new("elsewhere-7").unwrap();
        Route::parse(path)
            .and_then(|route| route.sample_for(&headers(pairs), &rollout, Some(&alias)))
            .map(|sample| sample.as_str().to_owned())
            .map_err(|reply| reply.status.as_u16())
    }

    #[test]
    fn the_identity_matrix() {
        const PLAIN: &str = "/v1/chat/completions";
        const ROLLOUT: &str = "/v1/rollouts/r1-0/chat/completions";
        const SAMPLE: &str = "/v1/rollouts/r1-0/samples/judge%20%E2%9C%93/chat/completions";
        #[rustfmt::skip]
        let cases: &[(&str, Pairs<'_>, Result<&str, u16>)] = &[
            (PLAIN, &[], Ok("main")),
            (PLAIN, &[("x-sample-id", "solver")], Ok("solver")),
            (PLAIN, &[("x-sample-id", "")], Ok("main")),
            (PLAIN, &[("x-sample-id", "judge%20%E2%9C%93")], Ok("judge ✓")),
            (PLAIN, &[("x-sample-id", "judge ✓")], Ok("judge ✓")),
            (PLAIN, &[("x-sample-id", "100% sure")], Ok("100% sure")),
            (PLAIN, &[("x-rollout-id", "r1-0")], Ok("main")),
            (PLAIN, &[("x-rollout-id", "r1-1")], Err(403)),
            (PLAIN, &[("x-rollout-id", "elsewhere-7")], Ok("main")),
            (ROLLOUT, &[("x-rollout-id", "elsewhere-7")], Ok("main")),
            ("/v1/rollouts/elsewhere-7/chat/completions", &[], Ok("main")),
            (PLAIN, &[("x-rollout-id", "r1-0"), ("x-rollout-id", "r1-1")], Err(403)),
            (PLAIN, &[("x-sample-id", "a"), ("x-sample-id", "b")], Err(403)),
            (PLAIN, &[("x-sample-id", "a"), ("x-sample-id", "a")], Ok("a")),
            (PLAIN, &[("x-sample-id", "%FF")], Err(400)),
            (PLAIN, &[("x-sample-id", "two%0Alines")], Err(400)),
            (ROLLOUT, &[], Ok("main")),
            (ROLLOUT, &[("x-sample-id", "solver")], Ok("solver")),
            (ROLLOUT, &[("x-rollout-id", "r2-0")], Err(403)),
            ("/v1/rollouts/r2-0/chat/completions", &[], Err(403)),
            ("/v1/rollouts/r2-0/chat/completions", &[("x-rollout-id", "r1-0")], Err(403)),
            (SAMPLE, &[], Ok("judge ✓")),
            (SAMPLE, &[("x-sample-id", "judge%20%E2%9C%93")], Ok("judge ✓")),
            (SAMPLE, &[("x-sample-id", "solver")], Err(403)),
            ("/v1/rollouts/r1-0/samples/a%2Fb/models", &[], Ok("a/b")),
            ("/v1/rollouts/r1-0/samples//models", &[], Err(400)),
            ("/v1/rollouts/r1-0/samples/%FF/models", &[], Err(400)),
            ("/v1/models", &[], Ok("main")),
            ("/v1/responses", &[], Ok("main")),
            ("/v1/completions", &[("x-sample-id", "solver")], Ok("solver")),
            ("/v1/messages", &[("x-rollout-id", "r1-1")], Err(403)),
            ("/v1/v1/messages", &[], Ok("main")),
            ("/v1/rollouts/r1-0/samples/s/v1/messages", &[], Ok("s")),
            ("/v1/rollouts/r1-0/samples/s/responses", &[], Ok("s")),
            ("/v1/rollouts/r1-1/responses", &[], Err(403)),
            ("/v1/messages/count_tokens", &[], Err(404)),
            ("/v1/responses/resp_1", &[], Err(404)),
            ("/v1/v1/v1/messages", &[], Err(404)),
            ("/v1/nothing", &[], Err(404)),
            ("/v1/rollouts/r1-0", &[], Err(404)),
            ("/v1/rollouts/r1-0/samples/a", &[], Err(404)),
            ("/chat/completions", &[], Err(404)),
            ("/", &[], Err(404)),
        ];
        for (path, pairs, expected) in cases {
            let expected = expected.map(str::to_owned);
            assert_eq!(identify(path, pairs), expected, "{path} {pairs:?}");
        }
    }

    #[test]
    fn an_error_is_said_in_the_dialect_that_was_asked_for() {
        for (path, pairs, expected) in [
            ("/v1/chat/completions", &[][..], Dialect::ChatCompletions),
            (
                "/v1/rollouts/r/samples/s/completions",
                &[],
                Dialect::Completions,
            ),
            ("/v1/responses", &[], Dialect::Responses),
            ("/v1/messages", &[], Dialect::Messages),
            ("/v1/messages/count_tokens", &[], Dialect::Messages),
            ("/v1/models", &[], Dialect::ChatCompletions),
            (
                "/v1/models",
                &[("anthropic-version", "2023-06-01")],
                Dialect::Messages,
            ),
            ("/v1/nothing", &[], Dialect::ChatCompletions),
            ("/", &[], Dialect::ChatCompletions),
        ] {
            assert_eq!(dialect_of(path, &headers(pairs)), expected, "{path}");
        }
    }

    #[test]
    fn the_key_is_a_bearer_token_or_an_api_key() {
        let cases: &[(Pairs<'_>, Option<&str>)] = &[
            (&[], None),
            (&[("authorization", "Bearer k1")], Some("k1")),
            (&[("authorization", "bearer  k1 ")], Some("k1")),
            (&[("x-api-key", "k2")], Some("k2")),
            (
                &[("authorization", "Bearer k1"), ("x-api-key", "k2")],
                Some("k1"),
            ),
            (
                &[("authorization", "Basic abc"), ("x-api-key", "k2")],
                Some("k2"),
            ),
            (&[("authorization", "Bearer ")], None),
            (&[("authorization", "k1")], None),
            (&[("x-api-key", "")], None),
        ];
        for (pairs, expected) in cases {
            assert_eq!(key_of(&headers(pairs)), *expected, "{pairs:?}");
        }
    }

    proptest! {
        #[test]
        fn no_path_and_no_header_makes_identification_panic(path in ".{0,60}", sample in "[ -~]{0,40}") {
            let _ = identify(&path, &[]);
            let _ = identify("/v1/models", &[("x-sample-id", &sample)]);
        }

        #[test]
        fn a_sample_name_survives_the_url(name in "[^\\p{C}]{1,40}") {
            let encoded: String =
                percent_encoding::utf8_percent_encode(&name, percent_encoding::NON_ALPHANUMERIC).to_string();
            let path = format!("/v1/rollouts/r1-0/samples/{encoded}/chat/completions");
            prop_assert_eq!(identify(&path, &[]), Ok(name));
        }
    }
}
