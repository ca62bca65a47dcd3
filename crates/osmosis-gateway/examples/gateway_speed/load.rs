//! A client that keeps a number of calls under way, each connection one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::{Options, Outcome};

/// How many calls may fail before there is no use in going on.
const MOST_ERRORS: u64 = 1_000;

struct Plan {
    uri: Uri,
    authority: String,
    key: String,
    kind: Kind,
    requests: u64,
    /// No call begins after it.
    last: Duration,
    /// Calls are sent no faster than this; 0 is as fast as they are answered.
    per_second: u64,
    began: Instant,
    begun: AtomicU64,
    failed: AtomicU64,
}

#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Logprobs,
    Stream,
}

#[derive(Default)]
struct Seen {
    whole: Vec<Duration>,
    first_byte: Vec<Duration>,
    first_error: Option<String>,
}

pub(crate) async fn run(options: &Options) -> Outcome<String> {
    let uri: Uri = options.text("url")?.parse()?;
    let plan = Arc::new(Plan {
        authority: uri.authority().ok_or("the URL has no host")?.to_string(),
        uri,
        key: options.text("key")?.to_owned(),
        kind: match options.text("kind")? {
            "plain" => Kind::Plain,
            "logprobs" => Kind::Logprobs,
            "stream" => Kind::Stream,
            other => return Err(format!("`{other}` is no kind of call").into()),
        },
        requests: options.number("requests", u64::MAX)?,
        last: Duration::from_secs(options.number("seconds", 1_000_000)?),
        per_second: options.number("per-second", 0)?,
        began: Instant::now(),
        begun: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let mut connections = JoinSet::new();
    for _ in 0..options.number("concurrency", 1)? {
        let plan = Arc::clone(&plan);
        connections.spawn(async move { plan.ask_on_and_on().await });
    }
    let mut seen = Seen::default();
    while let Some(part) = connections.join_next().await {
        let part = part?;
        seen.whole.extend(part.whole);
        seen.first_byte.extend(part.first_byte);
        seen.first_error = seen.first_error.or(part.first_error);
    }
    let took = plan.began.elapsed();
    seen.whole.sort_unstable();
    seen.first_byte.sort_unstable();
    Ok(json!({
        "answered": seen.whole.len(),
        "errors": plan.failed.load(Ordering::Relaxed),
        "first_error": seen.first_error,
        "seconds": took.as_secs_f64(),
        "per_second": seen.whole.len() as f64 / took.as_secs_f64(),
        "ms": quantiles(&seen.whole),
        "first_byte_ms": quantiles(&seen.first_byte),
    })
    .to_string())
}

fn quantiles(sorted: &[Duration]) -> serde_json::Value {
    let at = |percent: usize| {
        let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(place).map(|time| time.as_secs_f64() * 1e3)
    };
    json!({"p50": at(50), "p90": at(90), "p99": at(99)})
}

impl Plan {
    async fn ask_on_and_on(&self) -> Seen {
        let mut seen = Seen::default();
        let mut driver = JoinSet::new();
        let mut connection = None;
        loop {
            let number = self.begun.fetch_add(1, Ordering::Relaxed);
            if number >= self.requests || self.failed.load(Ordering::Relaxed) > MOST_ERRORS {
                return seen;
            }
            if self.per_second > 0 {
                let due = Duration::from_secs_f64(number as f64 / self.per_second as f64);
                if due > self.last {
                    return seen;
                }
                tokio::time::sleep_until((self.began + due).into()).await;
            }
            if self.began.elapsed() > self.last {
                return seen;
            }
            let asked = async {
                let mut sender = match connection.take() {
                    Some(sender) => sender,
                    None => self.connect(&mut driver).await?,
                };
                let times = self.ask(&mut sender, number).await?;
                connection = Some(sender);
                Outcome::Ok(times)
            };
            match asked.await {
                Ok((first_byte, whole)) => {
                    seen.first_byte.push(first_byte);
                    seen.whole.push(whole);
                }
                Err(error) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    seen.first_error.get_or_insert(error.to_string());
                }
            }
        }
    }

    async fn connect(&self, driver: &mut JoinSet<()>) -> Outcome<SendRequest<Full<Bytes>>> {
        let socket = TcpStream::connect(&self.authority).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
        driver.spawn(async move {
            // What goes wrong here fails the call too.
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn ask(
        &self,
        sender: &mut SendRequest<Full<Bytes>>,
        number: u64,
    ) -> Outcome<(Duration, Duration)> {
        let body = self.body(number);
        sender.ready().await?;
        let request = Request::post(self.uri.path())
            .header(header::HOST, &self.authority)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.key))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let began = Instant::now();
        let mut response = sender.send_request(request).await?;
        let status = response.status();
        let mut first_byte = None;
        let mut tail = Bytes::new();
        while let Some(frame) = response.body_mut().frame().await {
            if let Ok(data) = frame?.into_data() {
                first_byte.get_or_insert_with(|| began.elapsed());
                tail = data;
            }
        }
        let end: &[u8] = match self.kind {
            Kind::Stream => b"[DONE]\n\n",
            Kind::Plain | Kind::Logprobs => b"}",
        };
        if !status.is_success() || !tail.ends_with(end) {
            let tail = String::from_utf8_lossy(&tail);
            return Err(format!("status {status}, ending in {tail:.300}").into());
        }
        let whole = began.elapsed();
        Ok((first_byte.unwrap_or(whole), whole))
    }

    /// About two kilobytes; each call begins differently, so that none goes on from another.
    fn body(&self, number: u64) -> Bytes {
        let more = match self.kind {
            Kind::Plain => "",
            Kind::Logprobs => r#","logprobs":true"#,
            Kind::Stream => r#","stream":true"#,
        };
        let text = "What does a call of ordinary size cost on its way through? ".repeat(30);
        Bytes::from(format!(
            r#"{{"model":"osmosis-rollout","messages":[{{"role":"system","content":"Call {number}. Be brief."}},{{"role":"user","content":"{text}"}}],"temperature":1.0{more}}}"#
        ))
    }
}
