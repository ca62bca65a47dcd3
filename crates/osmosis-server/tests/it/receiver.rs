//! The controller's end of the callbacks.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A callback as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// What it was answered.
    pub(crate) status: u16,
}

impl Received {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }
}

#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Statuses of the next answers; 200 when there are none.
    answers: Mutex<VecDeque<u16>>,
    received: watch::Sender<Vec<Received>>,
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        Self::on(([127, 0, 0, 1], 0).into()).await
    }

    pub(crate) async fn on(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let router = Router::new().fallback(take).with_state(Arc::clone(&shared));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            address,
            shared,
            _tasks: tasks,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Answers the next callbacks with these statuses.
    pub(crate) fn answer(&self, statuses: impl IntoIterator<Item = u16>) {
        self.shared.answers.lock().unwrap().extend(statuses);
    }

    /// Takes everything from now on.
    pub(crate) fn forget_answers(&self) {
        self.shared.answers.lock().unwrap().clear();
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.shared.received.borrow().clone()
    }

    /// Returns the callbacks once there are `n`.
    pub(crate) async fn wait_for(&self, n: usize) -> Vec<Received> {
        let mut received = self.shared.received.subscribe();
        let all = received.wait_for(|all| all.len() >= n).await.unwrap();
        all.clone()
    }

    /// Returns the callback that was taken at this path.
    pub(crate) async fn taken(&self, path: &str) -> Received {
        let mut received = self.shared.received.subscribe();
        let wanted = |one: &&Received| one.path == path && one.status == 200;
        let all = received
            .wait_for(|all| all.iter().any(|one| wanted(&one)))
            .await
            .unwrap();
        all.iter().find(wanted).unwrap().clone()
    }
}

async fn take(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let status = shared.answers.lock().unwrap().pop_front().unwrap_or(200);
    let one = Received {
        path: parts.uri.path().to_owned(),
        headers: parts.headers,
        text: String::from_utf8(body.to_vec()).unwrap(),
        status,
    };
    shared.received.send_modify(|all| all.push(one));
    StatusCode::from_u16(status).unwrap().into_response()
}
