//! Model servers that can be told to behave otherwise while they run, and a gateway in front of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use osmosis_core::{Attempt, RolloutId};
use osmosis_gateway::{
    EndpointOptions, Gateway, GatewayOptions, PolicyStatus, RolloutSession, UpstreamOptions,
    UpstreamPolicy,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fixture::{Answer, client, user};
use crate::memory_store::MemoryStore;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mode {
    Answers,
    /// Says nothing until the mode changes, then does what that says.
    Held,
    Refuses(u16),
    /// Takes so many at once and refuses the others with 429.
    Takes(usize),
    /// Streams so many events of 64 KiB.
    Floods(usize),
}

pub(crate) struct Peer {
    pub(crate) url: String,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    name: &'static str,
    mode: watch::Sender<Mode>,
    arrivals: watch::Sender<usize>,
    checks: watch::Sender<usize>,
    in_flight: AtomicUsize,
    flooded: AtomicUsize,
    bodies: Mutex<Vec<Value>>,
}

impl Peer {
    /// A server that answers with its name.
    pub(crate) async fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            name,
            mode: watch::Sender::new(Mode::Answers),
            arrivals: watch::Sender::default(),
            checks: watch::Sender::default(),
            in_flight: AtomicUsize::new(0),
            flooded: AtomicUsize::new(0),
            bodies: Mutex::default(),
        });
        let router = Router::new()
            .fallback(serve)
            .with_state(Arc::clone(&shared));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self {
            url,
            shared,
            _tasks: tasks,
        }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    pub(crate) fn arrivals(&self) -> usize {
        *self.shared.arrivals.borrow()
    }

    pub(crate) async fn wait_for_arrivals(&self, n: usize) {
        let mut arrivals = self.shared.arrivals.subscribe();
        arrivals.wait_for(|count| *count >= n).await.unwrap();
    }

    pub(crate) async fn wait_for_checks(&self, n: usize) {
        let mut checks = self.shared.checks.subscribe();
        checks.wait_for(|count| *count >= n).await.unwrap();
    }

    /// Events of a flood that were taken from it.
    pub(crate) fn flooded(&self) -> usize {
        self.shared.flooded.load(Ordering::SeqCst)
    }

    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.shared.bodies.lock().clone()
    }
}

struct UnderWay(Arc<Shared>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let mode = *shared.mode.borrow();
    if parts.method == Method::GET {
        shared.checks.send_modify(|count| *count += 1);
        let status = match mode {
            Mode::Refuses(status) => status,
            _ => 200,
        };
        return reply(status, "application/json", Body::from("{}"));
    }
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    shared.bodies.lock().push(body.clone());
    let others = shared.in_flight.fetch_add(1, Ordering::SeqCst);
    let _under_way = UnderWay(Arc::clone(&shared));
    shared.arrivals.send_modify(|count| *count += 1);
    let mut changes = shared.mode.subscribe();
    let mode = *changes.wait_for(|mode| *mode != Mode::Held).await.unwrap();
    match mode {
        Mode::Refuses(status) => refusal(status),
        Mode::Takes(most) if others >= most => refusal(429),
        Mode::Takes(_) => {
            // As long as answering takes.
            tokio::time::sleep(Duration::from_millis(3)).await;
            answer(&shared, &body)
        }
        Mode::Answers | Mode::Held => answer(&shared, &body),
        Mode::Floods(events) => flood(Arc::clone(&shared), events),
    }
}

fn refusal(status: u16) -> Response {
    let complaint = json!({"error": {"message": "not now"}}).to_string();
    reply(status, "application/json", Body::from(complaint))
}

fn answer(shared: &Shared, body: &Value) -> Response {
    let usage = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10});
    if body["stream"] == json!(true) {
        let delta = json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": shared.name}, "finish_reason": "stop"}]});
        let last = json!({"choices": [], "usage": usage});
        let events = format!("data: {delta}\n\ndata: {last}\n\ndata: [DONE]\n\n");
        return reply(200, "text/event-stream", Body::from(events));
    }
    let message = json!({"role": "assistant", "content": shared.name});
    let completion = json!({
        "id": "x", "object": "chat.completion", "created": 0, "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    });
    reply(200, "application/json", Body::from(completion.to_string()))
}

fn flood(shared: Arc<Shared>, events: usize) -> Response {
    let delta = json!({"choices": [{"index": 0, "delta": {"content": "x".repeat(64 << 10)}}]});
    let event = Bytes::from(format!("data: {delta}\n\n"));
    let events = stream::unfold(0, move |sent| {
        let event = event.clone();
        shared.flooded.store(sent, Ordering::SeqCst);
        async move { (sent < events).then_some((Ok::<_, std::io::Error>(event), sent + 1)) }
    });
    reply(200, "text/event-stream", Body::from_stream(events))
}

fn reply(status: u16, content_type: &'static str, body: Body) -> Response {
    Response::builder()
        .status(status)
        .header("content-type", content_type)
        .body(body)
        .unwrap()
}

/// A gateway in front of peers.
pub(crate) struct Fleet {
    pub(crate) gateway: Gateway,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) client: reqwest::Client,
}

/// Options for these servers, with waits that no test would survive.
pub(crate) fn options_for(peers: &[&Peer]) -> UpstreamOptions {
    let endpoints = peers
        .iter()
        .map(|peer| EndpointOptions::new(&*peer.url))
        .collect();
    UpstreamOptions {
        first_retry_wait: Duration::from_hours(1),
        longest_retry_wait: Duration::from_hours(1),
        ..UpstreamOptions::of(endpoints, "real-model")
    }
}

impl Fleet {
    pub(crate) async fn start(upstream: UpstreamOptions) -> Self {
        Self::start_with(upstream, GatewayOptions::default()).await
    }

    pub(crate) async fn start_with(upstream: UpstreamOptions, options: GatewayOptions) -> Self {
        let policy = Arc::new(UpstreamPolicy::new(upstream).unwrap());
        let store = Arc::new(MemoryStore::default());
        let gateway = Gateway::start(options, policy, store.clone())
            .await
            .unwrap();
        Self {
            gateway,
            store,
            client: client(),
        }
    }

    pub(crate) fn session(&self, row: u64) -> RolloutSession {
        self.gateway.open(RolloutId::of(row, 0), Attempt(1))
    }

    pub(crate) fn post(&self, session: &RolloutSession, body: &Value) -> reqwest::RequestBuilder {
        self.client
            .post(format!("{}/chat/completions", self.gateway.url()))
            .bearer_auth(session.key())
            .body(body.to_string())
    }

    pub(crate) async fn ask(&self, session: &RolloutSession) -> Answer {
        Answer::of(self.post(session, &user("hi")).send().await.unwrap()).await
    }

    /// Which peer answers.
    pub(crate) async fn who_answers(&self, session: &RolloutSession) -> String {
        let answer = self.ask(session).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let content = &answer.json()["choices"][0]["message"]["content"];
        content.as_str().unwrap().to_owned()
    }

    pub(crate) fn status(&self) -> PolicyStatus {
        self.gateway.policy(None).unwrap()
    }

    /// Returns when the gateway looks like this.
    pub(crate) async fn until(&self, looks: impl Fn(&PolicyStatus) -> bool) {
        let wait = async {
            while !looks(&self.status()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let limit = Duration::from_secs(20);
        let waited = tokio::time::timeout(limit, wait).await;
        assert!(waited.is_ok(), "{:?}", self.status());
    }

    fn root(&self) -> &str {
        self.gateway.url().strip_suffix("/v1").unwrap()
    }

    /// A control request with this key.
    pub(crate) fn control(
        &self,
        path: &str,
        body: Option<&str>,
        key: &str,
    ) -> reqwest::RequestBuilder {
        let url = format!("{}{path}", self.root());
        let request = match body {
            Some(body) => self.client.post(url).body(body.to_owned()),
            None => self.client.get(url),
        };
        if key.is_empty() {
            request
        } else {
            request.bearer_auth(key)
        }
    }

    /// A control request that succeeds.
    pub(crate) async fn command(&self, path: &str, body: Option<&str>) -> Value {
        let key = self.gateway.control_key().expose();
        let answer = Answer::of(self.control(path, body, key).send().await.unwrap()).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }
}
