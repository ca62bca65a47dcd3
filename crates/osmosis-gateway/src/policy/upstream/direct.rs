//! Plain HTTP/1 to one server, which most calls take. It knows no TLS, no proxy and no redirect, and costs
//! half of what a general client does: no pool is looked up, no address parsed, no task started for a call.
//! A connection has no task of its own either: whoever waits for its reply keeps it going, which saves
//! waking another task, and being woken by it, at every step of a call.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::service::Service as _;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::endpoint::Unsent;
use super::reply::error_chain;

/// A connection that nobody used for so long is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// Connections to one server.
pub(crate) struct DirectClient {
    server: Uri,
    connector: TowerToHyperService<HttpConnector>,
    /// In steps of so many bytes it reads; `None` is steps that grow with what comes.
    read_step: Option<usize>,
    idle: Mutex<Idle>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Idle {
    /// The one that was used last is at the end.
    lines: Vec<IdleLine>,
    /// Somebody closes those that are idle for too long.
    is_watched: bool,
}

struct IdleLine {
    line: Line,
    since: Instant,
}

type Connection = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// A connection, which moves only while somebody works on it.
struct Line {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once it has ended.
    connection: Option<Pin<Box<Connection>>>,
}

impl Line {
    /// Reads and writes what can be; who asks is woken when there is more to do.
    fn work(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            // What went wrong here, if anything, fails the call too.
            self.connection = None;
        }
    }

    /// Whether another request can be sent. What has come is taken in first.
    fn is_free(&mut self) -> bool {
        let worked = pin!(unconstrained(poll_fn(|context| {
            self.work(context);
            Poll::Ready(())
        })));
        let _ = worked.poll(&mut Context::from_waker(Waker::noop()));
        self.connection.is_some() && self.sender.is_ready()
    }
}

impl DirectClient {
    pub(super) fn new(
        server: Uri,
        connector: HttpConnector,
        read_step: Option<usize>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            connector: TowerToHyperService::new(connector),
            read_step,
            idle: Mutex::default(),
            tasks: TaskTracker::new(),
        })
    }

    /// Sends a request, whose URI is a path; an error is in words.
    pub(crate) async fn send(
        self: &Arc<Self>,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<DirectBody>, Unsent> {
        loop {
            let (mut line, is_used) = match self.take_idle() {
                Some(line) => (line, true),
                None => (self.connect().await?, false),
            };
            let mut answer = pin!(line.sender.try_send_request(request));
            let answer = poll_fn(|context| {
                line.work(context);
                answer.as_mut().poll(context)
            });
            let mut failed = match answer.await {
                Ok(response) => {
                    return Ok(response.map(|incoming| DirectBody {
                        incoming: Some(incoming),
                        line: Some((Arc::clone(self), line)),
                    }));
                }
                Err(failed) => failed,
            };
            match failed.take_message() {
                // The server closed it while it was idle, and nothing was sent.
                Some(unsent) if is_used => request = unsent,
                Some(_) | None => {
                    return Err(Unsent {
                        connected: true,
                        message: error_chain(failed.error()),
                    });
                }
            }
        }
    }

    fn take_idle(&self) -> Option<Line> {
        loop {
            let mut line = self.idle.lock().lines.pop()?.line;
            if line.is_free() {
                return Some(line);
            }
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<Line, Unsent> {
        let unreachable = |message| Unsent {
            connected: false,
            message,
        };
        let stream = self.connector.call(self.server.clone()).await;
        let stream = stream.map_err(|error| unreachable(error_chain(&error)))?;
        let (sender, connection) = http1::Builder::new()
            .read_buf_exact_size(self.read_step)
            .handshake(stream)
            .await
            .map_err(|error| unreachable(error_chain(&error)))?;
        self.watch_idle();
        Ok(Line {
            sender,
            connection: Some(Box::pin(connection)),
        })
    }

    /// Starts to close connections that are idle for too long, unless somebody does already.
    fn watch_idle(self: &Arc<Self>) {
        if std::mem::replace(&mut self.idle.lock().is_watched, true) {
            return;
        }
        let client = Arc::downgrade(self);
        self.tasks.spawn(async move {
            loop {
                tokio::time::sleep(IDLE_LIMIT).await;
                let Some(client) = client.upgrade() else {
                    return;
                };
                client.close_idle(IDLE_LIMIT);
            }
        });
    }

    /// Closes the connections that nobody used for so long, and those that the server has closed.
    fn close_idle(&self, limit: Duration) {
        let mut idle = self.idle.lock();
        idle.lines
            .retain_mut(|idle| idle.since.elapsed() < limit && idle.line.is_free());
    }

    fn take_back(&self, mut line: Line) {
        if line.is_free() {
            self.idle.lock().lines.push(IdleLine {
                line,
                since: Instant::now(),
            });
        }
    }
}

impl fmt::Debug for DirectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectClient").finish_non_exhaustive()
    }
}

/// A reply on its way. Its connection can be used again when it is read, or when its end is here already.
pub(crate) struct DirectBody {
    /// `None` once it is read.
    incoming: Option<Incoming>,
    line: Option<(Arc<DirectClient>, Line)>,
}

impl DirectBody {
    fn give_line_back(&mut self) {
        // The connection sees that nobody wants the rest. It reads what has come of that itself; when more
        // is to come, it is not free and ends here.
        self.incoming = None;
        if let Some((client, line)) = self.line.take() {
            client.take_back(line);
        }
    }
}

impl Body for DirectBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { incoming, line } = &mut *self;
        let Some(incoming) = incoming else {
            return Poll::Ready(None);
        };
        // The connection reads on once it was asked: the first look may ask, the second finds.
        let mut frame = Poll::Pending;
        for _ in 0..2 {
            if let Some((_, line)) = line {
                line.work(context);
            }
            frame = Pin::new(&mut *incoming).poll_frame(context);
            if frame.is_ready() {
                break;
            }
        }
        match &frame {
            Poll::Pending => {}
            Poll::Ready(Some(Err(_))) => self.line = None,
            Poll::Ready(Some(Ok(_))) if !incoming.is_end_stream() => {}
            Poll::Ready(Some(Ok(_)) | None) => self.give_line_back(),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.incoming {
            Some(incoming) => incoming.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Drop for DirectBody {
    fn drop(&mut self) {
        // Who stops after the last event leaves the end of the reply unread.
        self.give_line_back();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;

    use super::*;

    /// What the server does with a request that came.
    #[derive(Debug, Clone, Copy)]
    enum Reply {
        Whole,
        /// A stream, its end in the same packet.
        Stream,
        /// A stream whose end does not come.
        Endless,
        WholeThenClose,
    }

    /// A server that replies like this on each of its connections, and says how many it accepted.
    async fn server(
        replies: &'static [Reply],
    ) -> (Arc<DirectClient>, mpsc::Receiver<()>, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (accepted, accepts) = mpsc::channel(8);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            let mut left = replies.iter().copied();
            while let Ok((mut stream, _)) = listener.accept().await {
                accepted.send(()).await.unwrap();
                // Connections come one after the other here: each takes what is left of the replies.
                let mut mine = left.clone();
                left.next();
                connections.spawn(async move {
                    let mut bytes = [0; 1024];
                    while let Ok(1..) = stream.read(&mut bytes).await {
                        let Some(reply) = mine.next() else { return };
                        let text = match reply {
                            Reply::Whole | Reply::WholeThenClose => {
                                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
                            }
                            Reply::Stream => {
                                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
                            }
                            Reply::Endless => {
                                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"
                            }
                        };
                        stream.write_all(text.as_bytes()).await.unwrap();
                        if matches!(reply, Reply::WholeThenClose) {
                            return;
                        }
                    }
                });
            }
        });
        let uri = format!("http://{address}").parse().unwrap();
        let client = DirectClient::new(uri, HttpConnector::new(), None);
        (client, accepts, tasks)
    }

    fn request() -> Request<Full<Bytes>> {
        Request::post("/v1")
            .header("host", "h")
            .body(Full::new(Bytes::from_static(b"{}")))
            .unwrap()
    }

    async fn ask(client: &Arc<DirectClient>) -> Bytes {
        let response = client.send(request()).await.ok().unwrap();
        response.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn calls_one_after_the_other_share_a_connection() {
        let (client, mut accepts, _server) =
            server(&[Reply::Whole, Reply::Stream, Reply::Whole]).await;
        for _ in 0..3 {
            assert_eq!(ask(&client).await, "ok");
        }
        accepts.recv().await.unwrap();
        assert!(accepts.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_reply_whose_end_is_left_unread_keeps_its_connection() {
        let (client, mut accepts, _server) = server(&[Reply::Stream, Reply::Whole]).await;
        let response = client.send(request()).await.ok().unwrap();
        let mut body = response.into_body();
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "ok");
        drop(body);
        assert_eq!(ask(&client).await, "ok");
        accepts.recv().await.unwrap();
        assert!(accepts.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_reply_that_goes_on_takes_its_connection_with_it() {
        let (client, mut accepts, _server) = server(&[Reply::Endless, Reply::Whole]).await;
        let response = client.send(request()).await.ok().unwrap();
        let mut body = response.into_body();
        body.frame().await.unwrap().unwrap();
        drop(body);
        assert_eq!(ask(&client).await, "ok");
        accepts.recv().await.unwrap();
        accepts.recv().await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_meanwhile_is_replaced() {
        let (client, mut accepts, _server) = server(&[Reply::WholeThenClose, Reply::Whole]).await;
        assert_eq!(ask(&client).await, "ok");
        let is_free = |idle: &mut IdleLine| idle.line.is_free();
        while client.idle.lock().lines.iter_mut().any(is_free) {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(&client).await, "ok");
        accepts.recv().await.unwrap();
        accepts.recv().await.unwrap();
    }

    #[tokio::test]
    async fn bodies_that_fit_no_buffer_go_both_ways() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let echo = hyper::service::service_fn(|request: Request<Incoming>| async move {
                let body = request.into_body().collect().await?.to_bytes();
                Ok::<_, hyper::Error>(Response::new(Full::new(body)))
            });
            // One connection: a second would be refused.
            drop(listener);
            let connection = hyper::server::conn::http1::Builder::new();
            let _ = connection
                .serve_connection(TokioIo::new(stream), echo)
                .await;
        });
        let client = DirectClient::new(uri.parse().unwrap(), HttpConnector::new(), Some(4096));
        let long: Bytes = (0..=250)
            .cycle()
            .take(3_000_001)
            .collect::<Vec<u8>>()
            .into();
        for body in [long.clone(), Bytes::new(), long] {
            let request = Request::post("/v1").header("host", "h");
            let request = request.body(Full::new(body.clone())).unwrap();
            let response = client.send(request).await.ok().unwrap();
            let echoed = response.into_body().collect().await.unwrap().to_bytes();
            assert!(echoed == body, "{} bytes", body.len());
        }
    }

    #[tokio::test]
    async fn nobody_there_is_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let client = DirectClient::new(uri.parse().unwrap(), HttpConnector::new(), None);
        let unsent = client.send(request()).await.err().unwrap();
        assert!(!unsent.connected);
    }

    #[tokio::test]
    async fn a_connection_that_nobody_uses_is_closed_in_the_end() {
        let (client, mut accepts, _server) = server(&[Reply::Whole, Reply::Whole]).await;
        assert_eq!(ask(&client).await, "ok");
        client.close_idle(IDLE_LIMIT);
        assert_eq!(client.idle.lock().lines.len(), 1);
        client.close_idle(Duration::ZERO);
        assert!(client.idle.lock().lines.is_empty());
        assert_eq!(ask(&client).await, "ok");
        accepts.recv().await.unwrap();
        accepts.recv().await.unwrap();
    }
}
