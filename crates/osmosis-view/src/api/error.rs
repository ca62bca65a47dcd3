//! What is answered when something can't be: `{schema_version, error: {code, message, details}}`.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::StoreError;
use serde::Serialize;

#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: String,
    message: String,
    hint: Option<String>,
}

#[derive(Serialize)]
struct Envelope<'a> {
    schema_version: u32,
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: &'a str,
    message: &'a str,
    details: Details<'a>,
}

#[derive(Serialize)]
struct Details<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &str, message: &str) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.to_owned(),
            hint: None,
        }
    }

    /// What was asked makes no sense.
    pub(crate) fn usage(message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "usage", message)
    }

    pub(crate) fn internal(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    #[must_use]
    pub(crate) fn hint(self, hint: &str) -> Self {
        Self {
            hint: Some(hint.to_owned()),
            ..self
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<RunError> for ApiError {
    fn from(error: RunError) -> Self {
        let status = match error.kind() {
            RunErrorKind::RunNotFound
            | RunErrorKind::RolloutNotFound
            | RunErrorKind::FileNotFound => StatusCode::NOT_FOUND,
            RunErrorKind::RunAmbiguous => StatusCode::CONFLICT,
            RunErrorKind::NoSharedRows | RunErrorKind::DatasetsDiffer => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            _ if error.is_usage() => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self {
            status,
            code: error.kind().code().to_owned(),
            message: error.message().to_owned(),
            hint: error.hint_text().map(str::to_owned),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        RunError::from(error).into()
    }
}

impl From<ApiError> for RunError {
    fn from(error: ApiError) -> Self {
        RunError::failed(RunErrorKind::Serve, error.message).maybe_hint(error.hint)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let envelope = Envelope {
            schema_version: 1,
            error: ErrorBody {
                code: &self.code,
                message: &self.message,
                details: Details {
                    hint: self.hint.as_deref(),
                },
            },
        };
        let body = serde_json::to_vec(&envelope).unwrap_or_default();
        let mut answer = crate::response::json(body);
        *answer.status_mut() = self.status;
        answer
    }
}
