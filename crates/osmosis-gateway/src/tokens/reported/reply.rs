//! What a reply, or an event of a stream, says of tokens, and the same text without what nobody asked for.

use osmosis_dialect::json_edit::Edits;
use osmosis_dialect::sse::data_of;
use serde::Deserialize;
use serde_json::value::RawValue;

/// What the caller asked for itself, and gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) token_ids: bool,
    pub(super) logprobs: bool,
}

#[cfg(any(test, feature = "fuzzing"))]
impl Wanted {
    pub(super) const NOTHING: Self = Self {
        token_ids: false,
        logprobs: false,
    };
}

/// What was read.
#[derive(Debug, PartialEq)]
pub(super) struct Read {
    pub(super) news: News,
    /// The text without what nobody asked for; `None` when it stays as it is.
    pub(super) stripped: Option<String>,
}

/// What a piece says of tokens.
#[derive(Debug, Default, PartialEq)]
pub(super) struct News {
    pub(super) prompt_ids: Option<Vec<u32>>,
    pub(super) choices: Vec<ChoiceNews>,
    pub(super) completion_tokens: Option<u64>,
}

#[derive(Debug, PartialEq)]
pub(super) struct ChoiceNews {
    pub(super) index: usize,
    pub(super) ids: Option<Vec<u32>>,
    /// `None` when there are none.
    pub(super) logprobs: Option<Vec<f32>>,
    pub(super) finished: bool,
}

#[derive(Deserialize)]
struct Shape<'a> {
    #[serde(borrow, default)]
    prompt_token_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Vec<ChoiceShape<'a>>,
    #[serde(default)]
    usage: Option<UsageShape>,
}

#[derive(Deserialize)]
struct UsageShape {
    #[serde(default)]
    completion_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct ChoiceShape<'a> {
    #[serde(default)]
    index: Option<usize>,
    #[serde(borrow, default)]
    token_ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(default)]
    finish_reason: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Logprobs {
    content: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    logprob: f32,
}

/// `None` for what is no completion.
pub(super) fn read(body: &[u8], wanted: Wanted) -> Option<Read> {
    let text = std::str::from_utf8(body).ok()?;
    let shape: Shape<'_> = serde_json::from_str(text).ok()?;
    let mut edits = Edits::new(text);
    let mut news = News {
        completion_tokens: shape.usage.and_then(|usage| usage.completion_tokens),
        ..News::default()
    };
    if let Some(ids) = shape.prompt_token_ids {
        news.prompt_ids = serde_json::from_str(ids.get()).ok();
        if !wanted.token_ids {
            edits.remove_field(ids.get());
        }
    }
    for (position, choice) in shape.choices.into_iter().enumerate() {
        let ids = choice.token_ids.map(|ids| {
            if !wanted.token_ids {
                edits.remove_field(ids.get());
            }
            serde_json::from_str(ids.get()).ok()
        });
        let logprobs = choice.logprobs.and_then(|logprobs| {
            if !wanted.logprobs {
                edits.replace(logprobs.get(), "null");
            }
            let read: Logprobs = serde_json::from_str(logprobs.get()).ok()?;
            Some(read.content?.iter().map(|entry| entry.logprob).collect())
        });
        news.choices.push(ChoiceNews {
            index: choice.index.unwrap_or(position),
            ids: ids.flatten(),
            logprobs,
            finished: choice.finish_reason.is_some(),
        });
    }
    Some(Read {
        news,
        stripped: edits.finish(),
    })
}

/// The same for an event, whose other lines stay as they are.
pub(super) fn read_event(event: &[u8], wanted: Wanted) -> Option<Read> {
    let data = data_of(event)?;
    let Read { news, stripped } = read(data, wanted)?;
    let stripped = stripped.and_then(|stripped| {
        let start = data.as_ptr() as usize - event.as_ptr() as usize;
        let before = std::str::from_utf8(&event[..start]).ok()?;
        let after = std::str::from_utf8(&event[start + data.len()..]).ok()?;
        Some([before, &stripped, after].concat())
    });
    Some(Read { news, stripped })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Wanted = Wanted::NOTHING;

    #[test]
    fn a_whole_reply_is_read_and_stripped() {
        let body = r#"{"id":"c","prompt_token_ids":[1,2],"choices":[{"index":0,"message":{"content":"\"token_ids\":[9]"},"logprobs":{"content":[{"token":"a","logprob":-0.5,"top_logprobs":[]}]},"finish_reason":"stop","token_ids":[3]}],"usage":{"completion_tokens":1}}"#;
        let plain = r#"{"id":"c","choices":[{"index":0,"message":{"content":"\"token_ids\":[9]"},"logprobs":null,"finish_reason":"stop"}],"usage":{"completion_tokens":1}}"#;
        let read_back = read(body.as_bytes(), NOTHING).unwrap();
        assert_eq!(read_back.stripped.as_deref(), Some(plain));
        assert_eq!(read_back.news.prompt_ids, Some(vec![1, 2]));
        assert_eq!(read_back.news.completion_tokens, Some(1));
        let choice = ChoiceNews {
            index: 0,
            ids: Some(vec![3]),
            logprobs: Some(vec![-0.5]),
            finished: true,
        };
        assert_eq!(read_back.news.choices, [choice]);
        let all = Wanted {
            token_ids: true,
            logprobs: true,
        };
        assert_eq!(read(body.as_bytes(), all).unwrap().stripped, None);
        assert_eq!(read(plain.as_bytes(), NOTHING).unwrap().stripped, None);
    }

    #[test]
    fn an_event_keeps_its_other_lines() {
        let event =
            b"id: 7\r\ndata: {\"choices\":[{\"delta\":{},\"token_ids\":[3],\"index\":1}]}\r\n\r\n";
        let read = read_event(event, NOTHING).unwrap();
        assert_eq!(
            read.stripped.as_deref(),
            Some("id: 7\r\ndata: {\"choices\":[{\"delta\":{},\"index\":1}]}\r\n\r\n")
        );
        assert_eq!(read.news.choices[0].index, 1);
        assert!(!read.news.choices[0].finished);
        assert!(read_event(b"data: [DONE]\n\n", NOTHING).is_none());
        assert!(read_event(b": ping\n\n", NOTHING).is_none());
    }
}
