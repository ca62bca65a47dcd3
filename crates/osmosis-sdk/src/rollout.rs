use std::fmt;

use osmosis_core::{RolloutId, SampleId};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::SdkError;

const SAMPLE_HEADER: &str = "x-sample-id";
const ROLLOUT_HEADER: &str = "x-rollout-id";

/// The path that clients append to a base URL themselves.
const CHAT_COMPLETIONS: &str = "/chat/completions";

/// What can't stand in a header as it is; the gateway decodes it. Beyond ASCII everything is.
const ENCODED_IN_HEADERS: &AsciiSet = &CONTROLS.add(b'%').add(b' ').add(b'"').add(b',');

/// The rollout that is running: who it is, and where its model calls go.
#[derive(Clone)]
pub struct Rollout {
    pub(crate) chat_completions_url: String,
    pub(crate) api_key: String,
    pub(crate) id: RolloutId,
}

impl Rollout {
    /// The base URL of the policy gateway: clients append `/chat/completions`.
    pub fn chat_completions_url(&self) -> &str {
        let url = self.chat_completions_url.trim_end_matches('/');
        let base = url.strip_suffix(CHAT_COMPLETIONS).unwrap_or(url);
        base.trim_end_matches('/')
    }

    /// Opens this rollout and nothing else.
    pub fn api_key(&self) -> &str {
        &self.api_key
    }

    pub fn rollout_id(&self) -> &str {
        self.id.as_str()
    }

    /// What a client needs for the model calls of one sample.
    pub fn endpoint(&self, sample: &str) -> Result<Endpoint, SdkError> {
        let sample = SampleId::new(sample)?;
        Ok(Endpoint {
            base_url: self.chat_completions_url().to_owned(),
            api_key: self.api_key.clone(),
            headers: [
                (SAMPLE_HEADER, for_header(sample.as_str())),
                (ROLLOUT_HEADER, for_header(self.rollout_id())),
            ],
        })
    }
}

fn for_header(text: &str) -> String {
    utf8_percent_encode(text, ENCODED_IN_HEADERS).to_string()
}

impl fmt::Debug for Rollout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rollout")
            .field("chat_completions_url", &self.chat_completions_url)
            .field("rollout_id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Where the model calls of one sample go, for a client of your choice. It must speak the chat
/// completions API (not the Responses API) and send these headers with every call.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Without `/chat/completions`.
    pub base_url: String,
    /// Sent as a bearer token.
    pub api_key: String,
    /// Join a call to its rollout and sample.
    pub headers: [(&'static str, String); 2],
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("base_url", &self.base_url)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(url: &str) -> Rollout {
        Rollout {
            chat_completions_url: url.to_owned(),
            api_key: "osm-secret".to_owned(),
            id: RolloutId::of(3, 1),
        }
    }

    #[test]
    fn the_url_is_a_base_url_however_it_was_given() {
        for url in [
            "http://h/v1",
            "http://h/v1/",
            "http://h/v1/chat/completions",
            "http://h/v1/chat/completions/",
        ] {
            assert_eq!(rollout(url).chat_completions_url(), "http://h/v1", "{url}");
        }
    }

    #[test]
    fn a_sample_of_any_name_fits_into_a_header() {
        let endpoint = rollout("http://h/v1").endpoint("50% agent ✓").unwrap();
        assert_eq!(
            endpoint.headers,
            [
                ("x-sample-id", "50%25%20agent%20%E2%9C%93".to_owned()),
                ("x-rollout-id", "r3-1".to_owned()),
            ]
        );
        assert_eq!(endpoint.api_key, "osm-secret");
        assert!(rollout("http://h").endpoint("two\nlines").is_err());
    }

    #[test]
    fn the_key_is_not_shown() {
        let rollout = rollout("http://h");
        let shown = format!("{rollout:?} {:?}", rollout.endpoint("main").unwrap());
        assert!(!shown.contains("osm-secret"), "{shown}");
    }
}
