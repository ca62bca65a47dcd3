//! What there is to know about an engine elsewhere.

use std::fmt;
use std::time::Duration;

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{GenerationRequest, LogprobsOf};
use reqwest::Url;

use crate::error::GatewayError;
use crate::secret::Secret;

/// Which protocol an engine speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// `POST /v1/completions` with a prompt of ids.
    Vllm,
    /// `POST /generate` with `input_ids`.
    Sglang,
}

impl EngineKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }

    /// What a server of this kind gives when nothing was set.
    pub fn default_logprobs(self) -> ServerLogprobs {
        match self {
            Self::Vllm => ServerLogprobs::Raw,
            Self::Sglang => ServerLogprobs::Tempered,
        }
    }
}

/// Which logprobs a server was set to give. It does not say so itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerLogprobs {
    /// Of the logits as they are: vLLM's `--logprobs-mode raw_logprobs` (its default), SGLang's
    /// `SGLANG_RETURN_ORIGINAL_LOGPROB=1`.
    Raw,
    /// Of the logits divided by the temperature: SGLang's default.
    Tempered,
    /// Of what is sampled from in the end: vLLM's `--logprobs-mode processed_logprobs`.
    Processed,
}

impl ServerLogprobs {
    /// What they are for a request with these settings; `None` for one that the server chooses.
    pub(crate) fn of(
        self,
        temperature: Option<f32>,
        top_p: Option<f32>,
        top_k: Option<usize>,
    ) -> LogprobsOf {
        match self {
            Self::Tempered => LogprobsOf::Tempered,
            Self::Raw => match temperature {
                Some(0.0 | 1.0) => LogprobsOf::Tempered,
                Some(_) => LogprobsOf::Untempered,
                None => LogprobsOf::Unknown,
            },
            Self::Processed => match (top_p, top_k) {
                (Some(1.0), Some(0)) => LogprobsOf::Tempered,
                (Some(_), Some(_)) => LogprobsOf::Filtered,
                (None, _) | (_, None) => LogprobsOf::Unknown,
            },
        }
    }

    pub(super) fn of_request(self, request: &GenerationRequest) -> LogprobsOf {
        self.of(
            Some(request.temperature),
            Some(request.top_p),
            Some(request.top_k),
        )
    }
}

/// What there is to know about an engine elsewhere.
#[derive(Clone)]
pub struct RemoteEngineOptions {
    pub kind: EngineKind,
    /// `http://127.0.0.1:8000/v1`; for SGLang `http://127.0.0.1:30000`, with or without `/v1`.
    pub base_url: String,
    pub api_key: Option<Secret>,
    /// The model name the server is sent.
    pub model: String,
    pub logprobs: ServerLogprobs,
    /// The number of the server's weights, until somebody says otherwise.
    pub version: PolicyVersion,
    /// How many tokens prompt and answer may have together, where it is known: a server's list of models does not
    /// have it for adapters.
    pub context: Option<usize>,
    pub connect_timeout: Duration,
    /// How long the server may take to send its first byte.
    pub first_byte_limit: Duration,
    /// How long it may then fall silent.
    pub idle_limit: Duration,
    /// How many more times a generation is tried that got no token, but a connection error, 429 or 5xx.
    pub retries: u32,
    /// The wait before the first retry; it doubles from there, with jitter.
    pub first_retry_wait: Duration,
    /// No wait is longer, whatever `Retry-After` says.
    pub longest_retry_wait: Duration,
}

impl RemoteEngineOptions {
    pub fn new(kind: EngineKind, base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            kind,
            base_url: base_url.into(),
            api_key: None,
            model: model.into(),
            logprobs: kind.default_logprobs(),
            version: PolicyVersion(0),
            context: None,
            connect_timeout: Duration::from_secs(10),
            first_byte_limit: Duration::from_mins(10),
            idle_limit: Duration::from_mins(2),
            retries: 4,
            first_retry_wait: Duration::from_millis(500),
            longest_retry_wait: Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for RemoteEngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("RemoteEngineOptions")
            .field("kind", &self.kind)
            .field("model", &self.model)
            .field("logprobs", &self.logprobs)
            .finish_non_exhaustive()
    }
}

/// Where an engine is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) generate: Url,
    pub(super) models: Url,
    /// For people: no user, no password, no query.
    pub(super) shown: String,
}

impl Addresses {
    pub(super) fn of(kind: EngineKind, base: &str) -> Result<Self, GatewayError> {
        let wrong = |message: String| GatewayError::UpstreamUrl {
            url: Url::parse(base).map_or_else(|_| base.to_owned(), |url| shown(&url)),
            message,
        };
        let mut url = Url::parse(base.trim()).map_err(|error| wrong(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(wrong("is not an http or https URL".to_owned()));
        }
        url.set_fragment(None);
        let path = url.path().trim_end_matches('/').to_owned();
        let at = |path: String| {
            let mut url = url.clone();
            url.set_path(&path);
            url
        };
        Ok(match kind {
            EngineKind::Vllm => Self {
                generate: at(format!("{path}/completions")),
                models: at(format!("{path}/models")),
                shown: shown(&at(path)),
            },
            EngineKind::Sglang => {
                let root = path.strip_suffix("/v1").unwrap_or(&path).to_owned();
                Self {
                    generate: at(format!("{root}/generate")),
                    models: at(format!("{root}/v1/models")),
                    shown: shown(&at(root)),
                }
            }
        })
    }
}

fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // These fail only for URLs without a host, which have no credentials either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.to_string().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_the_protocol_and_hide_passwords() {
        for (kind, base, generate, models, shown) in [
            (
                EngineKind::Vllm,
                "http://h:1/v1/",
                "http://h:1/v1/completions",
                "http://h:1/v1/models",
                "http://h:1/v1",
            ),
            (
                EngineKind::Sglang,
                "http://h:1",
                "http://h:1/generate",
                "http://h:1/v1/models",
                "http://h:1",
            ),
            (
                EngineKind::Sglang,
                "http://u:p@h:1/v1",
                "http://u:p@h:1/generate",
                "http://u:p@h:1/v1/models",
                "http://h:1",
            ),
        ] {
            let addresses = Addresses::of(kind, base).unwrap();
            assert_eq!(addresses.generate.as_str(), generate);
            assert_eq!(addresses.models.as_str(), models);
            assert_eq!(addresses.shown, shown);
        }
        let error = Addresses::of(EngineKind::Vllm, "ftp://u:hunter2@h").unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn logprobs_are_called_what_they_are() {
        use LogprobsOf::{Filtered, Tempered, Unknown, Untempered};
        use ServerLogprobs::{Processed, Raw};
        #[rustfmt::skip]
        let cases = [
            (Raw, Some(1.0), Some(0.5), Some(3), Tempered),
            (Raw, Some(0.0), Some(1.0), Some(0), Tempered),
            (Raw, Some(0.7), Some(1.0), Some(0), Untempered),
            (Raw, None, Some(1.0), Some(0), Unknown),
            (Processed, Some(0.7), Some(1.0), Some(0), Tempered),
            (Processed, Some(1.0), Some(0.9), Some(0), Filtered),
            (Processed, Some(1.0), Some(1.0), Some(5), Filtered),
            (Processed, Some(1.0), None, Some(0), Unknown),
            (ServerLogprobs::Tempered, None, None, None, Tempered),
        ];
        for (server, temperature, top_p, top_k, expected) in cases {
            assert_eq!(
                server.of(temperature, top_p, top_k),
                expected,
                "{server:?} {temperature:?}"
            );
        }
    }
}
