//! One request: whose it is, and who answers it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, header};
use http_body::Body as _;
use osmosis_dialect::{Dialect, model_list};

use super::control::{self, Control};
use super::error_reply::ErrorReply;
use super::identity::{Endpoint, Route, dialect_of, key_of};
use super::server::{ExtraRoutes, Shared};
use crate::calls::record::now_ms;
use crate::calls::{pipeline, replay};
use crate::policy::CallFormat;
use crate::policy::registry::{Registry, Served};
use crate::telemetry::spans::TraceParent;

/// What is known of a call before its body is read.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) at_ms: i64,
    pub(crate) format: CallFormat,
    /// Those of its headers that belong to the dialect.
    pub(crate) dialect_headers: HeaderMap,
    /// Its `Idempotency-Key`.
    pub(crate) replay_key: Option<String>,
    /// Its client says that it asks again, because no answer came.
    pub(crate) is_retry: bool,
    /// The trace it belongs to.
    pub(crate) trace: Option<TraceParent>,
}

/// Answers one request, whatever it is.
pub(crate) async fn serve(shared: Arc<Shared>, request: Request) -> Response {
    if let Some(ExtraRoutes(extra_routes)) = &shared.extra_routes
        && !request.uri().path().starts_with("/v1/")
    {
        return extra_routes(request).await;
    }
    let dialect = dialect_of(request.uri().path(), request.headers());
    let has_body = !request.body().is_end_stream();
    match answer(shared, dialect, request).await {
        Ok(response) => response,
        Err(refusal) => {
            let mut response = refusal.response(dialect);
            if has_body {
                // It was not read, so the connection ends: a client must not send its next request into it.
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            response
        }
    }
}

/// Identifies a request and passes it on; an `Err` is a request that is nobody's, and leaves no record.
async fn answer(
    shared: Arc<Shared>,
    dialect: Dialect,
    request: Request,
) -> Result<Response, ErrorReply> {
    let at_ms = now_ms();
    let (parts, body) = request.into_parts();
    if let Some(asked) = Control::at(parts.uri.path()) {
        return control::serve(&shared, asked, parts, body).await;
    }
    if let Some(service) = shared.services.at(parts.uri.path()) {
        return control::hand_over(&shared, service, parts, body).await;
    }
    let route = Route::parse(parts.uri.path())?;
    let key = key_of(&parts.headers).ok_or_else(|| {
        ErrorReply::unauthorized("no key: send the rollout's key as `Authorization: Bearer KEY`")
    })?;
    let visit = shared.sessions.enter(key).ok_or_else(|| {
        ErrorReply::unauthorized("this key opens nothing: it is wrong, or its rollout has ended")
    })?;
    let sample = route.sample_for(&parts.headers, visit.rollout(), visit.alias())?;
    let format = match (route.endpoint, &parts.method) {
        (Endpoint::Call(dialect), &Method::POST) => CallFormat::Dialect(dialect),
        (Endpoint::Generate, &Method::POST) => CallFormat::TokenIds,
        (Endpoint::Models, &Method::GET) => {
            return Ok(models(dialect, &shared.registry, visit.judge().as_deref()));
        }
        (Endpoint::Call(_), _) => {
            return Err(ErrorReply::wrong_method("a model is called with POST"));
        }
        (Endpoint::Generate, _) => {
            return Err(ErrorReply::wrong_method("ids are asked for with POST"));
        }
        (Endpoint::Models, _) => {
            return Err(ErrorReply::wrong_method("models are listed with GET"));
        }
    };
    let arrival = Arrival {
        at_ms,
        format,
        dialect_headers: belonging_to(format, &parts.headers),
        replay_key: replay::key_in(&parts.headers),
        is_retry: is_retry(&parts.headers),
        trace: parts
            .headers
            .get("traceparent")
            .and_then(|value| TraceParent::parse(value.to_str().ok()?)),
    };
    // They hold on to the connection's buffer, and a policy may think for minutes.
    drop(parts);
    Ok(pipeline::answer(shared, visit, sample, arrival, body).await)
}

/// The SDKs of OpenAI and Anthropic count their retries.
fn is_retry(headers: &HeaderMap) -> bool {
    let count = headers.get("x-stainless-retry-count");
    count.is_some_and(|count| !matches!(count.as_bytes(), b"" | b"0"))
}

/// A copy of the headers that go on with a call; the others hold on to the connection's buffer.
fn belonging_to(format: CallFormat, headers: &HeaderMap) -> HeaderMap {
    let mut belonging = HeaderMap::new();
    let CallFormat::Dialect(dialect) = format else {
        return belonging;
    };
    for name in dialect.headers() {
        for value in headers.get_all(*name) {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                belonging.append(*name, value);
            }
        }
    }
    belonging
}

/// The run's policy, then the others by name; for a grader its judge alone.
fn models(dialect: Dialect, registry: &Registry, judge: Option<&Served>) -> Response {
    let names: Vec<String> = if let Some(judge) = judge {
        vec![judge.policy().describe().model]
    } else {
        let runs = registry.run_policy().policy().describe().model;
        let named = registry.named().into_iter().map(|(name, _)| name);
        std::iter::once(runs).chain(named).collect()
    };
    let list = model_list(dialect, &names);
    let mut response = Response::new(Body::from(list.to_string()));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
