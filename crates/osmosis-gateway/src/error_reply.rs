use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use crate::policy::Fault;

/// An error as the Chat Completions API says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ErrorReply {
    pub(crate) status: StatusCode,
    kind: &'static str,
    code: &'static str,
    pub(crate) message: String,
}

#[derive(Serialize)]
struct Shape<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

/// Clients of the OpenAI family obey it; the gateway has done the retrying already.
const SHOULD_RETRY: &str = "x-should-retry";

impl ErrorReply {
    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: String) -> Self {
        Self {
            status,
            kind,
            code,
            message,
        }
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "invalid_request_error",
            "invalid_api_key",
            message.into(),
        )
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "permission_error",
            "id_mismatch",
            message.into(),
        )
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            "unknown_url",
            message.into(),
        )
    }

    pub(crate) fn wrong_method(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_request_error",
            "method_not_allowed",
            message.into(),
        )
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request_error",
            "invalid_request",
            message.into(),
        )
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            "request_too_large",
            format!("the request body is larger than {limit} bytes"),
        )
    }

    pub(crate) fn too_slow(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            "request_timeout",
            message.into(),
        )
    }

    pub(crate) fn rollout_ended() -> Self {
        Self::new(
            StatusCode::GONE,
            "invalid_request_error",
            "rollout_ended",
            "the rollout ended while this call was under way".to_owned(),
        )
    }

    pub(crate) fn of_fault(fault: &Fault) -> Self {
        Self::new(
            StatusCode::from_u16(fault.status).unwrap_or(StatusCode::BAD_GATEWAY),
            "upstream_error",
            fault.kind.as_str(),
            fault.message.clone(),
        )
    }

    pub(crate) fn body(&self) -> Bytes {
        let shape = Shape {
            error: Inner {
                message: &self.message,
                r#type: self.kind,
                param: None,
                code: self.code,
            },
        };
        // Four strings cannot fail to become JSON; the fallback keeps the types honest.
        serde_json::to_vec(&shape).map_or_else(
            |_| Bytes::from_static(b"{\"error\":{\"message\":\"unknown error\"}}"),
            Bytes::from,
        )
    }

    /// The same as an event of a stream that has already begun.
    pub(crate) fn event(&self) -> Bytes {
        let body = self.body();
        let mut event = Vec::with_capacity(body.len() + 8);
        event.extend_from_slice(b"data: ");
        event.extend_from_slice(&body);
        event.extend_from_slice(b"\n\n");
        Bytes::from(event)
    }

    /// What the record says: the code, then the message.
    pub(crate) fn for_record(&self) -> String {
        format!("{}: {}", self.code, self.message)
    }

    pub(crate) fn response(&self) -> Response {
        self.response_with(self.body())
    }

    /// The response around a body made earlier (and recorded).
    pub(crate) fn response_with(&self, body: Bytes) -> Response {
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        response
    }
}
