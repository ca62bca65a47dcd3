//! Reading a request body, in our own words when there is none.

use axum::body::Body;
use bytes::Bytes;
use osmosis_gateway::{BodyError, read_body};
use tokio_util::task::TaskTracker;

use crate::refusal::Refusal;

/// The whole body, unless it has more than `limit` bytes or takes too long.
pub(crate) async fn read(body: Body, limit: usize, tasks: &TaskTracker) -> Result<Bytes, Refusal> {
    read_body(body, limit, tasks).await.map_err(|error| match error {
        BodyError::TooLarge => Refusal::TooLarge(format!(
            "the request body is larger than {limit} bytes, the most this server takes; send large data \
             by reference, in `metadata`"
        )),
        BodyError::TooSlow => Refusal::TooSlow,
        BodyError::Broken => Refusal::BrokenOff("the request body broke off"),
    })
}
