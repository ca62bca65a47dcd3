//! The connection to the engine: dialling in, and whole frames in both directions.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

pub(super) use osmosis_core::frame::Channel;
use osmosis_core::frame::{
    self, FrameError, FromWorker, Hello, MAX_FRAME_BYTES, PROTOCOL_VERSION, ToWorker,
};
use tokio::sync::mpsc;

/// How long a listener may take to come up.
const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// How long the engine may take to answer a hello.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);

/// Between two attempts to connect.
const DIAL_PAUSE: Duration = Duration::from_millis(20);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("the address is neither `unix:PATH` nor `tcp:HOST:PORT`")]
    Address,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("it refused this worker: {0}")]
    Refused(String),
    #[error("it answered the hello with something else")]
    NoWelcome,
    #[error("it hung up")]
    Closed,
}

/// Either kind of socket.
#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Connects, says hello and waits for the welcome.
pub(super) fn dial(address: &str, token: &str, channel: Channel) -> Result<Stream, DialError> {
    let mut stream = connect_patiently(address)?;
    let hello = FromWorker::Hello(Hello {
        protocol: PROTOCOL_VERSION,
        sdk: format!("osmosis-sdk {} (rust)", env!("CARGO_PKG_VERSION")),
        // A program that forks after it has started threads is not sound.
        features: Vec::new(),
        token: token.to_owned(),
        pid: std::process::id(),
        channel,
    });
    stream.write_all(&frame_bytes(&hello)?)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    // The welcome of the output channel is read as well: a socket that is closed with something
    // unread in it may take back what was written last.
    let answer = match read_frame(&mut stream, &mut Vec::new()) {
        Ok(answer) => answer,
        Err(ReadError::Closed) => return Err(DialError::Closed),
        Err(ReadError::Io(error)) => return Err(error.into()),
        Err(ReadError::Frame(error)) => return Err(error.into()),
    };
    stream.set_read_timeout(None)?;
    match answer {
        ToWorker::Welcome { .. } => Ok(stream),
        ToWorker::Refused { reason } => Err(DialError::Refused(reason)),
        ToWorker::Load(_)
        | ToWorker::Fork { .. }
        | ToWorker::Run(_)
        | ToWorker::Grade(_)
        | ToWorker::Cancel { .. }
        | ToWorker::Shutdown {} => Err(DialError::NoWelcome),
    }
}

fn connect_patiently(address: &str) -> Result<Stream, DialError> {
    let deadline = Instant::now() + DIAL_LIMIT;
    loop {
        match connect(address) {
            Err(DialError::Io(error)) if not_ready(&error) && Instant::now() < deadline => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "no executor here, and a listener that is not there yet sends no event"
                )]
                std::thread::sleep(DIAL_PAUSE);
            }
            connected => return connected,
        }
    }
}

fn not_ready(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::WouldBlock
    )
}

fn connect(address: &str) -> Result<Stream, DialError> {
    match address.split_once(':') {
        Some(("unix", path)) => Ok(Stream::Unix(UnixStream::connect(path)?)),
        Some(("tcp", place)) => {
            let stream = TcpStream::connect(place)?;
            stream.set_nodelay(true)?;
            // An engine whose machine is gone never hangs up.
            rustix::net::sockopt::set_socket_keepalive(&stream, true).map_err(io::Error::from)?;
            Ok(Stream::Tcp(stream))
        }
        Some(_) | None => Err(DialError::Address),
    }
}

impl Stream {
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(limit),
            Self::Tcp(stream) => stream.set_read_timeout(limit),
        }
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// The two directions, for two threads.
    pub(super) fn split(self) -> io::Result<(FrameReader, Self)> {
        let writer = self.try_clone()?;
        let reader = FrameReader {
            stream: BufReader::with_capacity(64 * 1024, self),
            body: Vec::new(),
        };
        Ok((reader, writer))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// Why no frame came.
#[derive(Debug)]
pub(super) enum ReadError {
    Closed,
    Io(io::Error),
    Frame(FrameError),
}

/// The receiving direction.
#[derive(Debug)]
pub(super) struct FrameReader {
    stream: BufReader<Stream>,
    body: Vec<u8>,
}

impl FrameReader {
    pub(super) fn next(&mut self) -> Result<ToWorker, ReadError> {
        read_frame(&mut self.stream, &mut self.body)
    }
}

fn read_frame(stream: &mut impl Read, body: &mut Vec<u8>) -> Result<ToWorker, ReadError> {
    let mut length = [0; 4];
    read_exact(stream, &mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(ReadError::Frame(FrameError::TooLarge { bytes: length }));
    }
    body.resize(length, 0);
    read_exact(stream, body)?;
    frame::decode(body).map_err(ReadError::Frame)
}

fn read_exact(stream: &mut impl Read, buffer: &mut [u8]) -> Result<(), ReadError> {
    stream.read_exact(buffer).map_err(|error| {
        if error.kind() == ErrorKind::UnexpectedEof {
            ReadError::Closed
        } else {
            ReadError::Io(error)
        }
    })
}

/// A whole frame, its length in front.
pub(super) fn frame_bytes(frame: &FromWorker) -> Result<Vec<u8>, FrameError> {
    let body = frame::encode(frame)?;
    let length =
        u32::try_from(body.len()).map_err(|_| FrameError::TooLarge { bytes: body.len() })?;
    let mut bytes = Vec::with_capacity(4 + body.len());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// Writes what is queued until the queue or the connection ends. Whoever reads the connection
/// learns of a broken one, so there is nothing to tell here.
pub(super) fn write_frames(mut stream: Stream, mut queue: mpsc::Receiver<Vec<u8>>) {
    let mut batch = Vec::new();
    let mut bytes = Vec::new();
    while queue.blocking_recv_many(&mut batch, 64) > 0 {
        bytes.clear();
        for frame in batch.drain(..) {
            bytes.extend_from_slice(&frame);
        }
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}
