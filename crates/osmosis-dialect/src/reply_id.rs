//! The id of an answer, in whatever dialect its caller was given it.

use serde::Deserialize;

/// Where the dialects have it: at the top, or in the first event of a stream inside what it announces.
#[derive(Deserialize)]
struct Identified {
    id: Option<String>,
    message: Option<Inner>,
    response: Option<Inner>,
}

#[derive(Deserialize)]
struct Inner {
    id: Option<String>,
}

impl Identified {
    fn id(self) -> Option<String> {
        let inner = |inner: Option<Inner>| inner.and_then(|inner| inner.id);
        self.id
            .or_else(|| inner(self.message))
            .or_else(|| inner(self.response))
    }
}

/// The id in a response as it was sent; `None` when it has none.
pub fn reply_id(response: &[u8], streamed: bool) -> Option<String> {
    if !streamed {
        return identified(response);
    }
    response
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_prefix(b"data:"))
        .find_map(identified)
}

fn identified(json: &[u8]) -> Option<String> {
    serde_json::from_slice::<Identified>(json).ok()?.id()
}

#[cfg(test)]
mod tests {
    use super::reply_id;

    #[test]
    fn every_dialect_says_its_id_whole_and_streamed() {
        for (response, streamed, expected) in [
            (
                r#"{"id":"chatcmpl-1","choices":[]}"#,
                false,
                Some("chatcmpl-1"),
            ),
            (
                r#"{"id":"resp_1","output":[{"id":"msg_7"}]}"#,
                false,
                Some("resp_1"),
            ),
            (
                "data: {\"id\":\"chatcmpl-2\"}\n\ndata: {\"id\":\"x\"}\n\ndata: [DONE]\n\n",
                true,
                Some("chatcmpl-2"),
            ),
            (
                "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\"}}\n\n",
                true,
                Some("msg_1"),
            ),
            (
                "event: response.created\r\ndata: {\"response\":{\"id\":\"resp_2\"}}\r\n\r\n",
                true,
                Some("resp_2"),
            ),
            (": hello\n\ndata: [DONE]\n\n", true, None),
            ("nothing", false, None),
            (r#"{"id":7}"#, false, None),
        ] {
            assert_eq!(
                reply_id(response.as_bytes(), streamed).as_deref(),
                expected,
                "{response}"
            );
        }
    }
}
