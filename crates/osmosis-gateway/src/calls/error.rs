//! Why a call got no good answer, as data: its code is what metrics and spans count.

use std::fmt;

use crate::policy::FaultKind;

/// How a call failed, for its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallError {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

/// As it stands in the record: the code, then the message.
impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

/// What went wrong, of everything the gateway answers with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorCode {
    /// The body or a field of it is not what its dialect says.
    InvalidRequest,
    UnsupportedParameter,
    UnsupportedEndpoint,
    InvalidApiKey,
    /// A call under the name of another rollout.
    IdMismatch,
    UnknownUrl,
    MethodNotAllowed,
    Conflict,
    IdempotencyKeyReused,
    RequestTooLarge,
    RequestTimeout,
    /// This process takes no more calls.
    Stopping,
    RolloutEnded,
    /// The caller went away before it had its whole reply.
    CallerHungUp,
    /// The policy answered with an error status that is the caller's own fault.
    UpstreamRefused,
    /// Not the caller's fault.
    Fault(FaultKind),
    /// Of a part of the control API that lives elsewhere.
    Service(&'static str),
}

impl ErrorCode {
    /// The name on the wire, in records and in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::UnsupportedParameter => "unsupported_parameter",
            Self::UnsupportedEndpoint => "unsupported_endpoint",
            Self::InvalidApiKey => "invalid_api_key",
            Self::IdMismatch => "id_mismatch",
            Self::UnknownUrl => "unknown_url",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::Conflict => "conflict",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::RequestTooLarge => "request_too_large",
            Self::RequestTimeout => "request_timeout",
            Self::Stopping => "stopping",
            Self::RolloutEnded => "rollout_ended",
            Self::CallerHungUp => "caller_hung_up",
            Self::UpstreamRefused => "upstream_refused",
            Self::Fault(kind) => kind.as_str(),
            Self::Service(code) => code,
        }
    }
}
