//! What the gateway knows of each dialect when it passes it on untouched.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Dialect;

impl Dialect {
    /// Whether a stream's usage comes only when it is asked for.
    pub(crate) fn has_stream_options(self) -> bool {
        match self {
            Self::ChatCompletions | Self::Completions => true,
            Self::Responses | Self::Messages => false,
        }
    }

    /// Whether the events of a stream have names.
    pub(crate) fn has_named_events(self) -> bool {
        !self.has_stream_options()
    }

    /// Whether a text is a whole reply of this dialect.
    pub(crate) fn is_reply(self, body: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Shape {
            choices: Option<Vec<IgnoredAny>>,
            output: Option<Vec<IgnoredAny>>,
            content: Option<Vec<IgnoredAny>>,
        }
        if !body.trim_ascii_start().starts_with(b"{") {
            return false;
        }
        serde_json::from_slice::<Shape>(body).is_ok_and(|shape| match self {
            Self::ChatCompletions | Self::Completions => shape.choices.is_some(),
            Self::Responses => shape.output.is_some(),
            Self::Messages => shape.content.is_some(),
        })
    }

    /// The headers of a request that belong to the dialect and go on with it.
    pub(crate) fn headers(self) -> &'static [&'static str] {
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
