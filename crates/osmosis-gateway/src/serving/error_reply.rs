use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use osmosis_dialect::{Dialect, ErrorShape, RequestError};

use crate::calls::error::{CallError, ErrorCode};
use crate::policy::{Fault, FaultKind};

/// An error, to be said in the dialect of its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ErrorReply {
    pub(crate) status: StatusCode,
    kind: &'static str,
    code: ErrorCode,
    /// The field of the request that is at fault.
    param: Option<String>,
    pub(crate) message: String,
    /// When it is worth asking again, in seconds.
    retry_after: Option<u32>,
}

/// Clients of the OpenAI family obey it; the gateway has done the retrying already.
const SHOULD_RETRY: &str = "x-should-retry";

impl ErrorReply {
    fn new(status: StatusCode, kind: &'static str, code: ErrorCode, message: String) -> Self {
        Self {
            status,
            kind,
            code,
            param: None,
            message,
            retry_after: None,
        }
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "invalid_request_error",
            ErrorCode::InvalidApiKey,
            message.into(),
        )
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "permission_error",
            ErrorCode::IdMismatch,
            message.into(),
        )
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            ErrorCode::UnknownUrl,
            message.into(),
        )
    }

    pub(crate) fn wrong_method(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_request_error",
            ErrorCode::MethodNotAllowed,
            message.into(),
        )
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request_error",
            ErrorCode::InvalidRequest,
            message.into(),
        )
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "invalid_request_error",
            ErrorCode::Conflict,
            message.into(),
        )
    }

    /// An `Idempotency-Key` that stands for another request.
    pub(crate) fn key_reused() -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid_request_error",
            ErrorCode::IdempotencyKeyReused,
            "the `Idempotency-Key` was sent with another request before".to_owned(),
        )
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            ErrorCode::RequestTooLarge,
            format!("the request body is larger than {limit} bytes"),
        )
    }

    pub(crate) fn too_slow(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            ErrorCode::RequestTimeout,
            message.into(),
        )
    }

    /// What a part of the control API that lives elsewhere says.
    pub(crate) fn of_service(
        status: StatusCode,
        code: &'static str,
        message: String,
        retry_after: Option<u32>,
    ) -> Self {
        let kind = if status.is_server_error() {
            "server_error"
        } else {
            "invalid_request_error"
        };
        Self {
            retry_after,
            ..Self::new(status, kind, ErrorCode::Service(code), message)
        }
    }

    /// Whoever asks shall ask the process that comes after this one.
    pub(crate) fn stopping() -> Self {
        Self {
            retry_after: Some(1),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "server_error",
                ErrorCode::Stopping,
                "the engine is stopping".to_owned(),
            )
        }
    }

    pub(crate) fn rollout_ended() -> Self {
        Self::new(
            StatusCode::GONE,
            "invalid_request_error",
            ErrorCode::RolloutEnded,
            "the rollout ended while this call was under way".to_owned(),
        )
    }

    pub(crate) fn of_fault(fault: &Fault) -> Self {
        let reply = Self::new(
            StatusCode::from_u16(fault.status).unwrap_or(StatusCode::BAD_GATEWAY),
            "upstream_error",
            ErrorCode::Fault(fault.kind),
            fault.message.clone(),
        );
        if fault.kind == FaultKind::ToolsIgnored {
            let hint = fault.kind.hint().unwrap_or_default();
            return Self {
                kind: "invalid_request_error",
                param: Some("tools".to_owned()),
                message: format!(
                    "{}. In a run, {hint}. With `osmosis gateway`, use `--tool-format hermes` or `--chat-template FILE`",
                    fault.message
                ),
                ..reply
            };
        }
        let retry_after = match fault.kind {
            FaultKind::QueueFull => Some(1),
            FaultKind::Paused => Some(5),
            FaultKind::Unreachable
            | FaultKind::TimedOut
            | FaultKind::Overloaded
            | FaultKind::ServerError
            | FaultKind::Garbage
            | FaultKind::CutShort
            | FaultKind::Misconfigured
            | FaultKind::ToolsIgnored
            | FaultKind::OutOfDescriptors => None,
        };
        Self {
            retry_after,
            ..reply
        }
    }

    pub(crate) fn body(&self, dialect: Dialect) -> Bytes {
        self.shape().body(dialect)
    }

    /// The same as an event of a stream that has already begun; `sequence` is its number, in dialects
    /// that number them.
    pub(crate) fn event(&self, dialect: Dialect, sequence: u64) -> Bytes {
        self.shape().event(dialect, sequence)
    }

    fn shape(&self) -> ErrorShape<'_> {
        ErrorShape {
            status: self.status.as_u16(),
            kind: self.kind,
            code: self.code.as_str(),
            param: self.param.as_deref(),
            message: &self.message,
        }
    }

    pub(crate) fn for_record(&self) -> CallError {
        CallError {
            code: self.code,
            message: self.message.clone(),
        }
    }

    pub(crate) fn response(&self, dialect: Dialect) -> Response {
        self.response_with(self.body(dialect))
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
        let should_retry = match self.retry_after {
            Some(seconds) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
                "true"
            }
            None => "false",
        };
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(should_retry));
        response
    }
}

impl From<RequestError> for ErrorReply {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Invalid { param, message } => Self {
                param,
                ..Self::bad_request(message)
            },
            RequestError::UnsupportedParameter { param, message } => Self {
                code: ErrorCode::UnsupportedParameter,
                param: Some(param),
                ..Self::bad_request(message)
            },
            RequestError::UnsupportedEndpoint { message } => Self {
                code: ErrorCode::UnsupportedEndpoint,
                ..Self::bad_request(message)
            },
        }
    }
}
