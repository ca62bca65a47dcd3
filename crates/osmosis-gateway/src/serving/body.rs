//! Reading a request body: no more of it than is good for us, and not for longer.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http_body::Body as _;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// A caller that sends nothing for so long has forgotten us.
const IDLE_LIMIT: Duration = Duration::from_mins(1);
/// What a body may take besides the time that its bytes need.
const GRACE: Duration = Duration::from_secs(30);
/// Slower than this no body may come, after the grace.
const LEAST_BYTES_PER_SECOND: usize = 16 << 10;
/// What is read and thrown away of a body that is too large, so that the caller gets to read the answer.
const DISCARDED_BYTES: usize = 512 << 20;
/// How long a body is thrown away whose length was too large from the start.
const DISCARD_LIMIT: Duration = Duration::from_secs(5);
/// Our answer goes first: who asks whether to send a body at all must not be told to.
const ANSWER_FIRST: Duration = Duration::from_millis(50);
/// Bodies up to here are copied out of the connection's buffer.
const SMALL_BODY_BYTES: usize = 32 << 10;

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyError {
    TooLarge,
    TooSlow,
    Broken,
}

/// Reads a whole body, unless it has more than `limit` bytes. One that is declared to be larger is refused
/// before any of it is read; `tasks` then throws away what is on its way. The time it may take is bounded:
/// a minute between two pieces, and in all 30 s plus a second for every 16 KiB.
pub async fn read_body(body: Body, limit: usize, tasks: &TaskTracker) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > limit as u64 {
        tasks.spawn(discard(body));
        return Err(BodyError::TooLarge);
    }
    let began = Instant::now();
    let mut chunks = body.into_data_stream();
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    let mut length = 0_usize;
    loop {
        let deadline = (began + allowed_for(length)).min(Instant::now() + IDLE_LIMIT);
        let chunk = tokio::time::timeout_at(deadline, chunks.next())
            .await
            .map_err(|_| BodyError::TooSlow)?;
        let Some(chunk) = chunk else { break };
        let chunk = chunk.map_err(|_| BodyError::Broken)?;
        length = length.saturating_add(chunk.len());
        if length > limit {
            // Answering while the caller still sends would look to it like a broken connection.
            if length > limit.saturating_add(DISCARDED_BYTES) {
                break;
            }
            joined = BytesMut::new();
            first = Bytes::new();
        } else if first.is_empty() && joined.is_empty() {
            // Most bodies come in one piece. A small one is copied out of the connection's buffer,
            // which it would keep alive for as long as the policy thinks.
            first = if chunk.len() <= SMALL_BODY_BYTES {
                Bytes::copy_from_slice(&chunk)
            } else {
                chunk
            };
        } else {
            if joined.is_empty() {
                joined.extend_from_slice(&first);
            }
            joined.extend_from_slice(&chunk);
        }
    }
    if length > limit {
        Err(BodyError::TooLarge)
    } else if joined.is_empty() {
        Ok(first)
    } else {
        Ok(joined.freeze())
    }
}

/// How long so much of a body may take.
fn allowed_for(bytes: usize) -> Duration {
    GRACE + Duration::from_secs((bytes / LEAST_BYTES_PER_SECOND) as u64)
}

/// A caller that still sends when its connection is closed may never see the answer.
async fn discard(body: Body) {
    tokio::time::sleep(ANSWER_FIRST).await;
    let discarding = async {
        let mut chunks = body.into_data_stream();
        let mut length = 0;
        while let Some(Ok(chunk)) = chunks.next().await
            && length <= DISCARDED_BYTES
        {
            length += chunk.len();
        }
    };
    let _ = tokio::time::timeout(DISCARD_LIMIT, discarding).await;
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    /// One piece in every `pause`.
    fn dripping(pieces: usize, size: usize, pause: Duration) -> Body {
        Body::from_stream(stream::unfold(pieces, move |left| async move {
            if left == 0 {
                return None;
            }
            tokio::time::sleep(pause).await;
            let piece = Bytes::from(vec![b'x'; size]);
            Some((Ok::<_, std::io::Error>(piece), left - 1))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_is_given_up_and_a_slow_one_is_not() {
        let tasks = TaskTracker::new();
        let began = Instant::now();
        let drip = dripping(10_000, 1, Duration::from_secs(1));
        let read = read_body(drip, 1 << 20, &tasks).await;
        assert_eq!(read, Err(BodyError::TooSlow));
        assert!(began.elapsed() <= GRACE + Duration::from_secs(1));

        // 32 KiB a second, for five minutes.
        let slow = dripping(300, 32 << 10, Duration::from_secs(1));
        let read = read_body(slow, 100 << 20, &tasks).await.unwrap();
        assert_eq!(read.len(), 300 * (32 << 10));

        let stalled = dripping(2, 10 << 20, Duration::from_secs(61));
        let stalled = read_body(stalled, 100 << 20, &tasks).await;
        assert_eq!(stalled, Err(BodyError::TooSlow));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_declared_too_large_is_refused_unread() {
        let tasks = TaskTracker::new();
        let declared = Body::from(vec![b'x'; 11]);
        let began = Instant::now();
        let read = read_body(declared, 10, &tasks).await;
        assert_eq!(read, Err(BodyError::TooLarge));
        assert_eq!(began.elapsed(), Duration::ZERO);
        // Nobody waits for what follows, but it ends.
        tasks.spawn(discard(dripping(1_000, 1, Duration::from_secs(1))));
        tasks.close();
        tasks.wait().await;
        assert!(began.elapsed() < DISCARD_LIMIT * 2);

        let undeclared = dripping(2, 6, Duration::ZERO);
        let read = read_body(undeclared, 10, &tasks).await;
        assert_eq!(read, Err(BodyError::TooLarge));
        let fits = read_body(dripping(2, 5, Duration::ZERO), 10, &tasks).await;
        assert_eq!(fits.unwrap().len(), 10);
    }
}
