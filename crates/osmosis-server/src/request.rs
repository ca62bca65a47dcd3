//! The body of `POST /rollout`: read, checked, and made into the row that is stored.

mod fields;

use std::collections::HashMap;
use std::fmt;

use http::HeaderValue;
use osmosis_core::frame::MAX_FRAME_BYTES;
use osmosis_core::{JsonText, RolloutId, duplicate_json_field};
use osmosis_gateway::{AddressRules, RelayPolicy, Secret};
use reqwest::Url;
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use self::fields::Reading;
use crate::refusal::{Problem, Refusal};

/// What a worker is sent besides prompt and metadata takes no more than this.
const FRAME_OVERHEAD_BYTES: usize = 64 << 10;

/// A request that can be run.
#[derive(Debug)]
pub(crate) struct RolloutRequest {
    pub(crate) id: RolloutId,
    /// The row of the run's store: everything but the keys.
    pub(crate) row: JsonText,
    /// What is compared when the same id comes again.
    pub(crate) digest: RequestDigest,
    pub(crate) chat_completions_url: String,
    pub(crate) llm_key: Option<Secret>,
    pub(crate) callbacks: Callbacks,
}

/// Who wants to know how it went.
#[derive(Clone)]
pub(crate) struct Callbacks {
    pub(crate) completion: Url,
    pub(crate) grader: Option<Url>,
    /// `Bearer KEY`, marked as not to be shown.
    pub(crate) authorization: Option<HeaderValue>,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks")
            .field("completion", &shown(&self.completion))
            .field("grader", &self.grader.as_ref().map(shown))
            .finish_non_exhaustive()
    }
}

/// SHA-256 of a request without its keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RequestDigest(String);

impl RequestDigest {
    /// The digest that a stored row was made with.
    pub(crate) fn of_row(row: &JsonText) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct Stored {
            request_digest: String,
        }
        row.read::<Stored>()
            .ok()
            .map(|stored| Self(stored.request_digest))
    }
}

/// What is stored. The engine reads the first five fields of it.
#[derive(Serialize)]
struct StoredRow<'a> {
    initial_messages: &'a RawValue,
    label: Option<&'a str>,
    metadata: Option<&'a RawValue>,
    agent_timeout_sec: Option<f64>,
    grader_timeout_sec: Option<f64>,
    extra_fields: Option<&'a RawValue>,
    /// Without credentials.
    chat_completions_url: String,
    completion_callback_url: String,
    grader_callback_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_digest: Option<&'a str>,
}

impl RolloutRequest {
    /// Reads a body. Every problem is told, not only the first.
    pub(crate) fn parse(body: &[u8], relay: &RelayPolicy) -> Result<Self, Refusal> {
        let invalid = |problem| Refusal::Invalid(vec![problem]);
        let text = std::str::from_utf8(body)
            .map_err(|_| invalid(Problem::of_body("json_invalid", "the body is not UTF-8")))?;
        if !text.trim_start().starts_with('{') {
            let problem = match serde_json::from_str::<&RawValue>(text) {
                Ok(_) => Problem::of_body("dict_type", "the body must be a JSON object"),
                Err(error) => not_json(&error),
            };
            return Err(invalid(problem));
        }
        let fields: HashMap<String, &RawValue> =
            serde_json::from_str(text).map_err(|error| invalid(not_json(&error)))?;
        if let Some(name) = duplicate_json_field(text) {
            let msg = format!("duplicate field `{name}`");
            return Err(invalid(Problem::of_body("json_invalid", msg)));
        }
        let mut reading = Reading {
            fields,
            problems: vec![],
        };
        let request = reading.request(relay);
        match (request, reading.problems) {
            (Some(request), problems) if problems.is_empty() => request.fits(),
            (_, problems) => Err(Refusal::Invalid(problems)),
        }
    }

    /// Looks at where its addresses lead: model and callbacks are asked from here.
    pub(crate) async fn check_addresses(&self, rules: &AddressRules) -> Result<(), Refusal> {
        let model = Url::parse(&self.chat_completions_url).ok();
        let mut problems = vec![];
        for (field, url) in [
            ("chat_completions_url", model.as_ref()),
            ("completion_callback_url", Some(&self.callbacks.completion)),
            ("grader_callback_url", self.callbacks.grader.as_ref()),
        ] {
            if let Some(url) = url
                && let Err(forbidden) = rules.check_resolved(url).await
            {
                problems.push(Problem::of_field(
                    "value_error",
                    field,
                    forbidden.to_string(),
                ));
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Refusal::Invalid(problems))
        }
    }

    fn fits(self) -> Result<Self, Refusal> {
        // The row is what prompt and metadata are part of, so it is never smaller.
        let limit = MAX_FRAME_BYTES - FRAME_OVERHEAD_BYTES;
        if self.row.as_str().len() > limit {
            return Err(Refusal::TooLarge(format!(
                "messages and metadata take {} bytes, and a worker takes at most {limit} at once; \
                 send large data by reference",
                self.row.as_str().len()
            )));
        }
        Ok(self)
    }
}

fn not_json(error: &serde_json::Error) -> Problem {
    Problem::of_body("json_invalid", format!("the body is not JSON: {error}"))
}

/// An address for people and for the store: no user, no password, no query.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // These fail only for URLs without a host, which were refused.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

impl Reading<'_> {
    fn request(&mut self, relay: &RelayPolicy) -> Option<RolloutRequest> {
        let id = self.id();
        let messages = self.messages();
        let label = self.text("label");
        let metadata = self.object("metadata");
        let extra_fields = self.object("extra_fields");
        let agent_timeout_sec = self.timeout("agent_timeout_sec");
        let grader_timeout_sec = self.timeout("grader_timeout_sec");
        let controller_key = self
            .text("controller_api_key")
            .filter(|key| !key.is_empty());
        let llm_key = self.llm_key(controller_key.as_deref());
        let chat_completions_url = self.chat_completions_url(relay, llm_key.as_ref());
        let completion = self.required_url("completion_callback_url");
        let grader = self.url("grader_callback_url");
        let authorization = self.authorization(controller_key.as_deref());
        let (id, messages, completion) = (id?, messages?, completion?);
        let chat_completions_url = chat_completions_url?;
        if !self.problems.is_empty() {
            return None;
        }
        let mut row = StoredRow {
            initial_messages: messages,
            label: label.as_deref(),
            metadata,
            agent_timeout_sec,
            grader_timeout_sec,
            extra_fields,
            chat_completions_url: chat_completions_url.to_string(),
            completion_callback_url: completion.to_string(),
            grader_callback_url: grader.as_ref().map(Url::to_string),
            request_digest: None,
        };
        let digest = digest(&row)?;
        row.chat_completions_url = shown(&chat_completions_url);
        row.completion_callback_url = shown(&completion);
        row.grader_callback_url = grader.as_ref().map(shown);
        row.request_digest = Some(&digest);
        Some(RolloutRequest {
            id,
            row: JsonText::of(&row).ok()?,
            digest: RequestDigest(digest.clone()),
            chat_completions_url: chat_completions_url.into(),
            llm_key,
            callbacks: Callbacks {
                completion,
                grader,
                authorization,
            },
        })
    }
}

/// Over the fields in their order, as they were sent.
fn digest(row: &StoredRow<'_>) -> Option<String> {
    let text = serde_json::to_vec(row).ok()?;
    let digest = Sha256::digest(&text);
    Some(digest.iter().fold(String::new(), |mut hex, byte| {
        use std::fmt::Write as _;
        // Writing into a `String` cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;
    use serde_json::{Value, json};

    use super::*;

    fn good() -> Value {
        json!({
            "rollout_id": "r-1",
            "initial_messages": [{"role": "user", "content": "hello"}],
            "label": "7",
            "metadata": {"a": 1},
            "chat_completions_url": "http://u:hunter2@127.0.0.1:1/v1/chat/completions?token=t0ken",
            "controller_api_key": "controller-key",
            "completion_callback_url": "http://127.0.0.1:2/done?token=t0ken",
            "grader_callback_url": "http://127.0.0.1:2/graded",
            "agent_timeout_sec": 2,
            "unheard_of": true,
        })
    }

    fn with(field: &str, value: Value) -> Value {
        let mut body = good();
        body[field] = value;
        body
    }

    fn parse(body: &Value) -> Result<RolloutRequest, Refusal> {
        RolloutRequest::parse(body.to_string().as_bytes(), &RelayPolicy::new("m"))
    }

    /// The fields that are complained about, as `field` or `field/index`.
    fn complaints(text: &str) -> Vec<String> {
        match RolloutRequest::parse(text.as_bytes(), &RelayPolicy::new("m")) {
            Ok(_) => vec![],
            Err(Refusal::Invalid(problems)) => problems
                .iter()
                .map(|problem| {
                    let place: Vec<String> = problem.loc[1..]
                        .iter()
                        .map(|part| {
                            part.as_str()
                                .map_or_else(|| part.to_string(), str::to_owned)
                        })
                        .collect();
                    place.join("/")
                })
                .collect(),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_becomes_a_row_without_keys() {
        let request = parse(&good()).unwrap();
        assert_eq!(request.id.as_str(), "r-1");
        assert_eq!(request.llm_key.unwrap().expose(), "controller-key");
        let row = request.row.as_str();
        for secret in ["controller-key", "hunter2", "t0ken"] {
            assert!(!row.contains(secret), "{row}");
        }
        let row: Value = request.row.read().unwrap();
        assert_eq!(row["initial_messages"], good()["initial_messages"]);
        assert_eq!(row["label"], "7");
        assert_eq!(row["agent_timeout_sec"], 2.0);
        assert_eq!(
            RequestDigest::of_row(&request.row).as_ref(),
            Some(&request.digest)
        );
        let shown = format!("{:?}", request.callbacks);
        assert!(!shown.contains("t0ken") && !shown.contains("controller-key"));
    }

    #[test]
    fn the_digest_is_of_everything_but_the_keys() {
        let digest = |body: &Value| parse(body).unwrap().digest;
        assert_eq!(digest(&good()), digest(&with("llm_api_key", json!("k"))));
        for (field, value) in [
            ("label", json!("8")),
            ("metadata", json!(null)),
            ("initial_messages", json!([])),
            ("agent_timeout_sec", json!(3)),
            ("completion_callback_url", json!("http://127.0.0.1:2/x")),
        ] {
            assert_ne!(digest(&good()), digest(&with(field, value)), "{field}");
        }
    }

    #[test]
    fn a_missing_id_is_made_up() {
        let id = || parse(&with("rollout_id", json!(null))).unwrap().id;
        assert_ne!(id(), id());
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (field, value) in [
            ("rollout_id", json!("a/b")),
            ("rollout_id", json!("..")),
            ("rollout_id", json!("")),
            ("rollout_id", json!(7)),
            ("initial_messages", json!("hello")),
            ("initial_messages", json!(null)),
            ("label", json!(7)),
            ("metadata", json!([])),
            ("extra_fields", json!("x")),
            ("llm_api_key", json!("")),
            ("chat_completions_url", json!("not a url")),
            ("chat_completions_url", json!(null)),
            ("chat_completions_url", json!("ftp://h/v1")),
            ("completion_callback_url", json!(null)),
            ("grader_callback_url", json!("/relative")),
            ("controller_api_key", json!("two\nlines")),
            ("agent_timeout_sec", json!("soon")),
            ("agent_timeout_sec", json!(0)),
            ("grader_timeout_sec", json!(-1)),
        ] {
            let body = with(field, value.clone()).to_string();
            let found = complaints(&body);
            assert!(
                found.contains(&field.to_owned()),
                "{field} {value}: {found:?}"
            );
        }
        let body = with("initial_messages", json!([{}, "x"])).to_string();
        assert_eq!(complaints(&body), ["initial_messages/1"]);
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        for (field, value) in [
            ("initial_messages", format!("[{{\"content\": {deep}}}]")),
            ("metadata", format!("{{\"a\": {deep}}}")),
            ("extra_fields", format!("{{\"a\": {deep}}}")),
        ] {
            let body = with(field, json!("HERE")).to_string();
            let body = body.replace("\"HERE\"", &value);
            assert_eq!(complaints(&body), [field]);
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let mut found = complaints(r#"{"llm_api_key": "", "agent_timeout_sec": 1e999}"#);
        found.sort();
        assert_eq!(
            found,
            [
                "agent_timeout_sec",
                "chat_completions_url",
                "completion_callback_url",
                "initial_messages",
                "llm_api_key",
            ]
        );
    }

    #[test]
    fn what_is_not_json_is_said_to_be_so() {
        for text in ["", "{", "[]", "7", "{\"agent_timeout_sec\": NaN}"] {
            assert_eq!(complaints(text), [""], "{text}");
        }
        let not_utf8 = RolloutRequest::parse(b"{\"label\": \"\xff\"}", &RelayPolicy::new("m"));
        let status = not_utf8.unwrap_err().into_response().status();
        assert_eq!(status, 422);
    }

    #[test]
    fn a_field_that_comes_twice_is_refused_at_any_depth() {
        let text = good().to_string();
        for (once, twice) in [
            ("\"label\":", "\"label\":\"8\",\"label\":"),
            ("\"a\":", "\"a\":2,\"a\":"),
            ("\"role\":", "\"role\":\"system\",\"role\":"),
            ("\"unheard_of\":", "\"unheard_of\":1,\"unheard_of\":"),
        ] {
            let text = text.replacen(once, twice, 1);
            let refusal = RolloutRequest::parse(text.as_bytes(), &RelayPolicy::new("m"));
            let Err(Refusal::Invalid(problems)) = refusal else {
                panic!("{text}")
            };
            let shown = format!("{problems:?}");
            assert!(shown.contains("duplicate field"), "{shown}");
        }
    }

    #[test]
    fn what_no_worker_could_be_sent_is_too_large() {
        let body = with(
            "initial_messages",
            json!([{"role": "user", "content": "x".repeat(65 << 20)}]),
        );
        assert!(matches!(parse(&body), Err(Refusal::TooLarge(_))));
    }
}
