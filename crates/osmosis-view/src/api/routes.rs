//! One function for each route.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use osmosis_core::Attempt;
use osmosis_store::CallBody;
use serde::Deserialize;

use super::{Api, ApiError};
use crate::artifact_file;
use crate::documents::CallPlace;
use crate::listing::ListQuery;
use crate::response::{self, ListEnvelope};

type Answer = Result<Response, ApiError>;
type Names<T> = Result<Path<T>, PathRejection>;
type QueryParameters<T> = Result<Query<T>, QueryRejection>;

fn names<T>(given: Names<T>) -> Result<T, ApiError> {
    given
        .map(|Path(names)| names)
        .map_err(|error| ApiError::usage(&error.body_text()))
}

fn parameters<T>(given: QueryParameters<T>) -> Result<T, ApiError> {
    given
        .map(|Query(query)| query)
        .map_err(|error| ApiError::usage(&error.body_text()))
}

pub(super) async fn runs(State(api): State<Api>) -> Answer {
    let runs = api.documents.runs().await?;
    let runs: Vec<_> = runs.iter().map(AsRef::as_ref).collect();
    Ok(response::json(response::list(&ListEnvelope::whole(runs))?))
}

pub(super) async fn run(State(api): State<Api>, path: Names<String>) -> Answer {
    Ok(response::json(api.documents.run(&names(path)?).await?))
}

pub(super) async fn grid(State(api): State<Api>, path: Names<String>) -> Answer {
    let grid = api.documents.grid(&names(path)?).await?;
    Ok(response::json(response::data(&*grid)?))
}

/// All rollouts that texts are found in, for the grid; the list is `rollouts`.
pub(super) async fn matches(
    State(api): State<Api>,
    path: Names<String>,
    query: QueryParameters<ListQuery>,
) -> Answer {
    let run = api.documents.open(&names(path)?).await?;
    let grid = api.documents.grid(&run.name).await?;
    let matches = api
        .documents
        .matches(&run, &parameters(query)?, &grid)
        .await?;
    Ok(response::json(response::data(&matches)?))
}

pub(super) async fn rollouts(
    State(api): State<Api>,
    path: Names<String>,
    query: QueryParameters<ListQuery>,
) -> Answer {
    let listed = api
        .documents
        .rollouts(&names(path)?, &parameters(query)?)
        .await?;
    Ok(response::json(response::list(&listed)?))
}

pub(super) async fn rollout(State(api): State<Api>, path: Names<(String, String)>) -> Answer {
    let (run, rollout) = names(path)?;
    Ok(response::json(api.documents.rollout(&run, &rollout).await?))
}

pub(super) async fn transcript(State(api): State<Api>, path: Names<(String, String)>) -> Answer {
    let (run, rollout) = names(path)?;
    Ok(response::json(
        api.documents.transcript(&run, &rollout).await?,
    ))
}

pub(super) async fn tokens(State(api): State<Api>, path: Names<(String, String)>) -> Answer {
    let (run, rollout) = names(path)?;
    Ok(response::json(api.documents.tokens(&run, &rollout).await?))
}

pub(super) async fn call(
    State(api): State<Api>,
    path: Names<(String, String, u32, CallSide)>,
) -> Answer {
    let (run, rollout, number, side) = names(path)?;
    let call = CallPlace {
        attempt: None,
        number,
    };
    let body = api.documents.call_body(&run, &rollout, call).await?;
    Ok(side.of(body))
}

pub(super) async fn earlier_call(
    State(api): State<Api>,
    path: Names<(String, String, u32, u32, CallSide)>,
) -> Answer {
    let (run, rollout, attempt, number, side) = names(path)?;
    let call = CallPlace {
        attempt: Some(Attempt(attempt)),
        number,
    };
    let body = api.documents.call_body(&run, &rollout, call).await?;
    Ok(side.of(body))
}

/// What of a call is wanted.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CallSide {
    Request,
    Reply,
}

impl CallSide {
    fn of(self, body: CallBody) -> Response {
        raw(match self {
            Self::Request => body.request,
            Self::Reply => body.response,
        })
    }
}

pub(super) async fn artifact(
    State(api): State<Api>,
    path: Names<(String, String, String)>,
) -> Answer {
    let (run, rollout, path) = names(path)?;
    let folder = api.documents.artifact_folder(&run, &rollout).await?;
    let kind = response::picture_type(&path);
    let read = tokio::task::spawn_blocking(move || artifact_file::read(&folder, &path));
    let bytes = read
        .await
        .map_err(|error| ApiError::internal(&error.to_string()))??;
    let Some(kind) = kind else {
        return Ok(raw(bytes.into()));
    };
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(kind))], bytes).into_response())
}

/// Bytes as they were recorded, which no browser takes for a page.
fn raw(bytes: Bytes) -> Response {
    let headers: [(HeaderName, HeaderValue); 2] = [
        (
            CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        ),
        (CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
    ];
    (headers, bytes).into_response()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RowsQuery {
    indices: String,
}

pub(super) async fn row_texts(
    State(api): State<Api>,
    path: Names<String>,
    query: QueryParameters<RowsQuery>,
) -> Answer {
    let indices = parameters(query)?.indices;
    let indices: Result<Vec<u64>, _> = indices.split(',').map(str::parse).collect();
    let indices =
        indices.map_err(|_| ApiError::usage("`indices` are row numbers, separated by commas"))?;
    let texts = api.documents.row_texts(&names(path)?, &indices).await?;
    Ok(response::json(response::list(&texts)?))
}

pub(super) async fn row(State(api): State<Api>, path: Names<(String, u64)>) -> Answer {
    let (run, row) = names(path)?;
    Ok(response::json(api.documents.row(&run, row).await?))
}

pub(super) async fn steps(State(api): State<Api>, path: Names<String>) -> Answer {
    let steps = api.documents.steps(&names(path)?).await?;
    let envelope = ListEnvelope::whole(steps.items);
    Ok(response::json(response::list(&envelope)?))
}

pub(super) async fn step(State(api): State<Api>, path: Names<(String, u64)>) -> Answer {
    let (run, step) = names(path)?;
    Ok(response::json(api.documents.step(&run, step).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CompareQuery {
    /// Separated by commas; each of the others is compared with the first.
    runs: String,
}

pub(super) async fn compare(
    State(api): State<Api>,
    query: QueryParameters<CompareQuery>,
) -> Answer {
    let runs = parameters(query)?.runs;
    let runs: Vec<&str> = runs.split(',').filter(|run| !run.is_empty()).collect();
    let comparison = api.documents.compare(&runs).await?;
    Ok(response::json(response::data(&comparison)?))
}
