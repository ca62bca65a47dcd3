//! Which name a server has for the longest answer. `OpenAI` has replaced `max_tokens` by
//! `max_completion_tokens`, and its reasoning models refuse the old name; most other servers know the
//! old one alone. So: `OpenAI` by its address, and whoever else says so when refusing a call.

use reqwest::Url;

use super::UpstreamOptions;
use crate::policy::{ModelReply, ReplyBody};

/// Whether all servers are `OpenAI`'s own, or Azure's copies of them.
pub(super) fn is_openai_alone(options: &UpstreamOptions) -> bool {
    options.endpoints.iter().all(|endpoint| {
        let url = Url::parse(endpoint.base_url.trim()).ok();
        let host = url.as_ref().and_then(Url::host_str);
        host.is_some_and(|host| host == "api.openai.com" || host.ends_with(".openai.azure.com"))
    })
}

/// Whether a reply is the refusal of `max_tokens` that names the other.
pub(super) fn is_asked_for_by(reply: &ModelReply) -> bool {
    match &reply.body {
        ReplyBody::Whole(body) if reply.status == 400 => {
            let names = |name: &str| memchr::memmem::find(body, name.as_bytes()).is_some();
            names("max_tokens") && names("max_completion_tokens")
        }
        ReplyBody::Whole(_) | ReplyBody::Stream(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openai_is_known_by_its_address_alone() {
        for (url, expected) in [
            ("https://api.openai.com/v1", true),
            ("https://mine.openai.azure.com/openai/v1", true),
            ("https://api.openai.com.example.org/v1", false),
            ("https://openrouter.ai/api/v1?x=api.openai.com", false),
            ("http://127.0.0.1:8000/v1", false),
            ("", false),
        ] {
            let options = UpstreamOptions::new(url, "m");
            assert_eq!(is_openai_alone(&options), expected, "{url}");
        }
    }

    #[test]
    fn only_a_refusal_that_names_both_asks_for_the_newer_name() {
        let openai = r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}"#;
        for (status, body, expected) in [
            (400, openai, true),
            (200, openai, false),
            (
                400,
                r#"{"error":{"message":"max_tokens is too large"}}"#,
                false,
            ),
        ] {
            let reply = ModelReply {
                status,
                content_type: "application/json".to_owned(),
                body: ReplyBody::Whole(body.into()),
            };
            assert_eq!(is_asked_for_by(&reply), expected, "{status} {body}");
        }
    }
}
