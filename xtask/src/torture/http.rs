//! Just enough HTTP: requests with a connection each, and a receiver of callbacks.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::process::LOOK;

/// Longer than any answer takes from a process that is not stuck.
const LIMIT: Duration = Duration::from_secs(40);

/// An answer that came to its end.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Who is asked, with the key that it wants.
#[derive(Debug, Clone)]
pub(super) struct Client {
    /// `127.0.0.1:PORT`
    pub(super) address: String,
    pub(super) key: String,
}

impl Client {
    /// The address in a URL.
    pub(super) fn new(url: &str, key: &str) -> Self {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let address = rest.split('/').next().unwrap_or(rest).to_owned();
        Self {
            address,
            key: key.to_owned(),
        }
    }

    /// An error when nobody answers, or when the answer breaks off.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> io::Result<Answer> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
             connection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            self.key,
            body.len()
        );
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.write_all(request.as_bytes())?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        whole(&bytes).ok_or_else(|| io::Error::other("the answer broke off"))
    }
}

/// `None` when less came than was announced.
fn whole(bytes: &[u8]) -> Option<Answer> {
    let (head, body) = split_head(bytes)?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    if header(head, "transfer-encoding").is_some() {
        let ended = body.ends_with(b"\r\n0\r\n\r\n") || body == b"0\r\n\r\n";
        return ended.then(|| Answer {
            status,
            body: body.to_vec(),
        });
    }
    let length = header(head, "content-length").and_then(|text| text.parse().ok());
    (body.len() == length.unwrap_or(0)).then(|| Answer {
        status,
        body: body.to_vec(),
    })
}

fn split_head(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.windows(4).position(|at| at == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    Some((head, &bytes[end + 4..]))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// Takes callbacks: `POST /KIND/ID`.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) url: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// What was told of each rollout, by kind.
    told: Mutex<BTreeMap<String, Vec<String>>>,
    /// Of so many callbacks one is refused; 0: none.
    refuse_every: AtomicU64,
    count: AtomicU64,
    refused: AtomicU64,
    over: AtomicBool,
}

impl Receiver {
    /// Refuses one callback of so many.
    pub(super) fn start(refuse_every: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared::default());
        shared.refuse_every.store(refuse_every, Ordering::SeqCst);
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                while !shared.over.load(Ordering::SeqCst) {
                    match listener.accept() {
                        // A caller that breaks off is not told anything, and calls again.
                        Ok((stream, _)) => drop(take(stream, &shared)),
                        Err(_) => std::thread::park_timeout(LOOK),
                    }
                }
            }
        });
        Ok(Self {
            url,
            shared,
            thread: Some(thread),
        })
    }

    /// The kinds of callbacks that were taken for a rollout.
    pub(super) fn told(&self, rollout: &str) -> Vec<String> {
        let told = self.shared.told.lock();
        let told = told.unwrap_or_else(PoisonError::into_inner);
        told.get(rollout).cloned().unwrap_or_default()
    }

    pub(super) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::SeqCst)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // It can't have panicked in a way that matters now.
            let _ = thread.join();
        }
    }
}

fn take(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut bytes = Vec::new();
    let mut piece = [0; 8192];
    let path = loop {
        let read = stream.read(&mut piece)?;
        if read == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&piece[..read]);
        if let Some((head, body)) = split_head(&bytes) {
            let length = header(head, "content-length").and_then(|text| text.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                break head.split(' ').nth(1).unwrap_or_default().to_owned();
            }
        }
    };
    let every = shared.refuse_every.load(Ordering::SeqCst);
    let count = shared.count.fetch_add(1, Ordering::SeqCst) + 1;
    if every > 0 && count.is_multiple_of(every) {
        shared.refused.fetch_add(1, Ordering::SeqCst);
        return stream.write_all(
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        );
    }
    if let Some((kind, rollout)) = path.trim_start_matches('/').split_once('/') {
        let told = shared.told.lock();
        let mut told = told.unwrap_or_else(PoisonError::into_inner);
        told.entry(rollout.to_owned())
            .or_default()
            .push(kind.to_owned());
    }
    stream.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
    )
}
