//! Where workers dial in. Only the process that we gave a token to is let in with it, once per channel. A token in other
//! hands is an intrusion, after which nothing is believed any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use osmosis_core::frame::{Channel, FromWorker, Hello, PROTOCOL_VERSION, ToWorker};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{FrameReader, ReadError, WriteHalf, frame_bytes};
use super::intrusion::Intrusion;
use super::output::OutputSink;
use super::peer::{Admissible, Holder, Peer};
use super::socket_folder::SocketFolder;
use crate::endpoint::{Endpoint, Listen, advertised};
use crate::user::WorkerIdentity;

/// How long a connection may take to say who it is.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// A hello is small; nobody unknown makes us read more.
const HELLO_BYTES: usize = 64 * 1024;

/// Connections that have not said who they are yet; more have to queue.
const MAX_STRANGERS: usize = 64;

#[derive(Debug)]
pub(super) struct Listener {
    /// What workers dial.
    endpoint: Endpoint,
    expected: Mutex<HashMap<String, Expected>>,
    /// Tokens that open nothing any more.
    void: Mutex<HashMap<String, VoidToken>>,
    intrusion: watch::Sender<Option<Intrusion>>,
    /// Holds the socket; removed when the listener goes.
    folder: Mutex<Option<SocketFolder>>,
}

#[derive(Debug, Clone, Copy)]
enum VoidToken {
    /// Its process was given up before it came: who brings it is late.
    GivenUp,
    /// This worker used it.
    Used { worker: u64 },
}

#[derive(Debug)]
struct Expected {
    worker: u64,
    holder: watch::Sender<Holder>,
    /// Taken by the first control connection.
    control: Option<oneshot::Sender<Arrival>>,
    /// Taken by the first output connection.
    output: Option<Arc<OutputSink>>,
}

/// What became of a process that was expected.
#[derive(Debug)]
pub(super) enum Arrival {
    Welcome(Box<Caller>),
    WrongProtocol { found: u32 },
}

/// A process that said hello on its control channel.
#[derive(Debug)]
pub(super) struct Caller {
    /// As the kernel says, else as it says itself.
    pub(super) pid: u32,
    pub(super) hello: Hello,
    pub(super) reader: FrameReader,
    pub(super) writer: Writer,
}

pub(super) struct Writer(pub(super) WriteHalf);

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

/// One process is expected while this is held; its output channel may come at any time.
#[derive(Debug)]
pub(super) struct Expectation {
    listener: Arc<Listener>,
    token: String,
}

impl Expectation {
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// From now on only `holder` is let in with the token; whoever came before waits for this.
    pub(super) fn give_to(&self, holder: Holder) {
        if let Some(entry) = self.listener.expected.lock().get(&self.token) {
            entry.holder.send_replace(holder);
        }
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        let Some(left) = self.listener.expected.lock().remove(&self.token) else {
            return;
        };
        let void = if left.control.is_some() || left.output.is_some() {
            VoidToken::GivenUp
        } else {
            VoidToken::Used {
                worker: left.worker,
            }
        };
        let token = std::mem::take(&mut self.token);
        self.listener.void.lock().insert(token, void);
    }
}

enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

struct Connection {
    peer: Peer,
    reader: FrameReader,
    writer: WriteHalf,
}

impl Listener {
    /// Starts to listen, until `close` is cancelled.
    pub(super) async fn open(
        listen: Listen,
        user: Option<&WorkerIdentity>,
        tasks: &TaskTracker,
        close: CancellationToken,
    ) -> std::io::Result<Arc<Self>> {
        let (socket, endpoint, folder) = match listen {
            Listen::PrivateSocket => {
                let folder = SocketFolder::create(user)?;
                let path = folder.socket();
                let listener = UnixListener::bind(&path)?;
                if let Some(user) = user {
                    folder.hand_socket_to(user)?;
                }
                (Socket::Unix(listener), Endpoint::Unix(path), Some(folder))
            }
            Listen::Tcp {
                bind,
                advertised_host,
            } => {
                let listener = TcpListener::bind(bind).await?;
                let endpoint = advertised(listener.local_addr()?, advertised_host);
                (Socket::Tcp(listener), endpoint, None)
            }
        };
        let listener = Arc::new(Self {
            endpoint,
            expected: Mutex::default(),
            void: Mutex::default(),
            intrusion: watch::Sender::new(None),
            folder: Mutex::new(folder),
        });
        tasks.spawn({
            let listening = Arc::clone(&listener);
            let tasks = tasks.clone();
            async move {
                close
                    .run_until_cancelled(listening.answer(socket, &tasks, &close))
                    .await;
                listening.remove_folder();
            }
        });
        Ok(listener)
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Resolves when somebody dialled with a token that is not theirs.
    pub(super) async fn intruded(&self) -> Intrusion {
        let mut intrusion = self.intrusion.subscribe();
        loop {
            if let Some(intrusion) = intrusion.borrow_and_update().clone() {
                return intrusion;
            }
            // The sender is ours.
            drop(intrusion.changed().await);
        }
    }

    pub(super) fn intrusion(&self) -> Option<Intrusion> {
        self.intrusion.borrow().clone()
    }

    /// Lets in the one process that brings this token, once it is known.
    pub(super) fn expect(
        self: &Arc<Self>,
        token: String,
        worker: u64,
        output: Arc<OutputSink>,
    ) -> (Expectation, oneshot::Receiver<Arrival>) {
        let (control, arrival) = oneshot::channel();
        self.expected.lock().insert(
            token.clone(),
            Expected {
                worker,
                holder: watch::Sender::new(Holder::NotStarted),
                control: Some(control),
                output: Some(output),
            },
        );
        let expectation = Expectation {
            listener: Arc::clone(self),
            token,
        };
        (expectation, arrival)
    }

    /// Nobody can dial in any more.
    pub(super) fn remove_folder(&self) {
        drop(self.folder.lock().take());
    }

    async fn answer(
        self: &Arc<Self>,
        socket: Socket,
        tasks: &TaskTracker,
        close: &CancellationToken,
    ) {
        let strangers = Arc::new(Semaphore::new(MAX_STRANGERS));
        loop {
            let Ok(seat) = Arc::clone(&strangers).acquire_owned().await else {
                return;
            };
            let connection = match socket.accept().await {
                Ok(connection) => connection,
                Err(error) => {
                    // Out of file descriptors, most likely: others may give some back.
                    tracing::warn!(%error, "a worker's connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let listener = Arc::clone(self);
            let close = close.clone();
            tasks.spawn(async move {
                let introduction =
                    tokio::time::timeout(HELLO_LIMIT, listener.introduce(connection));
                if let Some(Err(_)) = close.run_until_cancelled(introduction).await {
                    tracing::warn!("a connection that did not say hello was closed");
                }
                drop(seat);
            });
        }
    }

    async fn introduce(&self, connection: Connection) {
        let Connection {
            peer,
            mut reader,
            mut writer,
        } = connection;
        let hello = match reader.next::<FromWorker>().await {
            Ok(FromWorker::Hello(hello)) => hello,
            Ok(_) => return refuse(writer, "the first frame must be `hello`").await,
            Err(ReadError::NotAFrame(reason)) => return refuse(writer, &reason).await,
            Err(ReadError::Closed) => return,
        };
        let (worker, admission) = match self.redeem(&hello, peer).await {
            Ok(admitted) => admitted,
            Err(Refusal::TooLate) => {
                tracing::debug!("a worker that was given up came late");
                return answer_refused(writer, "it is too late").await;
            }
            Err(Refusal::UnknownToken) => {
                return refuse(writer, "the token is unknown or already used").await;
            }
            Err(Refusal::Intrusion(intrusion)) => {
                let reason = intrusion.to_string();
                self.intrusion.send_if_modified(|first| {
                    let is_first = first.is_none();
                    first.get_or_insert(intrusion);
                    is_first
                });
                return answer_refused(writer, &reason).await;
            }
        };
        if hello.protocol != PROTOCOL_VERSION {
            let reason = format!(
                "this program speaks protocol {PROTOCOL_VERSION}, the worker {}",
                hello.protocol
            );
            refuse(writer, &reason).await;
            if let Admission::Control(control) = admission {
                drop(control.send(Arrival::WrongProtocol {
                    found: hello.protocol,
                }));
            }
            return;
        }
        match admission {
            Admission::Output(sink) => {
                if welcome(&mut writer, worker).await {
                    let (stream, already_read) = reader.into_raw();
                    sink.follow(
                        KeepOpen {
                            stream,
                            _writer: writer,
                        },
                        already_read,
                    );
                }
            }
            Admission::Control(control) => {
                if welcome(&mut writer, worker).await {
                    reader.accept_full_size();
                    drop(control.send(Arrival::Welcome(Box::new(Caller {
                        pid: peer.pid().unwrap_or(hello.pid),
                        hello,
                        reader,
                        writer: Writer(writer),
                    }))));
                }
            }
        }
    }

    async fn redeem(&self, hello: &Hello, peer: Peer) -> Result<(u64, Admission), Refusal> {
        let token = &hello.token;
        let holder = self
            .expected
            .lock()
            .get(token)
            .map(|entry| entry.holder.subscribe());
        let Some(mut holder) = holder else {
            return Err(match self.void.lock().get(token) {
                None => Refusal::UnknownToken,
                Some(VoidToken::GivenUp) => Refusal::TooLate,
                Some(VoidToken::Used { worker }) => Refusal::used(peer, *worker),
            });
        };
        // A forked worker may be here before its template has reported it.
        let known = holder
            .wait_for(|holder| !matches!(holder, Holder::NotStarted))
            .await;
        let holder = known.map(|holder| *holder).map_err(|_| Refusal::TooLate)?;
        let admissible = peer.may_be(holder);
        let mut expected = self.expected.lock();
        let entry = expected.get_mut(token).ok_or(Refusal::TooLate)?;
        match (admissible, holder) {
            (Admissible::Yes, _) => {}
            (Admissible::No, Holder::Started(started)) => {
                return Err(Refusal::Intrusion(Intrusion::AnotherProcess {
                    dialler: peer.to_string(),
                    worker: entry.worker,
                    started: started.pid,
                }));
            }
            (Admissible::TooLate | Admissible::No, _) => return Err(Refusal::TooLate),
        }
        let admission = match hello.channel {
            Channel::Control => entry.control.take().map(Admission::Control),
            Channel::Output => entry.output.take().map(Admission::Output),
        };
        let admission = admission.ok_or_else(|| Refusal::used(peer, entry.worker))?;
        Ok((entry.worker, admission))
    }
}

enum Refusal {
    UnknownToken,
    TooLate,
    Intrusion(Intrusion),
}

impl Refusal {
    fn used(peer: Peer, worker: u64) -> Self {
        Self::Intrusion(Intrusion::UsedToken {
            dialler: peer.to_string(),
            worker,
        })
    }
}

enum Admission {
    Control(oneshot::Sender<Arrival>),
    Output(Arc<OutputSink>),
}

/// Reading half of an output connection; the writing half is kept so that the other side does not
/// see a half-closed connection.
struct KeepOpen<R> {
    stream: R,
    _writer: WriteHalf,
}

impl<R: tokio::io::AsyncRead + Unpin> tokio::io::AsyncRead for KeepOpen<R> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Socket {
    async fn accept(&self) -> std::io::Result<Connection> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer::of_socket(&stream);
                let (reader, writer) = stream.into_split();
                Ok(Connection {
                    peer,
                    reader: FrameReader::new(Box::new(reader), HELLO_BYTES),
                    writer: Box::new(writer),
                })
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let (reader, writer) = stream.into_split();
                Ok(Connection {
                    peer: Peer::UNKNOWN,
                    reader: FrameReader::new(Box::new(reader), HELLO_BYTES),
                    writer: Box::new(writer),
                })
            }
        }
    }
}

async fn welcome(writer: &mut WriteHalf, worker: u64) -> bool {
    match frame_bytes(&ToWorker::Welcome { worker }) {
        Ok(frame) => writer.write_all(&frame).await.is_ok(),
        Err(_) => false,
    }
}

async fn refuse(writer: WriteHalf, reason: &str) {
    tracing::warn!(reason, "a connection to the worker socket was refused");
    answer_refused(writer, reason).await;
}

async fn answer_refused(mut writer: WriteHalf, reason: &str) {
    let refused = ToWorker::Refused {
        reason: reason.to_owned(),
    };
    if let Ok(frame) = frame_bytes(&refused) {
        // The other side may be gone already, which is as good.
        drop(writer.write_all(&frame).await);
    }
}

/// A token that nobody can guess.
pub(super) fn fresh_token() -> String {
    format!("{:x}", Bytes::copy_from_slice(&rand::random::<[u8; 32]>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let (one, other) = (fresh_token(), fresh_token());
        assert_eq!(one.len(), 64);
        assert_ne!(one, other);
    }
}
