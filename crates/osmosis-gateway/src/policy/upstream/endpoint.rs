//! One OpenAI-compatible server: where it is, how it is asked, whether it is there.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use http_body_util::Full;
use osmosis_dialect::Dialect;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::Url;

use super::body::UpstreamBody;
use super::clients::{DirectClients, USER_AGENT};
use super::reply::error_chain;
use super::{HttpClients, UpstreamOptions};
use crate::error::GatewayError;
use crate::policy::{Fault, FaultKind, ModelCall};
use crate::secret::Secret;

/// A server that answers for a policy.
#[derive(Clone, PartialEq, Eq)]
pub struct EndpointOptions {
    /// What `/chat/completions` is appended to, `https://api.example.com/v1`.
    pub base_url: String,
    pub api_key: Option<Secret>,
    /// No more calls than this are under way there at once, however well it takes them.
    pub max_in_flight: Option<u32>,
}

impl EndpointOptions {
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            api_key: None,
            max_in_flight: None,
        }
    }
}

impl fmt::Debug for EndpointOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        let shown = Url::parse(&self.base_url)
            .map_or_else(|_| String::new(), |url| without_credentials(&url));
        f.debug_struct("EndpointOptions")
            .field("base_url", &shown)
            .field("max_in_flight", &self.max_in_flight)
            .finish_non_exhaustive()
    }
}

/// Why a call could not be sent.
pub(crate) struct Unsent {
    pub(super) connected: bool,
    pub(crate) message: String,
}

impl Unsent {
    pub(super) fn by_reqwest(error: reqwest::Error) -> Self {
        Self {
            connected: !error.is_connect(),
            message: error_chain(&error.without_url()),
        }
    }
}

/// How long a health check may take.
const CHECK_LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Endpoint {
    client: reqwest::Client,
    /// For calls, where nothing more is needed.
    direct: Option<Direct>,
    url: Url,
    headers: HeaderMap,
    /// The base URL without credentials, for records and messages.
    pub(super) name: Arc<str>,
    pub(super) api_key: Option<Secret>,
    pub(super) first_byte_limit: Duration,
    pub(super) idle_limit: Duration,
}

/// A server that is asked by plain HTTP.
struct Direct {
    clients: Arc<DirectClients>,
    /// Where calls of each dialect go.
    paths: [Uri; Dialect::ALL.len()],
    /// Those of the endpoint, and what a general client would add.
    headers: HeaderMap,
}

impl Direct {
    fn new(url: &Url, headers: &HeaderMap, clients: &HttpClients) -> Option<Self> {
        let host = url.host_str()?;
        let host = match url.port() {
            Some(port) => HeaderValue::from_str(&format!("{host}:{port}")),
            None => HeaderValue::from_str(host),
        };
        let mut headers = headers.clone();
        headers.insert(header::HOST, host.ok()?);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        let mut paths = Dialect::ALL.map(|_| Uri::default());
        for (path, dialect) in paths.iter_mut().zip(Dialect::ALL) {
            let url = url_in(dialect, url);
            *path = match url.query() {
                Some(query) => format!("{}?{query}", url.path()).parse().ok()?,
                None => url.path().parse().ok()?,
            };
        }
        Some(Self {
            clients: clients.direct_for(url)?,
            paths,
            headers,
        })
    }

    async fn send(
        &self,
        call: &ModelCall,
        dialect: Dialect,
        headers: HeaderMap,
    ) -> Result<http::Response<UpstreamBody>, Unsent> {
        let mut request = http::Request::new(Full::new(call.body.clone()));
        *request.method_mut() = http::Method::POST;
        let at = Dialect::ALL.iter().position(|one| *one == dialect);
        if let Some(path) = at.and_then(|at| self.paths.get(at)) {
            request.uri_mut().clone_from(path);
        }
        *request.headers_mut() = headers;
        let client = self.clients.one_for(call.streamed);
        let response = client.send(request).await?;
        Ok(response.map(UpstreamBody::Direct))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.name).finish()
    }
}

impl Endpoint {
    pub(super) fn new(
        endpoint: &EndpointOptions,
        options: &UpstreamOptions,
        clients: &HttpClients,
    ) -> Result<Self, GatewayError> {
        let url = completions_url(&endpoint.base_url)?;
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(key) = &endpoint.api_key {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose()))
                .map_err(|_| GatewayError::UpstreamKey)?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Ok(Self {
            client: clients.for_url(&url)?,
            direct: Direct::new(&url, &headers, clients),
            name: without_credentials(&url).into(),
            url,
            headers,
            api_key: endpoint.api_key.clone(),
            first_byte_limit: options.first_byte_limit,
            idle_limit: options.idle_limit,
        })
    }

    /// Sends a call; an error is in words, and says whether there was a connection.
    pub(super) async fn send(
        &self,
        call: &ModelCall,
        dialect: Dialect,
    ) -> Result<http::Response<UpstreamBody>, Unsent> {
        let headers = match &self.direct {
            Some(direct) => &direct.headers,
            None => &self.headers,
        };
        let headers = of_call(call, dialect, headers.clone());
        if let Some(direct) = &self.direct {
            return direct.send(call, dialect, headers).await;
        }
        let url = url_in(dialect, &self.url);
        let request = self.client.post(url).headers(headers);
        let sent = request.body(call.body.clone()).send().await;
        let response: http::Response<_> = sent.map_err(Unsent::by_reqwest)?.into();
        Ok(response.map(UpstreamBody::General))
    }

    /// Whether somebody is there: `/health`, as inference servers have it, or else `/v1/models`.
    pub(super) async fn is_alive(&self) -> bool {
        let mut health = self.url.clone();
        health.set_path("/health");
        health.set_query(None);
        let ask = async {
            match self.client.get(health).send().await {
                Ok(response) if response.status().is_success() => return true,
                // It has no such page.
                Ok(response) if !response.status().is_server_error() => {}
                Ok(_) | Err(_) => return false,
            }
            let models = self.list_models().send().await;
            // A refusal is an answer too.
            matches!(models, Ok(response) if !response.status().is_server_error())
        };
        tokio::time::timeout(CHECK_LIMIT, ask)
            .await
            .unwrap_or(false)
    }

    pub(super) fn list_models(&self) -> reqwest::RequestBuilder {
        let mut models = self.url.clone();
        let base = models.path().strip_suffix("/chat/completions");
        let path = format!("{}/models", base.unwrap_or_default());
        models.set_path(&path);
        self.client.get(models).headers(self.headers.clone())
    }

    pub(super) fn fault(&self, kind: FaultKind, status: u16, what: &str) -> Fault {
        let message = format!("{} {what}", self.name);
        let message = match &self.api_key {
            Some(key) => key.redact(&message),
            None => message,
        };
        Fault {
            kind,
            status,
            message,
        }
    }

    /// Scheme, host and port.
    pub(super) fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }
}

const ROLLOUT_ID: HeaderName = HeaderName::from_static("x-rollout-id");
const SAMPLE_ID: HeaderName = HeaderName::from_static("x-sample-id");

/// The headers of a call: the endpoint's, and its own.
fn of_call(call: &ModelCall, dialect: Dialect, mut headers: HeaderMap) -> HeaderMap {
    let sample: Cow<'_, str> = utf8_percent_encode(call.sample_id.as_str(), NOT_IN_A_HEADER).into();
    for (name, text) in [
        (ROLLOUT_ID, call.rollout_id.as_str()),
        (SAMPLE_ID, &*sample),
    ] {
        if let Ok(value) = HeaderValue::from_str(text) {
            headers.insert(name, value);
        }
    }
    in_dialect(call, dialect, &mut headers);
    headers
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
fn in_dialect(call: &ModelCall, dialect: Dialect, headers: &mut HeaderMap) {
    for (name, value) in &call.dialect_headers {
        headers.append(name, value.clone());
    }
    if dialect != Dialect::Messages {
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

/// Header values are visible ASCII; `%` itself is escaped so that decoding gives back what was there.
const NOT_IN_A_HEADER: &AsciiSet = &CONTROLS.add(b'%');

pub(super) fn completions_url(base: &str) -> Result<Url, GatewayError> {
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

/// Where calls go, for people: no user, no password, no query.
pub(crate) fn without_credentials(url: &Url) -> String {
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
    fn a_bad_base_url_is_refused_without_showing_its_password() {
        for base in ["", "h:1/v1", "ftp://u:hunter2@h/v1", "/v1", "http://"] {
            let error = completions_url(base).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(error.hint().is_some());
        }
    }
}
