//! A policy behind one OpenAI-compatible server.

mod clients;
mod reply;
mod retry;

use std::fmt::{self, Write as _};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, header};
use osmosis_core::PolicyVersion;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::Url;

pub use self::clients::HttpClients;
use crate::dialect::Dialect;
use crate::error::GatewayError;
use crate::policy::{ChatCall, ChatReply, Fault, FaultKind, Policy, PolicyDescription};
use crate::secret::Secret;

/// What there is to know about an upstream.
#[derive(Clone)]
pub struct UpstreamOptions {
    /// What `/chat/completions` is appended to, `https://api.example.com/v1`.
    pub base_url: String,
    pub api_key: Option<Secret>,
    /// The model name the upstream is sent.
    pub model: String,
    /// The dialects the upstream answers at their paths; calls of others are translated to chat.
    pub dialects: Vec<Dialect>,
    pub connect_timeout: Duration,
    /// How long the upstream may take to send its first byte. For a plain call that is the whole
    /// generation.
    pub first_byte_limit: Duration,
    /// How long it may then fall silent.
    pub idle_limit: Duration,
    /// How many more times a call is tried that got nothing but a connection error, 429 or 5xx.
    pub retries: u32,
    /// The wait before the first retry; it doubles from there, with jitter.
    pub first_retry_wait: Duration,
    /// No wait is longer, whatever `Retry-After` says.
    pub longest_retry_wait: Duration,
}

impl UpstreamOptions {
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            api_key: None,
            model: model.into(),
            dialects: vec![Dialect::ChatCompletions],
            connect_timeout: Duration::from_secs(10),
            first_byte_limit: Duration::from_mins(10),
            idle_limit: Duration::from_mins(2),
            retries: 4,
            first_retry_wait: Duration::from_millis(500),
            longest_retry_wait: Duration::from_secs(30),
        }
    }

    pub(crate) fn speaks(&self, dialect: Dialect) -> bool {
        self.dialects.contains(&dialect)
    }
}

impl fmt::Debug for UpstreamOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        let shown = Url::parse(&self.base_url)
            .map_or_else(|_| String::new(), |url| without_credentials(&url));
        f.debug_struct("UpstreamOptions")
            .field("base_url", &shown)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// A policy behind one OpenAI-compatible server. See [`UpstreamOptions`].
pub struct UpstreamPolicy {
    client: reqwest::Client,
    url: Url,
    headers: HeaderMap,
    /// The base URL without credentials, for records and messages.
    endpoint: String,
    options: UpstreamOptions,
}

impl fmt::Debug for UpstreamPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamPolicy")
            .field("endpoint", &self.endpoint)
            .field("model", &self.options.model)
            .finish_non_exhaustive()
    }
}

/// Why one try came to nothing.
struct FailedTry {
    fault: Fault,
    /// Nothing was received that could not be had again.
    retry: bool,
    retry_after: Option<Duration>,
}

impl UpstreamPolicy {
    pub fn new(options: UpstreamOptions) -> Result<Self, GatewayError> {
        let clients = HttpClients::new(options.connect_timeout);
        Self::with_clients(options, &clients)
    }

    /// Like `new`, with connections that are shared with others.
    pub(crate) fn with_clients(
        options: UpstreamOptions,
        clients: &HttpClients,
    ) -> Result<Self, GatewayError> {
        let url = completions_url(&options.base_url)?;
        let endpoint = without_credentials(&url);
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(key) = &options.api_key {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose()))
                .map_err(|_| GatewayError::UpstreamKey)?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let client = clients.for_url(&url)?;
        Ok(Self {
            client,
            url,
            headers,
            endpoint,
            options,
        })
    }

    fn request(&self, call: &ChatCall) -> reqwest::RequestBuilder {
        let mut headers = self.headers.clone();
        let sample = utf8_percent_encode(call.sample_id.as_str(), NOT_IN_A_HEADER).to_string();
        for (name, text) in [
            ("x-rollout-id", call.rollout_id.as_str()),
            ("x-sample-id", &sample),
        ] {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        }
        in_dialect(call, &mut headers);
        self.client
            .post(url_in(call.dialect, &self.url))
            .headers(headers)
            .body(call.body.clone())
    }

    fn fault(&self, kind: FaultKind, status: u16, what: &str) -> Fault {
        let message = format!("{} {what}", self.endpoint);
        let message = match &self.options.api_key {
            Some(key) => key.redact(&message),
            None => message,
        };
        Fault {
            kind,
            status,
            message,
        }
    }
}

#[async_trait]
impl Policy for UpstreamPolicy {
    fn describe(&self) -> PolicyDescription {
        PolicyDescription {
            model: self.options.model.clone(),
            endpoint: self.endpoint.clone(),
            version: PolicyVersion::default(),
        }
    }

    fn speaks(&self, dialect: Dialect) -> bool {
        self.options.speaks(dialect)
    }

    async fn chat(&self, call: ChatCall) -> Result<ChatReply, Fault> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut failed = match self.try_once(&call).await {
                Ok(reply) => return Ok(reply),
                Err(failed) => failed,
            };
            if !failed.retry || tries > self.options.retries {
                if tries > 1 {
                    // Writing into a `String` cannot fail.
                    let _ = write!(failed.fault.message, " (tried {tries} times)");
                }
                return Err(failed.fault);
            }
            let wait = retry::wait_before(
                tries,
                failed.retry_after,
                self.options.first_retry_wait,
                self.options.longest_retry_wait,
                rand::random::<f64>(),
            );
            tracing::debug!(
                rollout = %call.rollout_id, tries, wait_ms = wait.as_millis(), fault = %failed.fault,
                "a model call is tried again"
            );
            tokio::time::sleep(wait).await;
        }
    }
}

/// Header values are visible ASCII; `%` itself is escaped so that decoding gives back what was there.
const NOT_IN_A_HEADER: &AsciiSet = &CONTROLS.add(b'%');

fn completions_url(base: &str) -> Result<Url, GatewayError> {
    let wrong = |message: &str| GatewayError::UpstreamUrl {
        url: Url::parse(base).map_or_else(|_| base.to_owned(), |url| without_credentials(&url)),
        message: message.to_owned(),
    };
    let mut url = Url::parse(base.trim()).map_err(|error| wrong(&error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(wrong("is not an http or https URL"));
    }
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix("/chat/completions").unwrap_or(path);
    let path = format!("{path}/chat/completions");
    url.set_path(&path);
    url.set_fragment(None);
    Ok(url)
}

/// Where calls of this dialect go; `chat` is where chat calls do.
fn url_in(dialect: Dialect, chat: &Url) -> Url {
    let mut url = chat.clone();
    if dialect != Dialect::ChatCompletions
        && let Some(base) = chat.path().strip_suffix("chat/completions")
    {
        url.set_path(&format!("{base}{}", dialect.path()));
    }
    url
}

/// The version of Anthropic's API, for callers that leave it out.
const ANTHROPIC_VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// Adds the headers of the call's dialect, which may have its own place for the key.
fn in_dialect(call: &ChatCall, headers: &mut HeaderMap) {
    for (name, value) in &call.dialect_headers {
        headers.append(name, value.clone());
    }
    if call.dialect != Dialect::Messages {
        return;
    }
    headers
        .entry("anthropic-version")
        .or_insert(ANTHROPIC_VERSION);
    let key = headers.remove(header::AUTHORIZATION).and_then(|bearer| {
        let key = bearer.to_str().ok()?.strip_prefix("Bearer ")?.to_owned();
        HeaderValue::from_str(&key).ok()
    });
    if let Some(mut key) = key {
        key.set_sensitive(true);
        headers.insert("x-api-key", key);
    }
}

/// Where calls go, for people: no user, no password, no query.
fn without_credentials(url: &Url) -> String {
    let mut url = url.clone();
    // These fail only for URLs without a host, which have no credentials either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    let text = url.to_string();
    text.strip_suffix("/chat/completions")
        .unwrap_or(&text)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_is_accepted_with_and_without_the_endpoint() {
        for (base, url, endpoint) in [
            (
                "http://h:1/v1",
                "http://h:1/v1/chat/completions",
                "http://h:1/v1",
            ),
            (
                "http://h:1/v1/",
                "http://h:1/v1/chat/completions",
                "http://h:1/v1",
            ),
            (
                "http://h/v1/chat/completions",
                "http://h/v1/chat/completions",
                "http://h/v1",
            ),
            ("https://h", "https://h/chat/completions", "https://h"),
            (
                "https://u:p@h/v1?api-version=2",
                "https://u:p@h/v1/chat/completions?api-version=2",
                "https://h/v1",
            ),
        ] {
            let parsed = completions_url(base).unwrap();
            assert_eq!(parsed.as_str(), url, "{base}");
            assert_eq!(without_credentials(&parsed), endpoint, "{base}");
        }
    }

    #[test]
    fn every_dialect_has_its_path_below_the_base_url() {
        let chat = completions_url("https://h/v1?api-version=2").unwrap();
        for (dialect, url) in [
            (
                Dialect::ChatCompletions,
                "https://h/v1/chat/completions?api-version=2",
            ),
            (Dialect::Responses, "https://h/v1/responses?api-version=2"),
            (
                Dialect::Completions,
                "https://h/v1/completions?api-version=2",
            ),
            (Dialect::Messages, "https://h/v1/messages?api-version=2"),
        ] {
            assert_eq!(url_in(dialect, &chat).as_str(), url);
        }
    }

    #[test]
    fn a_bad_base_url_is_refused_without_showing_its_password() {
        for base in ["", "h:1/v1", "ftp://u:hunter2@h/v1", "/v1", "http://"] {
            let error = completions_url(base).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(error.hint().is_some());
        }
    }

    #[test]
    fn neither_the_key_nor_a_password_shows_in_debug_output() {
        let mut options = UpstreamOptions::new("https://u:hunter2@h/v1", "m");
        options.api_key = Some(Secret::new("sk-secret"));
        let shown = format!(
            "{options:?} {:?}",
            UpstreamPolicy::new(options.clone()).unwrap()
        );
        assert!(
            !shown.contains("sk-secret") && !shown.contains("hunter2"),
            "{shown}"
        );
        options.api_key = Some(Secret::new("sk\nsecret"));
        assert!(matches!(
            UpstreamPolicy::new(options),
            Err(GatewayError::UpstreamKey)
        ));
    }
}
