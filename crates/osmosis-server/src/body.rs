//! Reading a request body, and no more of it than is good for us.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

use crate::refusal::Refusal;

/// A caller that sends nothing for so long has forgotten us.
const IDLE_LIMIT: Duration = Duration::from_mins(1);
/// What is read and thrown away of a body that is too large, so that the caller gets to read the answer.
const DISCARDED_BYTES: usize = 512 << 20;

/// The whole body, unless it has more than `limit` bytes.
pub(crate) async fn read(body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let mut chunks = body.into_data_stream();
    let mut whole = BytesMut::new();
    let mut length = 0;
    loop {
        let Ok(chunk) = tokio::time::timeout(IDLE_LIMIT, chunks.next()).await else {
            return Err(Refusal::BrokenOff("the request body stopped coming"));
        };
        match chunk {
            None => break,
            Some(Err(_)) => return Err(Refusal::BrokenOff("the request body broke off")),
            Some(Ok(chunk)) => {
                length += chunk.len();
                if length <= limit {
                    whole.extend_from_slice(&chunk);
                } else {
                    whole = BytesMut::new();
                }
            }
        }
        if length > DISCARDED_BYTES.max(limit) {
            break;
        }
    }
    if length > limit {
        return Err(Refusal::TooLarge(format!(
            "the request body is larger than {limit} bytes, the most this server takes; send large data \
             by reference, in `metadata`"
        )));
    }
    Ok(whole.freeze())
}
