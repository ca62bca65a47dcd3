//! Batches for trainers in other processes, as part of the gateway's control API.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/training/batches?wait=S&after=N` | 200 and the oldest batch that is not acknowledged (JSON, or Arrow as `Accept` asks); 204 with `osmosis-waiting-for` when there is none in time |
//! | `POST /v1/training/batches/{number}/ack` | 200, also the second time; 404 for a number that there is not, 409 for a batch that nobody was given |
//!
//! What is given out and what was acknowledged is the [`BatchSource`]'s to know; here is the HTTP around it.

mod trainer_request;

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use axum::body::Body;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use osmosis_gateway::{ControlRefusal, ControlService};
use osmosis_train::TrainError;
use osmosis_train::delivery::{Acknowledged, BatchSource, DeliveredBatch, NextBatch, to_arrow};
use serde_json::json;

use self::trainer_request::{ARROW, Form, Poll, TrainerRequest};

/// Says why there is no batch.
const WAITING_FOR: &str = "osmosis-waiting-for";
/// The number of the batch in the body, for those who do not want to look there.
const BATCH: &str = "osmosis-batch";
/// The version that the batch is for.
const VERSION: &str = "osmosis-version";

/// Serves [`BatchService::PATH`] of a gateway's control API.
///
/// It is there before the registry is, so that a trainer that comes too early is told to come again.
#[derive(Debug, Default)]
pub struct BatchService {
    registry: OnceLock<Arc<dyn BatchSource>>,
}

impl BatchService {
    /// Where it belongs, in `GatewayOptions::services`.
    pub const PATH: &'static str = "/v1/training";

    /// From now on batches are to be had. The first registry stays.
    pub fn open(&self, registry: Arc<dyn BatchSource>) {
        let _ = self.registry.set(registry);
    }

    fn registry(&self) -> Result<&dyn BatchSource, ControlRefusal> {
        let registry = self.registry.get();
        registry
            .map(|registry| &**registry)
            .ok_or_else(|| not_now("starting", "the engine is starting; ask again in a moment"))
    }

    async fn batch(&self, poll: Poll) -> Result<Response, ControlRefusal> {
        let registry = self.registry()?;
        let until = tokio::time::Instant::now() + poll.wait;
        loop {
            let wait = until.saturating_duration_since(tokio::time::Instant::now());
            let handed = registry.next(poll.after, wait).await;
            match handed.map_err(|error| failed(&error))? {
                NextBatch::Batch(batch) => {
                    let number = batch.number;
                    let response = written(batch, poll.form).await?;
                    // Writing takes a while, in which another client may have acknowledged it.
                    if registry.is_outstanding(number) {
                        return Ok(response);
                    }
                }
                NextBatch::Nothing(waiting_for) => {
                    let mut response = Response::new(Body::empty());
                    *response.status_mut() = StatusCode::NO_CONTENT;
                    let reason = HeaderValue::from_static(waiting_for.as_str());
                    response.headers_mut().insert(WAITING_FOR, reason);
                    return Ok(response);
                }
                NextBatch::Stopping => return Err(stopping()),
            }
        }
    }

    async fn acknowledge(&self, number: u64) -> Result<Response, ControlRefusal> {
        let done = self.registry()?.acknowledge(number).await;
        let again = match done.map_err(|error| failed(&error))? {
            Acknowledged::Now => false,
            Acknowledged::Before => true,
            Acknowledged::Stopping => return Err(stopping()),
            Acknowledged::NotHandedOut => {
                return Err(ControlRefusal::new(
                    StatusCode::CONFLICT,
                    "conflict",
                    format!("batch {number} was not given to anybody yet; ask for it first"),
                ));
            }
            Acknowledged::Unknown => {
                return Err(ControlRefusal::new(
                    StatusCode::NOT_FOUND,
                    "unknown_batch",
                    format!("there is no batch {number}"),
                ));
            }
        };
        let body = json!({ "number": number, "acknowledged": true, "again": again });
        Ok(whole("application/json", body.to_string().into_bytes()))
    }
}

#[async_trait]
impl ControlService for BatchService {
    async fn serve(&self, parts: Parts, _body: Body) -> Result<Response, ControlRefusal> {
        let below = parts.uri.path().strip_prefix(Self::PATH);
        let asked = TrainerRequest::at(below.unwrap_or_default()).ok_or_else(|| {
            ControlRefusal::new(
                StatusCode::NOT_FOUND,
                "unknown_url",
                format!(
                    "there is no `{}`; batches are at `/v1/training/batches`, and \
                     `/v1/training/batches/NUMBER/ack`",
                    parts.uri.path()
                ),
            )
        })?;
        match (asked, parts.method) {
            (TrainerRequest::Batches, Method::GET) => {
                let poll = Poll::read(parts.uri.query(), &parts.headers)?;
                self.batch(poll).await
            }
            (TrainerRequest::Acknowledgement(number), Method::POST) => {
                self.acknowledge(number).await
            }
            (TrainerRequest::Batches, _) => Err(wrong_method("batches are asked for with GET")),
            (TrainerRequest::Acknowledgement(_), _) => {
                Err(wrong_method("a batch is acknowledged with POST"))
            }
        }
    }
}

/// The batch in the form that was asked for. A large one takes a while to write.
async fn written(batch: Arc<DeliveredBatch>, form: Form) -> Result<Response, ControlRefusal> {
    let (number, version) = (batch.number, batch.version.0);
    let (content_type, writing) = match form {
        Form::Json => (
            "application/json",
            tokio::task::spawn_blocking(move || {
                serde_json::to_vec(&*batch).map_err(|error| {
                    TrainError::Internal(format!("a batch has no JSON form: {error}"))
                })
            }),
        ),
        Form::Arrow => (ARROW, tokio::task::spawn_blocking(move || to_arrow(&batch))),
    };
    let written = writing.await.unwrap_or_else(|_| {
        let message = "writing a batch failed; the log says more";
        Err(TrainError::Internal(message.to_owned()))
    });
    let body = written.map_err(|error| failed(&error))?;
    let mut response = whole(content_type, body);
    let headers = response.headers_mut();
    headers.insert(BATCH, HeaderValue::from(number));
    headers.insert(VERSION, HeaderValue::from(version));
    Ok(response)
}

fn whole(content_type: &'static str, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    let content_type = HeaderValue::from_static(content_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}

fn stopping() -> ControlRefusal {
    not_now(
        "stopping",
        "the engine is stopping; ask again when it runs again",
    )
}

fn not_now(code: &'static str, message: &str) -> ControlRefusal {
    ControlRefusal {
        retry_after: Some(1),
        ..ControlRefusal::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }
}

fn wrong_method(message: &str) -> ControlRefusal {
    ControlRefusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        message,
    )
}

fn failed(error: &TrainError) -> ControlRefusal {
    tracing::error!(%error, "a trainer's request failed");
    let message = match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    };
    ControlRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message)
}
