//! A node's side: an engine that asks a token endpoint.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, header};
use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    GenerationError, GenerationRequest, LogprobsOf, RemoteFault, TokenEngine, TokenSink,
};
use parking_lot::Mutex;
use reqwest::Url;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::generation::Generation;
use super::wire::{Description, Route};
use crate::error::GatewayError;
use crate::policy::upstream::{HttpClients, error_chain, retry_after, said, wait_before};
use crate::secret::Secret;

/// As much of a refusal or a description as is read.
const MAX_WHOLE_BYTES: usize = 64 << 10;
/// Many generations may find at once that nobody answers: an address that was just looked up is not looked up again.
const ADDRESS_IS_FRESH: Duration = Duration::from_millis(500);
/// Somebody else may listen for a moment where the endpoint was.
const TRIES_AT_A_STRANGER: u32 = 3;

/// Where the endpoint is now. It is looked up again whenever it does not answer: a run that is resumed has
/// its endpoint at another address.
#[derive(Clone)]
pub struct EndpointAddress(Lookup);

type Lookup = Arc<dyn Fn() -> BoxFuture<'static, Result<Option<String>, String>> + Send + Sync>;

impl EndpointAddress {
    /// `look_up` returns a URL, `None` while there is none, or what went wrong.
    pub fn new<F>(look_up: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Option<String>, String>> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(look_up())))
    }

    /// One that stays where it is.
    pub fn fixed(url: impl Into<String>) -> Self {
        let url = url.into();
        Self::new(move || std::future::ready(Ok(Some(url.clone()))))
    }
}

impl fmt::Debug for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndpointAddress(..)")
    }
}

/// How an endpoint is asked.
#[derive(Debug, Clone)]
pub struct EndpointEngineOptions {
    pub key: Secret,
    /// Which of the endpoint's engines.
    pub engine: String,
    pub connect_timeout: Duration,
    /// How long the endpoint may be silent. It sends something every few seconds, tokens or not.
    pub idle_limit: Duration,
    /// How long a generation without a token waits for an endpoint that is away.
    pub away_limit: Duration,
    /// The wait before the first retry; it doubles from there, with jitter.
    pub first_retry_wait: Duration,
    pub longest_retry_wait: Duration,
}

impl EndpointEngineOptions {
    pub fn new(key: Secret, engine: impl Into<String>) -> Self {
        Self {
            key,
            engine: engine.into(),
            connect_timeout: Duration::from_secs(10),
            idle_limit: Duration::from_secs(30),
            away_limit: Duration::from_mins(15),
            first_retry_wait: Duration::from_millis(250),
            longest_retry_wait: Duration::from_secs(5),
        }
    }
}

/// A [`TokenEngine`] at a [`TokenEndpoint`](super::TokenEndpoint) of another process. Dropping it ends what it
/// samples.
pub struct EndpointEngine {
    endpoint: Arc<Endpoint>,
    context_length: usize,
    logprobs: LogprobsOf,
    constrains: bool,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The other side, and what is known of it.
pub(super) struct Endpoint {
    pub(super) options: EndpointEngineOptions,
    address: EndpointAddress,
    known: Mutex<Whereabouts>,
    headers: HeaderMap,
    clients: HttpClients,
    version: AtomicU64,
}

/// Where the endpoint is, as far as is known.
#[derive(Debug, Default)]
struct Whereabouts {
    url: Option<Url>,
    looked_up: Option<Instant>,
}

/// A try that came to nothing.
#[derive(Debug)]
pub(super) struct FailedTry {
    pub(super) kind: RemoteFault,
    pub(super) message: String,
    pub(super) again: Again,
}

/// Whether another try may fare better, as long as no token has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// After this time, or when it seems good.
    Later(Option<Duration>),
    /// At another address: this is not the endpoint that it should be.
    Elsewhere,
    Never,
}

impl EndpointEngine {
    /// Asks the endpoint for what must be known of its engine, and waits for it while it is away.
    pub async fn connect(
        address: EndpointAddress,
        options: EndpointEngineOptions,
    ) -> Result<Self, EndpointError> {
        let endpoint = Arc::new(Endpoint::new(address, options)?);
        let mut patience = Patience::new(&endpoint.options);
        let described = loop {
            match endpoint.describe().await {
                Ok(described) => break described,
                Err(failed) => {
                    let wait = patience.after(&endpoint, &failed).await;
                    let Some(wait) = wait else {
                        return Err(EndpointError::Away(endpoint.given_up(&failed, &patience)));
                    };
                    tokio::time::sleep(wait).await;
                }
            }
        };
        endpoint.heard_version(described.version);
        Ok(Self {
            endpoint,
            context_length: described.context_length,
            logprobs: described.logprobs,
            constrains: described.constrains,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }
}

/// Why an endpoint can't be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error(transparent)]
    Settings(#[from] GatewayError),
    /// It did not answer as it should, for as long as it was waited for.
    #[error(transparent)]
    Away(GenerationError),
}

impl TokenEngine for EndpointEngine {
    fn context_length(&self) -> usize {
        self.context_length
    }

    /// The version that was heard of last.
    fn version(&self) -> PolicyVersion {
        PolicyVersion(self.endpoint.version.load(Ordering::Relaxed))
    }

    fn generate(&self, request: GenerationRequest, sink: Box<dyn TokenSink>) {
        let Ok(runtime) = Handle::try_current() else {
            return sink.end(Err(GenerationError::ShutDown));
        };
        let generation = Generation::new(
            Arc::clone(&self.endpoint),
            self.stop.clone(),
            &request,
            sink,
        );
        self.tasks.spawn_on(generation.run(), &runtime);
    }

    fn constrains(&self) -> bool {
        self.constrains
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn logprobs_of(&self, _request: &GenerationRequest) -> LogprobsOf {
        self.logprobs
    }
}

impl Drop for EndpointEngine {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for EndpointEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointEngine")
            .field("context_length", &self.context_length)
            .field("options", &self.endpoint.options)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    fn new(address: EndpointAddress, options: EndpointEngineOptions) -> Result<Self, GatewayError> {
        let mut key = HeaderValue::from_str(&format!("Bearer {}", options.key.expose()))
            .map_err(|_| GatewayError::UpstreamKey)?;
        key.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, key);
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        Ok(Self {
            clients: HttpClients::new(options.connect_timeout),
            options,
            address,
            known: Mutex::default(),
            headers,
            version: AtomicU64::new(0),
        })
    }

    pub(super) fn heard_version(&self, version: u64) {
        self.version.store(version, Ordering::Relaxed);
    }

    /// Where it is, as was found out last.
    async fn url(&self) -> Result<Url, FailedTry> {
        let known = self.known.lock().url.clone();
        match known {
            Some(known) => Ok(known),
            None => self.look_up().await,
        }
    }

    async fn look_up(&self) -> Result<Url, FailedTry> {
        self.known.lock().looked_up = Some(Instant::now());
        let unreachable = |message: String| FailedTry {
            kind: RemoteFault::Unreachable,
            message,
            again: Again::Later(None),
        };
        let looking = timeout(self.options.idle_limit, (self.address.0)());
        let found = looking
            .await
            .map_err(|_| unreachable("has an address that can't be looked up".to_owned()))?
            .map_err(|error| {
                unreachable(format!("has an address that can't be looked up: {error}"))
            })?
            .ok_or_else(|| unreachable("has no address: the run has no controller".to_owned()))?;
        let url = Url::parse(&found)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or_else(|| FailedTry {
                kind: RemoteFault::Misconfigured,
                message: format!("has the address `{found}`, which is no URL"),
                again: Again::Elsewhere,
            })?;
        self.known.lock().url = Some(url.clone());
        Ok(url)
    }

    /// Looks the address up anew, unless that was just done; whether it is another one.
    async fn has_moved(&self) -> bool {
        let before = {
            let known = self.known.lock();
            if known
                .looked_up
                .is_some_and(|at| at.elapsed() < ADDRESS_IS_FRESH)
            {
                return false;
            }
            known.url.clone()
        };
        let now = self.look_up().await.ok();
        now.is_some() && now != before
    }

    /// Sends a request to the endpoint; only an answer with status 200 is one.
    pub(super) async fn send(
        &self,
        route: Route,
        body: Vec<u8>,
    ) -> Result<reqwest::Response, FailedTry> {
        let mut url = self.url().await?;
        let path = route.path(&self.options.engine);
        url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
        let client = self.clients.for_url(&url).map_err(|error| FailedTry {
            kind: RemoteFault::Misconfigured,
            message: error.to_string(),
            again: Again::Elsewhere,
        })?;
        let request = match route {
            Route::Generate => client.post(url).body(body),
            Route::Describe => client.get(url),
        };
        let sent = request.headers(self.headers.clone()).send();
        let response = timeout(self.options.idle_limit, sent)
            .await
            .map_err(|_| self.silent())?
            .map_err(no_reply)?;
        if response.status() == http::StatusCode::OK {
            return Ok(response);
        }
        Err(self.refused(response).await)
    }

    async fn describe(&self) -> Result<Description, FailedTry> {
        let response = self.send(Route::Describe, Vec::new()).await?;
        let body = self.whole(response).await;
        serde_json::from_slice(&body).map_err(|error| {
            bad_reply(&format!(
                "describes its engine badly: {error}: {}",
                said(&body)
            ))
        })
    }

    /// A short reply, or as much of it as came.
    async fn whole(&self, response: reqwest::Response) -> Vec<u8> {
        let mut chunks = response.bytes_stream();
        let mut body = Vec::new();
        while let Ok(Some(Ok(chunk))) = timeout(self.options.idle_limit, chunks.next()).await {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_WHOLE_BYTES {
                break;
            }
        }
        body
    }

    async fn refused(&self, response: reqwest::Response) -> FailedTry {
        let status = response.status().as_u16();
        let asked = retry_after(response.headers(), std::time::SystemTime::now());
        let (kind, again) = match status {
            408 => (RemoteFault::TimedOut, Again::Later(asked)),
            429 | 503 => (RemoteFault::Overloaded, Again::Later(asked)),
            500.. => (RemoteFault::ServerError, Again::Later(asked)),
            // Somebody else may listen where it was.
            401 | 403 | 404 | 405 => (RemoteFault::Misconfigured, Again::Elsewhere),
            // Our request is no good.
            _ => (RemoteFault::Misconfigured, Again::Never),
        };
        let body = self.whole(response).await;
        FailedTry {
            kind,
            message: format!("answered with status {status}: {}", said(&body)),
            again,
        }
    }

    pub(super) fn silent(&self) -> FailedTry {
        let limit = self.options.idle_limit;
        FailedTry {
            kind: RemoteFault::TimedOut,
            message: format!("sent nothing for {limit:?}"),
            again: Again::Later(None),
        }
    }

    /// What is told when it is not tried again.
    pub(super) fn given_up(&self, failed: &FailedTry, patience: &Patience) -> GenerationError {
        let tried = match patience.tries {
            0 | 1 => String::new(),
            tries => format!(" (tried {tries} times in {:.0?})", patience.began.elapsed()),
        };
        let message = format!("the controller's token endpoint {}{tried}", failed.message);
        GenerationError::Remote {
            kind: failed.kind,
            message: self.options.key.redact(&message),
        }
    }
}

fn no_reply(error: reqwest::Error) -> FailedTry {
    let what = if error.is_connect() {
        "cannot be reached"
    } else {
        "broke the connection before it replied"
    };
    FailedTry {
        kind: RemoteFault::Unreachable,
        message: format!("{what}: {}", error_chain(&error.without_url())),
        again: Again::Later(None),
    }
}

pub(super) fn bad_reply(what: &str) -> FailedTry {
    FailedTry {
        kind: RemoteFault::BadReply,
        message: what.to_owned(),
        again: Again::Never,
    }
}

/// How long an endpoint has been tried.
#[derive(Debug)]
pub(super) struct Patience {
    pub(super) began: Instant,
    pub(super) tries: u32,
    until: Instant,
}

impl Patience {
    pub(super) fn new(options: &EndpointEngineOptions) -> Self {
        let began = Instant::now();
        Self {
            began,
            tries: 0,
            until: began + options.away_limit,
        }
    }

    /// Counts a try that failed. How long to wait before the next; `None` when there is none.
    pub(super) async fn after(
        &mut self,
        endpoint: &Endpoint,
        failed: &FailedTry,
    ) -> Option<Duration> {
        self.tries += 1;
        let asked_for = match failed.again {
            Again::Never => return None,
            Again::Elsewhere => {
                if !endpoint.has_moved().await && self.tries >= TRIES_AT_A_STRANGER {
                    return None;
                }
                None
            }
            Again::Later(asked_for) => {
                endpoint.has_moved().await;
                asked_for
            }
        };
        let wait = wait_before(
            self.tries,
            asked_for,
            endpoint.options.first_retry_wait,
            endpoint.options.longest_retry_wait,
            rand::random::<f64>(),
        );
        (Instant::now() + wait <= self.until).then_some(wait)
    }
}
