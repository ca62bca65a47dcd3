//! The events of a stream that have come already go on in one piece: a server that sends many at once is
//! read in few steps, and each piece costs a write to the caller and a packet.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, poll, stream};
use tokio::time::timeout;

use crate::policy::Fault;

/// A piece that has this many bytes waits for no more.
const PIECE_BYTES: usize = 16 << 10;

/// How often to look again, in vain, for what follows. The HTTP library asks a second time before it lets
/// others run, so the first of them is for nothing.
const LOOKS: u32 = 2;

/// What is to come of a stream.
enum Rest<S> {
    Chunks {
        chunks: S,
        silent: Fault,
        cut: Fault,
    },
    Fault(Fault),
    Nothing,
}

/// Passes a stream on until it ends, breaks (`cut`) or falls silent (`silent`).
pub(super) fn with_idle_limit<E>(
    chunks: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    limit: Duration,
    silent: Fault,
    cut: Fault,
) -> impl Stream<Item = Result<Bytes, Fault>> + Send
where
    E: Send + 'static,
{
    let rest = Rest::Chunks {
        chunks: Box::pin(chunks),
        silent,
        cut,
    };
    stream::unfold(rest, move |rest| async move {
        let (mut chunks, silent, cut) = match rest {
            Rest::Chunks {
                chunks,
                silent,
                cut,
            } => (chunks, silent, cut),
            Rest::Fault(fault) => return Some((Err(fault), Rest::Nothing)),
            Rest::Nothing => return None,
        };
        match timeout(limit, chunks.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(chunk))) => {
                let (piece, next) = with_what_came(chunk, &mut chunks).await;
                let rest = match next {
                    Next::Unknown => Rest::Chunks {
                        chunks,
                        silent,
                        cut,
                    },
                    Next::Error(_) => Rest::Fault(cut),
                    Next::End => Rest::Nothing,
                };
                Some((Ok(piece), rest))
            }
            Ok(Some(Err(_))) => Some((Err(cut), Rest::Nothing)),
            Err(_) => Some((Err(silent), Rest::Nothing)),
        }
    })
}

/// What followed when the piece was complete.
#[derive(Debug, PartialEq, Eq)]
enum Next<E> {
    /// Nothing yet.
    Unknown,
    Error(E),
    End,
}

/// `first`, and what has come by now of what follows it. Waits for nothing but its turn: whoever reads
/// the connection hands over one event at a time, and gets to run before the last look for another.
async fn with_what_came<E>(
    first: Bytes,
    chunks: &mut (impl Stream<Item = Result<Bytes, E>> + Unpin),
) -> (Bytes, Next<E>) {
    let mut joined = BytesMut::new();
    let mut looks = 0;
    let next = loop {
        match poll!(chunks.next()) {
            Poll::Ready(Some(Ok(chunk))) => {
                if joined.is_empty() {
                    joined.extend_from_slice(&first);
                }
                joined.extend_from_slice(&chunk);
                looks = 0;
                if joined.len() >= PIECE_BYTES {
                    break Next::Unknown;
                }
            }
            Poll::Ready(Some(Err(error))) => break Next::Error(error),
            Poll::Ready(None) => break Next::End,
            Poll::Pending if looks == LOOKS => break Next::Unknown,
            Poll::Pending => {
                looks += 1;
                a_turn().await;
            }
        }
    };
    let piece = if joined.is_empty() {
        first
    } else {
        joined.freeze()
    };
    (piece, next)
}

/// Lets those run who are ready to. (`yield_now` would look for new input too, which is a system call.)
async fn a_turn() {
    let mut over = false;
    poll_fn(|context| {
        if std::mem::replace(&mut over, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &'static str) -> Poll<Result<Bytes, &'static str>> {
        Poll::Ready(Ok(Bytes::from_static(text.as_bytes())))
    }

    /// A stream that answers each look like this, then ends.
    async fn after(
        looks: &[Poll<Result<Bytes, &'static str>>],
    ) -> (Bytes, Next<&'static str>, usize) {
        let mut left = looks.iter().cloned();
        let mut chunks = stream::poll_fn(|context| match left.next() {
            Some(Poll::Pending) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Poll::Ready(item)) => Poll::Ready(Some(item)),
            None => Poll::Ready(None),
        });
        let first = Bytes::from_static(b"a");
        let (piece, next) = with_what_came(first, &mut chunks).await;
        drop(chunks);
        (piece, next, left.len())
    }

    #[tokio::test]
    async fn what_has_come_goes_on_in_one_piece() {
        let (piece, next, left) = after(&[
            chunk("b"),
            Poll::Pending,
            Poll::Pending,
            chunk("c"),
            Poll::Pending,
            Poll::Pending,
            Poll::Pending,
            chunk("d"),
        ])
        .await;
        assert_eq!((&piece[..], next, left), (&b"abc"[..], Next::Unknown, 1));
    }

    #[tokio::test]
    async fn what_has_not_come_is_not_waited_for() {
        let (piece, next, left) =
            after(&[Poll::Pending, Poll::Pending, Poll::Pending, chunk("b")]).await;
        assert_eq!((&piece[..], next, left), (&b"a"[..], Next::Unknown, 1));
    }

    #[tokio::test]
    async fn an_end_and_an_error_come_after_the_piece() {
        let (piece, next, _) = after(&[chunk("b")]).await;
        assert_eq!((&piece[..], next), (&b"ab"[..], Next::End));
        let (piece, next, _) = after(&[chunk("b"), Poll::Ready(Err("broken"))]).await;
        assert_eq!((&piece[..], next), (&b"ab"[..], Next::Error("broken")));
    }

    #[tokio::test]
    async fn a_piece_has_its_limit() {
        let text: &'static str = "x".repeat(PIECE_BYTES).leak();
        let (piece, next, left) = after(&[chunk(text), chunk("b")]).await;
        assert_eq!(piece.len(), PIECE_BYTES + 1);
        assert_eq!((next, left), (Next::Unknown, 1));
    }
}
