//! The dialects, and what is known of each when it is passed on untouched.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// A protocol in which agents talk to models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// Chat Completions of `OpenAI`; every policy speaks it.
    #[default]
    ChatCompletions,
    /// Responses of `OpenAI`.
    Responses,
    /// Completions of `OpenAI`: a raw prompt, no messages.
    Completions,
    /// Messages of Anthropic.
    Messages,
}

impl Dialect {
    pub const ALL: [Self; 4] = [
        Self::ChatCompletions,
        Self::Responses,
        Self::Completions,
        Self::Messages,
    ];

    /// The name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Responses => "responses",
            Self::Completions => "completions",
            Self::Messages => "messages",
        }
    }

    /// Where it is served, below a base URL.
    pub fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat/completions",
            Self::Responses => "responses",
            Self::Completions => "completions",
            Self::Messages => "messages",
        }
    }
}

/// A reply up to this size is read from end to end before it is passed on.
const READ_WHOLE_BYTES: usize = 8 << 10;

impl Dialect {
    /// Whether a stream's usage comes only when it is asked for.
    pub fn has_stream_options(self) -> bool {
        match self {
            Self::ChatCompletions | Self::Completions => true,
            Self::Responses | Self::Messages => false,
        }
    }

    /// Whether the events of a stream have names.
    pub fn has_named_events(self) -> bool {
        !self.has_stream_options()
    }

    /// Whether a text is a whole reply of this dialect. A long one is looked at from both ends only:
    /// reading the logprobs of a thousand tokens would cost more than all the rest of the call.
    pub fn is_reply(self, body: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Shape {
            choices: Option<Vec<IgnoredAny>>,
            output: Option<Vec<IgnoredAny>>,
            content: Option<Vec<IgnoredAny>>,
        }
        let text = body.trim_ascii();
        if !text.starts_with(b"{") {
            return false;
        }
        if text.len() > READ_WHOLE_BYTES {
            let name = match self {
                Self::ChatCompletions | Self::Completions => &b"\"choices\""[..],
                Self::Responses => b"\"output\"",
                Self::Messages => b"\"content\"",
            };
            return text.ends_with(b"}") && memchr::memmem::find(text, name).is_some();
        }
        serde_json::from_slice::<Shape>(text).is_ok_and(|shape| match self {
            Self::ChatCompletions | Self::Completions => shape.choices.is_some(),
            Self::Responses => shape.output.is_some(),
            Self::Messages => shape.content.is_some(),
        })
    }

    /// The headers of a request that belong to the dialect and go on with it.
    pub fn headers(self) -> &'static [&'static str] {
        match self {
            Self::ChatCompletions | Self::Completions => &[],
            Self::Responses => &["openai-beta"],
            Self::Messages => &["anthropic-version", "anthropic-beta"],
        }
    }
}

/// What the name of an event says about the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Milestone {
    None,
    /// All has been said.
    Finished,
    /// It went wrong.
    Failed,
}

impl Milestone {
    pub(crate) fn of(event_name: &str) -> Self {
        match event_name {
            "response.completed" | "response.incomplete" | "message_stop" => Self::Finished,
            "response.failed" | "error" => Self::Failed,
            _ => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_an_object_with_what_its_dialect_answers_with() {
        use Dialect::{ChatCompletions, Completions, Messages, Responses};
        for (body, expected) in [
            (r#"{"choices":[]}"#, vec![ChatCompletions, Completions]),
            (
                r#" {"id":"x","choices":[{"index":0}]}"#,
                vec![ChatCompletions, Completions],
            ),
            (r#"{"output":[],"error":null}"#, vec![Responses]),
            (r#"{"content":[]}"#, vec![Messages]),
            (r#"{"content":"text"}"#, vec![]),
            (r#"{"error":{"message":"no"}}"#, vec![]),
            (r#"{"choices":[}"#, vec![]),
            (r"[[]]", vec![]),
            ("<html>", vec![]),
            ("", vec![]),
        ] {
            let found: Vec<Dialect> = Dialect::ALL
                .into_iter()
                .filter(|dialect| dialect.is_reply(body.as_bytes()))
                .collect();
            assert_eq!(found, expected, "{body}");
        }
    }
}
