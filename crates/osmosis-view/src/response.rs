//! What every answer has: headers that keep others out, and envelopes around documents.

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue};
use serde::Serialize;

use crate::api::ApiError;

/// Scripts, styles and requests are ours alone; pictures may be in the transcripts themselves.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The version of every envelope.
const SCHEMA_VERSION: u32 = 1;

#[derive(Debug, Serialize)]
struct DataEnvelope<'a, T> {
    schema_version: u32,
    data: &'a T,
}

/// A page of a list. `next` is the cursor of the page after it; `null` on the last.
#[derive(Debug, Serialize)]
pub(crate) struct ListEnvelope<T> {
    schema_version: u32,
    pub(crate) items: Vec<T>,
    pub(crate) total_count: u64,
    pub(crate) next: Option<String>,
}

impl<T> ListEnvelope<T> {
    pub(crate) fn whole(items: Vec<T>) -> Self {
        let total_count = items.len() as u64;
        Self::page(items, total_count, None)
    }

    pub(crate) fn page(items: Vec<T>, total_count: u64, next: Option<String>) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            items,
            total_count,
            next,
        }
    }
}

/// `{"schema_version": 1, "data": …}`, as bytes.
pub(crate) fn data(document: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    let envelope = DataEnvelope {
        schema_version: SCHEMA_VERSION,
        data: document,
    };
    serde_json::to_vec(&envelope).map_err(|error| ApiError::internal(&error.to_string()))
}

/// `{"schema_version": 1, "items": …}`, as bytes.
pub(crate) fn list(envelope: &ListEnvelope<impl Serialize>) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(envelope).map_err(|error| ApiError::internal(&error.to_string()))
}

pub(crate) fn json(bytes: impl Into<Body>) -> Response {
    let content_type = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    ([content_type], bytes.into()).into_response()
}

/// Pictures that a page can show; everything else is a download.
pub(crate) fn picture_type(path: &str) -> Option<&'static str> {
    let (_, extension) = path.rsplit_once('.')?;
    match extension.to_ascii_lowercase().as_str() {
        "png" => Some("image/png"),
        "jpg" | "jpeg" => Some("image/jpeg"),
        "gif" => Some("image/gif"),
        "webp" => Some("image/webp"),
        _ => None,
    }
}

/// For people whose browser has no key.
pub(crate) fn refusal_page(error: &ApiError) -> Response {
    let text = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>osmosis view</title>\
         <h1>This viewer needs a key</h1><p>{}.</p><p>{}.</p></html>",
        escaped(error.message()),
        escaped(error.hint_text().unwrap_or_default()),
    );
    let content_type = HeaderValue::from_static("text/html; charset=utf-8");
    (error.status(), [(CONTENT_TYPE, content_type)], text).into_response()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Puts the headers on every answer, refusals included.
pub(crate) async fn secure(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    answer
}
