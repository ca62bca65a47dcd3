//! The controller's side: engines by name, opened to whoever has the key.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body::Body as _;
use osmosis_core::generation::{DrawKey, GenerationRequest, LogprobsOf, TokenEngine};
use osmosis_dialect::Dialect;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::outbox::{Outbox, OutboxSink};
use super::reply::ReplyLines;
use super::wire::{Description, EVENTS_TYPE, Route, WireRequest};
use crate::error::GatewayError;
use crate::options::ConnectionLimits;
use crate::secret::Secret;
use crate::serving::body::{BodyError, read_body};
use crate::serving::connection::serve_connections;
use crate::serving::error_reply::ErrorReply;
use crate::serving::identity::key_of;
use crate::serving::origin::foreign_origin;

/// How long the last lines may take after the grace period of a shutdown ran out.
const LAST_LINES: Duration = Duration::from_secs(1);

/// How a token endpoint is opened.
#[derive(Debug, Clone)]
pub struct TokenEndpointOptions {
    pub listen: SocketAddr,
    /// What opens it.
    pub key: Secret,
    /// A longer request is refused with 413.
    pub max_body_bytes: usize,
    /// Generations under way at once; more are refused with 503 and asked for again.
    pub max_generations: usize,
    /// How often a caller hears that the endpoint is there while no token comes.
    pub alive_every: Duration,
    pub connections: ConnectionLimits,
}

impl TokenEndpointOptions {
    pub fn new(listen: SocketAddr, key: Secret) -> Self {
        Self {
            listen,
            key,
            max_body_bytes: 16 << 20,
            max_generations: 8192,
            alive_every: Duration::from_secs(5),
            connections: ConnectionLimits::default(),
        }
    }
}

/// Lets other processes sample with engines of this one. Dropping it ends what they sample.
pub struct TokenEndpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

/// An engine that can be asked.
#[derive(Debug)]
struct Offered {
    engine: Arc<dyn TokenEngine>,
    /// What the logprobs of every answer are: callers are told before they ask.
    logprobs: LogprobsOf,
}

struct Shared {
    engines: BTreeMap<String, Offered>,
    key_digest: [u8; 32],
    max_body_bytes: usize,
    generations: Arc<Semaphore>,
    alive_every: Duration,
    /// Generations may begin.
    open: AtomicBool,
    /// Ends every answer.
    everything: CancellationToken,
    /// Ends the answers that are under way, and none that begins later.
    under_way: Mutex<CancellationToken>,
    tasks: TaskTracker,
}

impl TokenEndpoint {
    /// Each engine has a name, which is part of a path.
    pub async fn start(
        options: TokenEndpointOptions,
        engines: Vec<(String, Arc<dyn TokenEngine>)>,
    ) -> Result<Self, GatewayError> {
        let cannot_listen = |error: std::io::Error| GatewayError::Listen {
            address: options.listen,
            message: error.to_string(),
        };
        let listener = TcpListener::bind(options.listen)
            .await
            .map_err(cannot_listen)?;
        let address = listener.local_addr().map_err(cannot_listen)?;
        let offered = engines.into_iter().map(|(name, engine)| {
            let logprobs = engine.logprobs_of(&plain_request());
            (name, Offered { engine, logprobs })
        });
        let everything = CancellationToken::new();
        let shared = Arc::new(Shared {
            under_way: Mutex::new(everything.child_token()),
            everything,
            engines: offered.collect(),
            key_digest: Sha256::digest(options.key.expose().as_bytes()).into(),
            max_body_bytes: options.max_body_bytes,
            generations: Arc::new(Semaphore::new(
                options.max_generations.min(Semaphore::MAX_PERMITS),
            )),
            alive_every: options.alive_every,
            open: AtomicBool::new(true),
            tasks: TaskTracker::new(),
        });
        let stop = CancellationToken::new();
        let answering = Arc::clone(&shared);
        let accepting = serve_connections(
            listener,
            move |request| serve(Arc::clone(&answering), request),
            options.connections,
            shared.tasks.clone(),
            stop.clone(),
            |_| {},
        );
        shared.tasks.spawn(accepting);
        Ok(Self {
            address,
            shared,
            stop,
        })
    }

    /// While it is not open, no generation begins: callers come again, and the time that they wait is nobody's. Those
    /// under way go on.
    pub fn set_open(&self, open: bool) {
        self.shared.open.store(open, Ordering::Relaxed);
    }

    /// Ends the generations that are under way: their callers ask again, or run the rollout again. To be called before
    /// the weights go back to those of an earlier step.
    pub fn interrupt(&self) {
        let next = self.shared.everything.child_token();
        std::mem::replace(&mut *self.shared.under_way.lock(), next).cancel();
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://HOST:PORT`, for callers on this machine where it listens on all addresses.
    pub fn url(&self) -> String {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        format!("http://{address}")
    }

    /// Stops accepting and waits for what is sampled; `false` when the grace period ran out. What still ran
    /// then is ended.
    pub async fn shut_down(&self, grace: Duration) -> bool {
        self.stop.cancel();
        let tasks = &self.shared.tasks;
        tasks.close();
        let drained = tokio::time::timeout(grace, tasks.wait()).await.is_ok();
        self.shared.everything.cancel();
        if !drained {
            let _ = tokio::time::timeout(LAST_LINES, tasks.wait()).await;
        }
        drained
    }
}

impl Drop for TokenEndpoint {
    fn drop(&mut self) {
        self.stop.cancel();
        self.shared.everything.cancel();
    }
}

impl fmt::Debug for TokenEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenEndpoint")
            .field("address", &self.address)
            .field("engines", &self.shared.engines)
            .finish_non_exhaustive()
    }
}

/// A request with nothing special about it.
fn plain_request() -> GenerationRequest {
    GenerationRequest {
        prompt: vec![],
        max_tokens: 1,
        temperature: 1.0,
        top_p: 1.0,
        top_k: 0,
        stop_ids: vec![],
        alternatives: 0,
        key: DrawKey([0; 32]),
        constraint: None,
    }
}

async fn serve(shared: Arc<Shared>, request: Request) -> Response {
    let has_body = !request.body().is_end_stream();
    answer(&shared, request).await.unwrap_or_else(|refusal| {
        let mut response = refusal.response(Dialect::ChatCompletions);
        if has_body {
            // It may not have been read: a client must not send its next request into the rest of it.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        response
    })
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ErrorReply> {
    let (parts, body) = request.into_parts();
    if let Some(origin) = foreign_origin(&parts.uri, &parts.headers) {
        return Err(ErrorReply::forbidden(format!(
            "pages of `{origin}` may not use the token endpoint"
        )));
    }
    shared.check_key(&parts.headers)?;
    let path = parts.uri.path();
    let found = Route::parse(path).and_then(|(name, route)| {
        let offered = shared.engines.get(name)?;
        Some((offered, route))
    });
    let (offered, route) = found.ok_or_else(|| {
        let names: Vec<&str> = shared.engines.keys().map(String::as_str).collect();
        ErrorReply::not_found(format!(
            "`{path}` is nothing here; there are the engines {}",
            names.join(", ")
        ))
    })?;
    match (route, parts.method) {
        (Route::Describe, Method::GET) => Ok(offered.describe()),
        (Route::Generate, Method::POST) => shared.generate(offered, body).await,
        (Route::Describe, _) => Err(ErrorReply::wrong_method("an engine is described with GET")),
        (Route::Generate, _) => Err(ErrorReply::wrong_method(
            "generations are asked for with POST",
        )),
    }
}

impl Offered {
    fn describe(&self) -> Response {
        let description = Description {
            context_length: self.engine.context_length(),
            version: self.engine.version().0,
            logprobs: self.logprobs,
            constrains: self.engine.constrains(),
        };
        // It holds nothing that JSON has no word for.
        let body = serde_json::to_vec(&description).unwrap_or_default();
        response("application/json", Body::from(body))
    }
}

impl Shared {
    fn check_key(&self, headers: &HeaderMap) -> Result<(), ErrorReply> {
        let key = key_of(headers).ok_or_else(|| {
            ErrorReply::unauthorized("no key: send the node key as `Authorization: Bearer KEY`")
        })?;
        let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        if digest.ct_eq(&self.key_digest).into() {
            Ok(())
        } else {
            Err(ErrorReply::unauthorized(
                "this is not the node key of the run",
            ))
        }
    }

    async fn generate(&self, offered: &Offered, body: Body) -> Result<Response, ErrorReply> {
        if !self.open.load(Ordering::Relaxed) {
            return Err(not_now("closed", "no rollouts are to run now"));
        }
        let permit = Arc::clone(&self.generations).try_acquire_owned();
        let permit = permit.map_err(|_| {
            not_now(
                "overloaded",
                "as many generations as there may be are under way",
            )
        })?;
        let bytes = read_body(body, self.max_body_bytes, &self.tasks)
            .await
            .map_err(|error| match error {
                BodyError::TooLarge => ErrorReply::too_large(self.max_body_bytes),
                BodyError::TooSlow => ErrorReply::too_slow("the request body stopped coming"),
                BodyError::Broken => ErrorReply::bad_request("the request body broke off"),
            })?;
        let asked: WireRequest = serde_json::from_slice(&bytes).map_err(|error| {
            ErrorReply::bad_request(format!("the body is not a valid request: {error}"))
        })?;
        let request = asked.checked().map_err(ErrorReply::bad_request)?;
        if request.constraint.is_some() && !offered.engine.constrains() {
            return Err(ErrorReply::bad_request(
                "the engine takes no grammars, as it was described",
            ));
        }
        if offered.engine.logprobs_of(&request) != offered.logprobs {
            return Err(ErrorReply::bad_request(
                "with these settings the engine gives other logprobs than it was described with",
            ));
        }
        let outbox = Arc::new(Outbox::default());
        let lines = ReplyLines::new(
            Arc::clone(&outbox),
            offered.engine.version(),
            self.alive_every,
            self.under_way.lock().clone(),
            permit,
        );
        offered
            .engine
            .generate(request, Box::new(OutboxSink::of(&outbox)));
        let lines = stream::unfold(lines, |mut lines| async move {
            lines.next().await.map(|item| (item, lines))
        });
        Ok(response(EVENTS_TYPE, Body::from_stream(lines)))
    }
}

/// A caller shall come again soon.
fn not_now(code: &'static str, message: &str) -> ErrorReply {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    ErrorReply::of_service(status, code, message.to_owned(), Some(1))
}

fn response(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
