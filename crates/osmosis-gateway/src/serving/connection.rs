//! Connections: accepting them, serving them, and noticing when a caller hangs up.
//!
//! Thousands of callers wait here while a policy thinks. The HTTP library would notice a hang-up by
//! reading ahead, for which it doubles every connection's buffer; we look at the socket instead.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::StreamExt;
use http_body::Body as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::options::ConnectionLimits;

/// How long to wait when the system has no more connections to give (open files, mostly).
const EXHAUSTED_WAIT: Duration = Duration::from_millis(100);

/// The HTTP library takes no smaller buffer.
const LEAST_BUFFER: usize = 8 << 10;

/// How often to look again while unread bytes hide a hang-up behind them.
const HIDDEN_WAIT: Duration = Duration::from_millis(100);

/// Serves connections until it is told to stop; then those that are busy finish. Every connection is one of
/// `tasks`. A request whose caller hangs up is dropped where it stands. `exhausted` hears of it when no connection
/// could be accepted for the time that the limits say.
pub async fn serve_connections<A, F>(
    listener: TcpListener,
    answer: A,
    limits: ConnectionLimits,
    tasks: TaskTracker,
    stop: CancellationToken,
    exhausted: impl Fn(&io::Error),
) where
    A: Fn(Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let mut failing_since = None;
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                failing_since = None;
                tasks.spawn(serve_connection(
                    stream,
                    answer.clone(),
                    limits,
                    stop.clone(),
                ));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection can't be accepted");
                let since = *failing_since.get_or_insert_with(Instant::now);
                let is_exhausted = matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::MFILE | Errno::NFILE)
                );
                if is_exhausted && since.elapsed() >= limits.exhausted {
                    exhausted(&error);
                }
                tokio::time::sleep(EXHAUSTED_WAIT).await;
            }
        }
    }
}

async fn serve_connection<A, F>(
    stream: TcpStream,
    answer: A,
    limits: ConnectionLimits,
    stop: CancellationToken,
) where
    A: Fn(Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    // Without it, small events of a stream wait for the acknowledgement of the one before.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let socket = Socket(Arc::new(stream));
    let turns = Turns::default();
    let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
        let answering = answer(request.map(Body::new));
        let socket = socket.clone();
        let reply = turns.begin_reply();
        // In a box of its own, it is gone when the reply begins; a stream may go on for minutes.
        Box::pin(async move {
            tokio::select! {
                biased;
                response = answering => {
                    Ok(response.map(|body| while_listened_to(body, socket, reply)))
                }
                () = socket.hung_up() => Err(HungUp),
            }
        })
    });
    let guarded = Guarded {
        socket: socket.clone(),
        limit: limits.stalled,
        stalled: None,
        turns: turns.clone(),
        head_limit: limits.head,
        head: None,
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // An agent may work for minutes between two calls, and keeps its connection meanwhile.
        .header_read_timeout(limits.idle)
        .max_buf_size(limits.buffer_bytes.max(LEAST_BUFFER))
        // The library shall not look for the end of a connection itself.
        .half_close(true)
        .serve_connection(TokioIo::new(guarded), service);
    let mut connection = pin!(connection);
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// The caller is gone; nobody reads this.
#[derive(Debug, thiserror::Error)]
#[error("the caller hung up")]
struct HungUp;

/// Whose turn it is on a connection: an even number is the caller's, who has to send the head of a request,
/// an odd one ours.
#[derive(Debug, Clone, Default)]
struct Turns(Arc<AtomicUsize>);

impl Turns {
    fn begin_reply(&self) -> ReplyTurn {
        self.0.fetch_add(1, Ordering::Relaxed);
        ReplyTurn(self.clone())
    }

    /// The caller's turn, if it is that.
    fn of_caller(&self) -> Option<usize> {
        let turn = self.0.load(Ordering::Relaxed);
        turn.is_multiple_of(2).then_some(turn)
    }
}

/// Kept until a reply has ended.
struct ReplyTurn(Turns);

impl Drop for ReplyTurn {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream ends when nobody listens any more; a whole body is on its way at once.
fn while_listened_to(body: Body, socket: Socket, reply: ReplyTurn) -> Body {
    if body.size_hint().exact().is_some() {
        return body;
    }
    let hung_up = async move {
        let _until_the_end = reply;
        socket.hung_up().await;
    };
    Body::from_stream(body.into_data_stream().take_until(hung_up))
}

/// A socket that can be looked at while the HTTP library owns it.
#[derive(Debug, Clone)]
struct Socket(Arc<TcpStream>);

impl Socket {
    /// Returns when the other side has closed.
    async fn hung_up(&self) {
        let mut byte = [0];
        loop {
            match self.0.peek(&mut byte).await {
                Ok(0) | Err(_) => return,
                // A body on its way, or a second request: the end is not in sight yet.
                Ok(_) => tokio::time::sleep(HIDDEN_WAIT).await,
            }
        }
    }
}

/// A socket whose other side has to take what is written, and to finish the head of a request that it has
/// begun, each within a limit.
struct Guarded {
    socket: Socket,
    limit: Duration,
    /// Set while nothing can be written.
    stalled: Option<Pin<Box<Sleep>>>,
    turns: Turns,
    head_limit: Duration,
    /// The head that has begun to come.
    head: Option<BegunHead>,
}

struct BegunHead {
    /// It is complete when the turn is another one.
    turn: usize,
    due: Instant,
    /// Made when there is something to wait for: most heads come in one piece.
    timer: Option<Pin<Box<Sleep>>>,
}

impl BegunHead {
    fn poll_due(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let due = self.due;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        timer.as_mut().poll(context)
    }
}

impl Guarded {
    fn poll_socket(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let socket = &self.socket.0;
        loop {
            ready!(socket.poll_write_ready(context))?;
            match socket.try_write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(turn) = self.turns.of_caller() else {
            return self.poll_bytes(context, buffer);
        };
        let before = buffer.filled().len();
        let read = self.poll_bytes(context, buffer);
        let has_come = buffer.filled().len() > before;
        let limit = self.head_limit;
        match &mut self.head {
            // Bytes may come one by one: each is looked at, and the wait for the next one too.
            Some(head) if head.turn == turn => {
                let late = if has_come {
                    Instant::now() >= head.due
                } else {
                    head.poll_due(context).is_ready()
                };
                if late {
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the head of a request takes too long",
                    )));
                }
            }
            none if has_come => {
                *none = Some(BegunHead {
                    turn,
                    due: Instant::now() + limit,
                    timer: None,
                });
            }
            none => *none = None,
        }
        read
    }
}

impl Guarded {
    fn poll_bytes(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = &self.socket.0;
        loop {
            ready!(socket.poll_read_ready(context))?;
            let room = buffer.remaining();
            let mut read = Ok(0);
            // Less than there was room for is all there was. The runtime is told so in its own way, or else
            // looking for a hang-up would ask the system for what is known.
            let told = socket.try_io(Interest::READABLE, || {
                read = socket.try_read_buf(buffer);
                match &read {
                    Ok(bytes) if (1..room).contains(bytes) => Err(io::ErrorKind::WouldBlock.into()),
                    Ok(_) => Ok(()),
                    Err(error) => Err(error.kind().into()),
                }
            });
            match read {
                // The socket was not ready after all.
                Ok(0) if told.is_err() => {}
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(done) = self.poll_socket(context, slices) {
            self.stalled = None;
            return Poll::Ready(done);
        }
        let limit = self.limit;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the caller does not read its reply",
        )))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is held back here.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(
            rustix::net::shutdown(&*self.socket.0, rustix::net::Shutdown::Write)
                .map_err(Into::into),
        )
    }
}
