//! Spans for OpenTelemetry, of calls and of the rollouts they belong to, sent to a collector as OTLP over HTTP in its JSON form.
//!
//! Written by hand: `opentelemetry-otlp` with `http-json` brings eight crates (`prost` among them) and would replace
//! nothing but the JSON of a span and its posting. The queue with its counted losses, the ids that rollouts and calls
//! share, and the client that hides credentials would stay ours.

mod rollout;
mod settings;
mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use self::rollout::{Attribute, RolloutSpan, RolloutSpans, SpanEvent};
pub use self::settings::TelemetryOptions;
pub(crate) use self::span::{CallSpan, TraceParent};
use crate::policy::upstream::HttpClients;

/// How long the last spans may take to leave when the gateway stops.
const LAST_SPANS: Duration = Duration::from_secs(3);
/// Collectors that are busy are asked once more, after this.
const RETRY_WAIT: Duration = Duration::from_millis(500);

/// Sends spans, in batches, in the background.
#[derive(Debug)]
pub(crate) struct Telemetry {
    spans: Mutex<Option<mpsc::Sender<Value>>>,
    dropped: Arc<AtomicU64>,
    /// Makes the ids of rollouts this process's own.
    seed: [u8; 16],
    /// Somebody sends the spans that calls are part of.
    rollouts_are_traced: AtomicBool,
    task: tokio::sync::Mutex<JoinSet<()>>,
}

impl Telemetry {
    pub(crate) fn start(
        options: TelemetryOptions,
        dropped: Arc<AtomicU64>,
    ) -> Result<Self, crate::error::GatewayError> {
        let clients = HttpClients::new(options.timeout);
        let client = clients.for_url(&options.url)?;
        let (spans, queue) = mpsc::channel(options.queue);
        let mut task = JoinSet::new();
        task.spawn(export(options, client, queue, Arc::clone(&dropped)));
        Ok(Self {
            spans: Mutex::new(Some(spans)),
            dropped,
            seed: rand::random(),
            rollouts_are_traced: AtomicBool::new(false),
            task: tokio::sync::Mutex::new(task),
        })
    }

    pub(crate) fn send(&self, span: &CallSpan<'_>) {
        let traced = self.rollouts_are_traced.load(Ordering::Relaxed);
        let of_rollout = || {
            let call = span.call;
            traced.then(|| self.of_attempt(&call.rollout_id, call.attempt))
        };
        self.enqueue(span.to_json(span.parent.or_else(of_rollout)));
    }

    fn enqueue(&self, span: Value) {
        let sent = match &*self.spans.lock() {
            Some(spans) => spans.try_send(span).is_ok(),
            None => false,
        };
        if !sent {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends what is left.
    pub(crate) async fn shut_down(&self) {
        self.spans.lock().take();
        let mut task = self.task.lock().await;
        let last = async { while task.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_SPANS, last).await.is_err() {
            tracing::warn!("the last spans could not be exported in time");
        }
    }
}

async fn export(
    options: TelemetryOptions,
    client: reqwest::Client,
    mut queue: mpsc::Receiver<Value>,
    dropped: Arc<AtomicU64>,
) {
    let mut told = false;
    let mut batch = Vec::new();
    let mut open = true;
    while open {
        let Some(first) = queue.recv().await else {
            return;
        };
        batch.push(first);
        let due = Instant::now() + options.delay;
        while batch.len() < options.batch {
            match tokio::time::timeout_at(due, queue.recv()).await {
                Ok(Some(span)) => batch.push(span),
                Ok(None) => {
                    open = false;
                    break;
                }
                Err(_) => break,
            }
        }
        let lost = batch.len() as u64;
        let body = options.envelope(&batch).to_string();
        batch.clear();
        if let Err(error) = deliver(&options, &client, body).await {
            dropped.fetch_add(lost, Ordering::Relaxed);
            if !told {
                told = true;
                let collector = crate::policy::upstream::without_credentials(&options.url);
                tracing::warn!(collector, error, "spans can't be exported");
            }
        }
    }
}

/// Posts a batch; one more time when the collector is busy or can't be reached.
async fn deliver(
    options: &TelemetryOptions,
    client: &reqwest::Client,
    body: String,
) -> Result<(), String> {
    let mut last = String::new();
    for try_number in 0..2 {
        if try_number > 0 {
            tokio::time::sleep(RETRY_WAIT).await;
        }
        let sent = client
            .post(options.url.clone())
            .headers(options.headers.clone())
            .timeout(options.timeout)
            .body(body.clone())
            .send()
            .await;
        match sent {
            Ok(response) if response.status().is_success() => return Ok(()),
            Ok(response) => {
                last = format!("status {}", response.status());
                if !matches!(response.status().as_u16(), 429 | 502..=504) {
                    break;
                }
            }
            Err(error) => last = error.without_url().to_string(),
        }
    }
    Err(last)
}
