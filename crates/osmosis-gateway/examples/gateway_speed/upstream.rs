//! A model server that has its answers ready.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::serving::Answers;

/// Tokens of an answer.
const TOKENS: usize = 64;
/// Tokens of an answer that has logprobs.
const TOKENS_WITH_LOGPROBS: usize = 256;

pub(crate) struct Upstream {
    delay: Duration,
    gap: Duration,
    plain: Bytes,
    with_logprobs: Bytes,
    events: Vec<Bytes>,
}

impl Upstream {
    /// Waits `delay_ms` before an answer and `gap_ms` between the events of a stream.
    pub(crate) fn new(delay_ms: u64, gap_ms: u64) -> Self {
        Self {
            delay: Duration::from_millis(delay_ms),
            gap: Duration::from_millis(gap_ms),
            plain: completion(TOKENS, "null"),
            with_logprobs: completion(TOKENS_WITH_LOGPROBS, &logprobs(TOKENS_WITH_LOGPROBS)),
            events: events(),
        }
    }
}

impl Answers for Upstream {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let asked = match request.into_body().collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => return Response::new(Body::empty()),
        };
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        let (kind, body) = if has(&asked, br#""stream":true"#) {
            ("text/event-stream", self.stream())
        } else if has(&asked, br#""logprobs":true"#) {
            ("application/json", Body::from(self.with_logprobs.clone()))
        } else {
            ("application/json", Body::from(self.plain.clone()))
        };
        let mut response = Response::new(body);
        let kind = http::HeaderValue::from_static(kind);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

impl Upstream {
    fn stream(&self) -> Body {
        let (events, gap) = (self.events.clone(), self.gap);
        Body::from_stream(stream::unfold(
            events.into_iter(),
            move |mut left| async move {
                let event = left.next()?;
                if !gap.is_zero() {
                    tokio::time::sleep(gap).await;
                }
                Some((Ok::<_, Infallible>(event), left))
            },
        ))
    }
}

fn has(text: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(text, part).is_some()
}

fn completion(tokens: usize, logprobs: &str) -> Bytes {
    let content = "word ".repeat(tokens);
    Bytes::from(format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"mock","choices":[{{"index":0,"message":{{"role":"assistant","content":"{content}","refusal":null}},"logprobs":{logprobs},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":480,"completion_tokens":{tokens},"total_tokens":{}}}}}"#,
        480 + tokens
    ))
}

fn logprobs(tokens: usize) -> String {
    let mut items = String::new();
    for token in 0..tokens {
        let comma = if token == 0 { "" } else { "," };
        // Writing into a `String` cannot fail.
        let _ = write!(
            items,
            r#"{comma}{{"token":"word ","logprob":-0.{token:06},"bytes":[119,111,114,100,32],"top_logprobs":[]}}"#
        );
    }
    format!(r#"{{"content":[{items}],"refusal":null}}"#)
}

fn events() -> Vec<Bytes> {
    let head = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"mock","#;
    let mut events = Vec::new();
    for token in 0..TOKENS {
        let role = if token == 0 {
            r#""role":"assistant","#
        } else {
            ""
        };
        events.push(Bytes::from(format!(
            "{head}\"choices\":[{{\"index\":0,\"delta\":{{{role}\"content\":\"word \"}},\"finish_reason\":null}}]}}\n\n"
        )));
    }
    events.push(Bytes::from(format!(
        "{head}\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"stop\"}}]}}\n\n"
    )));
    events.push(Bytes::from(format!(
        "{head}\"choices\":[],\"usage\":{{\"prompt_tokens\":480,\"completion_tokens\":{TOKENS},\"total_tokens\":{}}}}}\n\n",
        480 + TOKENS
    )));
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}
