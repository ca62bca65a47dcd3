//! Answers that are no: a status and `{"detail": …}`, the shape that clients of FastAPI services read.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};

/// When to come back, for whoever is told that there is no room.
const RETRY_AFTER_SECONDS: &str = "5";

/// Why a request was not done.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// What is wrong with the request, all of it.
    Invalid(Vec<Problem>),
    TooLarge(String),
    Unauthorized,
    /// Another request has this id.
    Conflict(String),
    NoRoom(String),
    Draining,
    NotFound,
    WrongMethod,
    BrokenOff(&'static str),
    /// The body did not come in time.
    TooSlow,
    /// A browser sent it for a page from elsewhere.
    ForeignOrigin(String),
    /// It was sent to a name that is not ours.
    WrongHost(String),
    /// The body is said to be something else than JSON.
    NotJson,
    /// Ours to fix.
    Failed(String),
}

/// One thing that is wrong with a request body.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    pub(crate) loc: Vec<Value>,
    msg: String,
}

impl Problem {
    /// A problem with the body as a whole.
    pub(crate) fn of_body(kind: &'static str, msg: impl Into<String>) -> Self {
        Self {
            kind,
            loc: vec![json!("body")],
            msg: msg.into(),
        }
    }

    pub(crate) fn of_field(kind: &'static str, field: &str, msg: impl Into<String>) -> Self {
        Self {
            kind,
            loc: vec![json!("body"), json!(field)],
            msg: msg.into(),
        }
    }

    pub(crate) fn of_item(kind: &'static str, field: &str, at: usize, msg: &str) -> Self {
        Self {
            kind,
            loc: vec![json!("body"), json!(field), json!(at)],
            msg: msg.to_owned(),
        }
    }
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::NoRoom(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Draining => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::BrokenOff(_) => StatusCode::BAD_REQUEST,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::ForeignOrigin(_) => StatusCode::FORBIDDEN,
            Self::WrongHost(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn detail(&self) -> Value {
        match self {
            Self::Invalid(problems) => json!(problems),
            Self::TooLarge(text)
            | Self::Conflict(text)
            | Self::NoRoom(text)
            | Self::Failed(text) => json!(text),
            Self::Unauthorized => {
                json!("unauthorized: send the server's key as `Authorization: Bearer KEY`")
            }
            Self::Draining => json!("the rollout server is shutting down"),
            Self::NotFound => json!("not found"),
            Self::WrongMethod => json!("method not allowed"),
            Self::BrokenOff(text) => json!(text),
            Self::TooSlow => json!("the request body stopped coming"),
            Self::ForeignOrigin(origin) => {
                json!(format!("pages of `{origin}` may not use this server"))
            }
            Self::WrongHost(host) => json!(format!(
                "`{host}` is not a name of this server; it is allowed with `--allow-host`"
            )),
            Self::NotJson => json!("send the body as `content-type: application/json`"),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status(), &json!({ "detail": self.detail() }));
        let headers = response.headers_mut();
        match self {
            Self::NoRoom(_) | Self::Draining => {
                let wait = HeaderValue::from_static(RETRY_AFTER_SECONDS);
                headers.insert(header::RETRY_AFTER, wait);
            }
            Self::Unauthorized => {
                let scheme = HeaderValue::from_static("Bearer");
                headers.insert(header::WWW_AUTHENTICATE, scheme);
                close(headers);
            }
            Self::TooLarge(_)
            | Self::NotFound
            | Self::WrongMethod
            | Self::BrokenOff(_)
            | Self::TooSlow
            | Self::ForeignOrigin(_)
            | Self::WrongHost(_)
            | Self::NotJson => close(headers),
            Self::Invalid(_) | Self::Conflict(_) | Self::Failed(_) => {}
        }
        response
    }
}

pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// The body was not read, so the connection ends: a client that is not told sends its next request into nothing.
fn close(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
}
