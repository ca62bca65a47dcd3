//! One try: the request goes out, the reply is read as far as it must be before it can be passed on.

use std::error::Error;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::{Response, header};
use http_body::Body;
use http_body_util::BodyExt;
use osmosis_dialect::{Dialect, completion_to_sse};
use tokio::time::{Instant, timeout, timeout_at};

use super::FailedTry;
use super::body::UpstreamBody;
use super::endpoint::{Endpoint, Unsent};
use super::pieces::with_idle_limit;
use super::retry::retry_after;
use crate::policy::{Fault, FaultKind, ModelCall, ModelReply, ReplyBody};
use crate::secret::Secret;

/// A reply beyond this is taken for one that never ends.
const MAX_REPLY_BYTES: usize = 256 << 20;
/// No more is set aside for a reply before it has come.
const MOST_RESERVED_BYTES: usize = 1 << 20;
/// As much of an error reply as is read.
const MAX_ERROR_BYTES: usize = 1 << 20;
/// As much of a bad reply as is quoted.
const QUOTED_CHARS: usize = 200;

const EVENT_STREAM: &str = "text/event-stream";

impl Endpoint {
    pub(super) async fn try_once(
        &self,
        call: &ModelCall,
        dialect: Dialect,
    ) -> Result<ModelReply, FailedTry> {
        let deadline = Instant::now() + self.first_byte_limit;
        let response = match timeout_at(deadline, self.send(call, dialect)).await {
            Err(_) => return Err(self.too_slow()),
            Ok(Err(unsent)) => return Err(self.no_reply(&unsent)),
            Ok(Ok(response)) => response,
        };
        let status = response.status().as_u16();
        if !response.status().is_success() {
            return self.refused(status, response).await;
        }
        let is_stream = content_type(&response).starts_with(EVENT_STREAM);
        if call.streamed && is_stream {
            return self.begun_stream(status, response, deadline).await;
        }
        let body = self
            .whole(response, MAX_REPLY_BYTES)
            .await
            .map_err(FailedTry::last)?;
        if !dialect.is_reply(&body) {
            let what = format!("sent something that is no completion: {}", quoted(&body));
            return Err(FailedTry::last(self.fault(FaultKind::Garbage, 502, &what)));
        }
        if !call.streamed {
            return Ok(ModelReply {
                status,
                content_type: "application/json".to_owned(),
                body: ReplyBody::Whole(body),
            });
        }
        if dialect != Dialect::ChatCompletions {
            let what = "answered a streamed call with a whole reply";
            return Err(FailedTry::last(self.fault(FaultKind::Garbage, 502, what)));
        }
        // A server that cannot stream has answered all the same.
        let completion = serde_json::from_slice(&body).map_err(|error| {
            let what = format!("sent a completion that cannot be read: {error}");
            FailedTry::last(self.fault(FaultKind::Garbage, 502, &what))
        })?;
        let events = completion_to_sse(&completion, true);
        Ok(ModelReply {
            status,
            content_type: EVENT_STREAM.to_owned(),
            body: ReplyBody::Stream(Box::pin(stream::iter(events.into_iter().map(Ok)))),
        })
    }

    /// Waits for the first bytes: until they are there, the call can still be tried again.
    async fn begun_stream(
        &self,
        status: u16,
        response: Response<UpstreamBody>,
        deadline: Instant,
    ) -> Result<ModelReply, FailedTry> {
        let mut chunks = response.into_body().into_data_stream();
        let first = loop {
            match timeout_at(deadline, chunks.next()).await {
                Err(_) => return Err(self.too_slow()),
                Ok(None) => {
                    let fault = self.fault(FaultKind::CutShort, 502, "sent an empty stream");
                    return Err(FailedTry::again(fault));
                }
                Ok(Some(Err(error))) => return Err(self.no_reply(&error.into())),
                Ok(Some(Ok(chunk))) if chunk.is_empty() => {}
                Ok(Some(Ok(chunk))) => break chunk,
            }
        };
        if !could_be_events(&first) {
            let what = format!("sent something that is no event stream: {}", quoted(&first));
            return Err(FailedTry::last(self.fault(FaultKind::Garbage, 502, &what)));
        }
        let silent = self.fault(
            FaultKind::TimedOut,
            504,
            &format!(
                "fell silent for {:?} in the middle of a stream",
                self.idle_limit
            ),
        );
        let cut = self.fault(FaultKind::CutShort, 502, "cut the stream short");
        let rest = with_idle_limit(chunks, self.idle_limit, silent, cut);
        Ok(ModelReply {
            status,
            content_type: EVENT_STREAM.to_owned(),
            body: ReplyBody::Stream(Box::pin(stream::iter([Ok(first)]).chain(rest))),
        })
    }

    /// An error status: a fault, or a reply that is the caller's own business.
    async fn refused(
        &self,
        status: u16,
        response: Response<UpstreamBody>,
    ) -> Result<ModelReply, FailedTry> {
        let retry_after = retry_after(response.headers(), SystemTime::now());
        let kind = match status {
            // A redirect would carry the key elsewhere.
            300..400 => Some(FaultKind::Misconfigured),
            _ => FaultKind::of_status(status),
        };
        let content_type = content_type(&response).to_owned();
        let location = response
            .headers()
            .get(header::LOCATION)
            .map(|value| quoted(value.as_bytes()));
        // The status alone says enough when the text cannot be had.
        let body = self
            .whole(response, MAX_ERROR_BYTES)
            .await
            .unwrap_or_default();
        let Some(kind) = kind else {
            return Ok(ModelReply {
                status,
                content_type,
                body: ReplyBody::Whole(self.redacted(body)),
            });
        };
        let said = match location {
            Some(location) => format!("a redirect to {location}"),
            None => said(&body),
        };
        let fault = self.fault(
            kind,
            if status < 400 { 502 } else { status },
            &format!("answered with status {status}: {said}"),
        );
        Err(FailedTry {
            fault,
            retry: kind.worth_retrying(),
            retry_after,
        })
    }

    async fn whole(&self, response: Response<UpstreamBody>, limit: usize) -> Result<Bytes, Fault> {
        // Growing a buffer step by step would copy a long reply several times.
        let announced = response.body().size_hint().exact().unwrap_or_default();
        let announced = usize::try_from(announced)
            .unwrap_or(limit)
            .min(MOST_RESERVED_BYTES);
        let mut chunks = response.into_body().into_data_stream();
        let mut first = Bytes::new();
        let mut joined = BytesMut::new();
        let idle = self.idle_limit;
        loop {
            let Ok(chunk) = timeout(idle, chunks.next()).await else {
                let what = format!("fell silent for {idle:?} in the middle of a reply");
                return Err(self.fault(FaultKind::TimedOut, 504, &what));
            };
            match chunk {
                None => break,
                Some(Err(_)) => {
                    return Err(self.fault(FaultKind::CutShort, 502, "cut the reply short"));
                }
                Some(Ok(chunk)) if first.is_empty() => first = chunk,
                Some(Ok(chunk)) => {
                    if joined.is_empty() {
                        joined.reserve(announced);
                        joined.extend_from_slice(&first);
                    }
                    joined.extend_from_slice(&chunk);
                }
            }
            if joined.len().max(first.len()) > limit {
                return Err(self.fault(FaultKind::Garbage, 502, "sent a reply without end"));
            }
        }
        Ok(if joined.is_empty() {
            first
        } else {
            joined.freeze()
        })
    }

    fn too_slow(&self) -> FailedTry {
        let what = format!("sent nothing for {:?}", self.first_byte_limit);
        // Waiting as long again would outlast the agent.
        FailedTry::last(self.fault(FaultKind::TimedOut, 504, &what))
    }

    fn no_reply(&self, unsent: &Unsent) -> FailedTry {
        let what = if unsent.connected {
            "broke the connection before it replied"
        } else {
            "cannot be reached"
        };
        let what = format!("{what}: {}", unsent.message);
        FailedTry::again(self.fault(FaultKind::Unreachable, 502, &what))
    }

    /// Servers quote keys in their complaints.
    fn redacted(&self, body: Bytes) -> Bytes {
        let Some(key) = self.api_key.as_ref().map(Secret::expose) else {
            return body;
        };
        if key.is_empty() || memchr::memmem::find(&body, key.as_bytes()).is_none() {
            return body;
        }
        let text = String::from_utf8_lossy(&body);
        Bytes::from(text.replace(key, "[redacted]"))
    }
}

impl FailedTry {
    fn again(fault: Fault) -> Self {
        Self {
            fault,
            retry: true,
            retry_after: None,
        }
    }

    fn last(fault: Fault) -> Self {
        Self {
            fault,
            retry: false,
            retry_after: None,
        }
    }
}

fn content_type(response: &Response<UpstreamBody>) -> &str {
    response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("application/octet-stream")
}

/// Whether bytes can be the beginning of server-sent events.
fn could_be_events(bytes: &[u8]) -> bool {
    let start = bytes
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(bytes)
        .trim_ascii_start();
    [&b"data"[..], b"event", b"id", b"retry", b":"]
        .iter()
        .any(|field| {
            let length = field.len().min(start.len());
            start[..length] == field[..length]
        })
}

/// What an error body says, if it says it in the usual way.
pub(crate) fn said(body: &[u8]) -> String {
    let message = serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|value| {
            let error = value.get("error").unwrap_or(&value);
            let message = error
                .get("message")
                .or_else(|| error.get("detail"))
                .unwrap_or(error);
            message.as_str().map(str::to_owned)
        });
    match message {
        Some(message) => message.chars().take(4 * QUOTED_CHARS).collect(),
        None if body.is_empty() => "no text".to_owned(),
        None => quoted(body),
    }
}

fn quoted(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    let mut quote: String = text
        .chars()
        .take(QUOTED_CHARS)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(QUOTED_CHARS).is_some() {
        quote.push('…');
    }
    format!("`{quote}`")
}

/// An error and what caused it, in one line.
pub(crate) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_found_in_the_usual_shapes() {
        for (body, expected) in [
            (r#"{"error":{"message":"slow down"}}"#, "slow down"),
            (r#"{"error":"slow down"}"#, "slow down"),
            (r#"{"detail":"slow down"}"#, "slow down"),
            (r#"{"message":"slow down"}"#, "slow down"),
            ("<html>\n<b>", "`<html> <b>`"),
            ("", "no text"),
        ] {
            assert_eq!(said(body.as_bytes()), expected, "{body}");
        }
        assert!(said("x".repeat(1000).as_bytes()).ends_with("x…`"));
    }

    #[test]
    fn events_are_recognised_by_their_first_bytes() {
        for yes in ["data: {}", "da", ": ping", "event: x", "\n\ndata:"] {
            assert!(could_be_events(yes.as_bytes()), "{yes}");
        }
        for no in ["{\"choices\":[]}", "<html>", "error"] {
            assert!(!could_be_events(no.as_bytes()), "{no}");
        }
    }
}
