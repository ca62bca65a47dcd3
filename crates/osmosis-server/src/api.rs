//! The HTTP side: which request is what, who may ask, and what the answers look like.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use osmosis_core::RolloutId;
use osmosis_engine::Cancellation;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::body;
use crate::refusal::{Problem, Refusal, json_response};
use crate::request::RolloutRequest;
use crate::shared::{Shared, Standing};

/// A request to cancel names rollouts; no more text than this is needed for that.
const MAX_CANCEL_BYTES: usize = 8 << 20;

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/rollout", post(accept))
        .route("/rollout/cancel", post(cancel))
        .route("/rollout/{rollout_id}/status", get(status))
        .fallback(async || Refusal::NotFound)
        .method_not_allowed_fallback(async || Refusal::WrongMethod)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), check))
        .with_state(shared)
}

/// Before a body is read.
async fn check(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    shared.guard.check(&request)?;
    Ok(next.run(request).await)
}

async fn accept(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let body = body::read(
        request.into_body(),
        shared.options.max_body_bytes,
        &shared.connections,
    )
    .await?;
    let request = RolloutRequest::parse(&body, &shared.relay)?;
    drop(body);
    request
        .check_addresses(&shared.options.address_rules)
        .await?;
    let id = request.id.clone();
    let status = shared.admit(request).await?;
    Ok(json_response(
        StatusCode::ACCEPTED,
        &json!({ "rollout_id": id, "status": status }),
    ))
}

async fn status(
    State(shared): State<Arc<Shared>>,
    Path(rollout_id): Path<String>,
) -> Result<Response, Refusal> {
    let standing = match RolloutId::new(&*rollout_id) {
        Ok(id) => shared.standing(&id).await?,
        Err(_) => None,
    };
    let standing = standing.unwrap_or(Standing::UNKNOWN);
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "rollout_id": rollout_id,
            "status": standing.status,
            "reward": standing.reward,
            "err_message": standing.err_message,
        }),
    ))
}

#[derive(Debug, Deserialize)]
struct CancelRequest {
    ids: Option<Vec<String>>,
    prefix: Option<String>,
    all: Option<bool>,
}

async fn cancel(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let body = body::read(request.into_body(), MAX_CANCEL_BYTES, &shared.connections).await?;
    let request: CancelRequest = serde_json::from_slice(&body).map_err(|error| {
        let msg = format!("must be an object with `ids`, `prefix` or `all`: {error}");
        Refusal::Invalid(vec![Problem::of_body("json_invalid", msg)])
    })?;
    let mut dispositions = Map::new();
    match (request.ids, request.prefix, request.all.unwrap_or(false)) {
        (Some(ids), None, false) => {
            for text in ids {
                let disposition = match RolloutId::new(&*text) {
                    Ok(id) => shared.cancel(&id).await?,
                    Err(_) => Cancellation::NotFound,
                };
                dispositions.insert(text, word(disposition));
            }
        }
        (None, Some(prefix), false) => {
            for (id, disposition) in shared
                .cancel_open(|id| id.as_str().starts_with(&prefix))
                .await?
            {
                dispositions.insert(id.into(), word(disposition));
            }
        }
        (None, None, true) => {
            for (id, disposition) in shared.cancel_open(|_| true).await? {
                dispositions.insert(id.into(), word(disposition));
            }
        }
        _ => {
            let msg = "exactly one of `ids`, `prefix` and `all` is needed";
            let problem = Problem::of_body("value_error", msg);
            return Err(Refusal::Invalid(vec![problem]));
        }
    }
    Ok(json_response(
        StatusCode::OK,
        &json!({ "dispositions": dispositions }),
    ))
}

fn word(disposition: Cancellation) -> Value {
    json!(match disposition {
        Cancellation::Running => "cancelled_running",
        Cancellation::Queued => "cancelled_queued",
        Cancellation::NotFound => "not_found",
    })
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let counts = shared.registry.counts();
    let options = &shared.options;
    let running = shared.engine.in_flight().min(counts.open);
    let capacity = options.max_in_flight + options.max_queued;
    let value = json!({
        "status": if counts.accepting { "ok" } else { "draining" },
        "process_id": shared.process_id,
        "capacity": {
            "max_in_flight": options.max_in_flight,
            "max_queued": options.max_queued,
            "running": running,
            "queued": counts.open - running,
            "free": capacity.saturating_sub(counts.open),
        },
        "callbacks": { "waiting": counts.undelivered },
        "waiting_for_keys": shared.waiting_for_keys(),
        "lifecycle": {
            "accepting_rollouts": counts.accepting,
            "active_rollouts": counts.open + counts.undelivered,
        },
    });
    json_response(StatusCode::OK, &value).into_response()
}
