//! The API: `/api/v1/…`, read-only. `docs/view.md` lists the routes.

mod error;
mod events;
mod routes;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use http::StatusCode;

pub(crate) use error::ApiError;

use crate::documents::Documents;
use crate::ending::ViewerEnd;

/// What the routes share.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    documents: Arc<Documents>,
    end: ViewerEnd,
}

pub(crate) fn router(documents: Arc<Documents>, end: ViewerEnd) -> Router {
    const ROLLOUT: &str = "/runs/{run}/rollouts/{rollout}";
    let below = |rest: &str| format!("{ROLLOUT}{rest}");
    Router::new()
        .route("/runs", get(routes::runs))
        .route("/events", get(events::of_all))
        .route("/runs/{run}", get(routes::run))
        .route("/runs/{run}/grid", get(routes::grid))
        .route("/runs/{run}/matches", get(routes::matches))
        .route("/runs/{run}/rollouts", get(routes::rollouts))
        .route(ROLLOUT, get(routes::rollout))
        .route(&below("/transcript"), get(routes::transcript))
        .route(&below("/tokens"), get(routes::tokens))
        .route(&below("/calls/{call}/{side}"), get(routes::call))
        .route(
            &below("/attempts/{attempt}/calls/{call}/{side}"),
            get(routes::earlier_call),
        )
        .route(&below("/artifacts/{*path}"), get(routes::artifact))
        .route("/runs/{run}/rows", get(routes::row_texts))
        .route("/runs/{run}/rows/{row}", get(routes::row))
        .route("/runs/{run}/steps", get(routes::steps))
        .route("/runs/{run}/steps/{step}", get(routes::step))
        .route("/runs/{run}/events", get(events::of_run))
        .route("/compare", get(routes::compare))
        .fallback(unknown)
        .with_state(Api { documents, end })
}

pub(crate) async fn unknown() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is no such route")
        .hint("docs/view.md lists the routes")
}
