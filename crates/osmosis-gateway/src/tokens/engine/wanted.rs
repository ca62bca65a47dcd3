//! Waiting on behalf of a sink.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use osmosis_core::generation::TokenSink;
use tokio_util::sync::CancellationToken;

/// Why something is not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotWanted {
    /// Nobody wants more tokens.
    Unwanted,
    ShutDown,
}

/// Waits for `work`, unless nobody wants what comes of it.
pub(crate) async fn while_wanted<T>(
    sink: &mut dyn TokenSink,
    stop: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, NotWanted> {
    let mut stopped = pin!(stop.cancelled());
    let mut work = pin!(work);
    poll_fn(|context| {
        if sink.poll_unwanted(context).is_ready() {
            return Poll::Ready(Err(NotWanted::Unwanted));
        }
        if stopped.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(NotWanted::ShutDown));
        }
        work.as_mut().poll(context).map(Ok)
    })
    .await
}
