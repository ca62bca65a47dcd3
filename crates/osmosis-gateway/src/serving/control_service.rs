//! Parts of the control API that live elsewhere: the gateway checks the key and hands the request over.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;

use crate::serving::error_reply::ErrorReply;

/// Answers control requests below one path. The key has been checked.
#[async_trait]
pub trait ControlService: Send + Sync + fmt::Debug {
    /// May be dropped at any time, when the caller hangs up or the gateway stops.
    async fn serve(&self, parts: Parts, body: Body) -> Result<Response, ControlRefusal>;
}

/// A request that is not done, in the shape of the control API's errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlRefusal {
    pub status: StatusCode,
    /// For programs: `conflict`, `invalid_request`, ...
    pub code: &'static str,
    pub message: String,
    /// When it is worth asking again, in seconds.
    pub retry_after: Option<u32>,
}

impl ControlRefusal {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_after: None,
        }
    }
}

impl From<ControlRefusal> for ErrorReply {
    fn from(refusal: ControlRefusal) -> Self {
        Self::of_service(
            refusal.status,
            refusal.code,
            refusal.message,
            refusal.retry_after,
        )
    }
}

/// The services by the path they answer below.
#[derive(Debug)]
pub(crate) struct Services(pub(crate) Vec<(String, Arc<dyn ControlService>)>);

impl Services {
    /// Who answers this path: it is the service's own, or below it.
    pub(crate) fn at(&self, path: &str) -> Option<&dyn ControlService> {
        let found = self.0.iter().find(|(base, _)| {
            path.strip_prefix(base.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        found.map(|(_, service)| &**service)
    }
}
