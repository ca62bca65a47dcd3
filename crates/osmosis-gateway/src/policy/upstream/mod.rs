//! A policy behind OpenAI-compatible servers.

mod adaptive;
mod body;
mod breaker;
mod clients;
mod direct;
mod endpoint;
mod limit;
mod pieces;
mod pool;
mod probe;
mod reply;
mod retry;

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::{Stream, StreamExt, stream};
use osmosis_core::PolicyVersion;
use osmosis_dialect::{Dialect, OutputLimit};

pub use self::breaker::{BreakerSettings, Health};
pub(crate) use self::clients::DirectClients;
pub use self::clients::HttpClients;
pub use self::endpoint::EndpointOptions;
pub(crate) use self::endpoint::without_credentials;
use self::endpoint::{Endpoint, completions_url};
pub use self::pool::{EndpointLoad, PoolLoad, QueueLimits};
use self::pool::{Pool, Ticket, Wish};
pub(crate) use self::reply::{error_chain, said};
pub(crate) use self::retry::{retry_after, wait_before};
use crate::error::GatewayError;
use crate::policy::probe_finding::Probed;
use crate::policy::{
    CallFormat, Capabilities, DialectSet, Fault, ModelCall, ModelReply, Policy, PolicyChange,
    PolicyDescription, ReplyBody, Servers, Updates,
};

/// What there is to know about an upstream.
#[derive(Debug, Clone)]
pub struct UpstreamOptions {
    /// The servers that answer, at least one. They all serve the same model.
    pub endpoints: Vec<EndpointOptions>,
    /// The model name the upstream is sent.
    pub model: String,
    /// The dialects the upstream answers at their paths; calls of others are translated to chat.
    pub dialects: Vec<Dialect>,
    pub version: PolicyVersion,
    pub connect_timeout: Duration,
    /// How long the upstream may take to send its first byte. For a plain call that is the whole
    /// generation.
    pub first_byte_limit: Duration,
    /// How long it may then fall silent.
    pub idle_limit: Duration,
    /// How many more times a call is tried that got nothing but a connection error, 429 or 5xx.
    pub retries: u32,
    /// The wait before the first retry; it doubles from there, with jitter. A retry that can go to
    /// another endpoint does not wait.
    pub first_retry_wait: Duration,
    /// No wait is longer, whatever `Retry-After` says.
    pub longest_retry_wait: Duration,
    pub breaker: BreakerSettings,
    pub queue: QueueLimits,
}

impl UpstreamOptions {
    /// One server, without a key.
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self::of(vec![EndpointOptions::new(base_url)], model)
    }

    pub fn of(endpoints: Vec<EndpointOptions>, model: impl Into<String>) -> Self {
        Self {
            endpoints,
            model: model.into(),
            dialects: vec![Dialect::ChatCompletions],
            version: PolicyVersion::default(),
            connect_timeout: Duration::from_secs(10),
            first_byte_limit: Duration::from_mins(10),
            idle_limit: Duration::from_mins(2),
            retries: 4,
            first_retry_wait: Duration::from_millis(500),
            longest_retry_wait: Duration::from_secs(30),
            breaker: BreakerSettings::default(),
            queue: QueueLimits::default(),
        }
    }
}

/// A policy behind OpenAI-compatible servers. See [`UpstreamOptions`].
pub struct UpstreamPolicy {
    pool: Arc<Pool>,
    clients: Arc<HttpClients>,
    /// The endpoints without credentials, for records and messages.
    endpoint: String,
    version: AtomicU64,
    /// Whether metrics may name the endpoints. Those of single rollouts are too many.
    named_in_metrics: bool,
    /// It wants the limit of an answer under its newer name: by its address, or because it said so.
    newer_limit: AtomicBool,
    /// Those of the options.
    dialects: DialectSet,
    options: UpstreamOptions,
}

impl fmt::Debug for UpstreamPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamPolicy")
            .field("endpoint", &self.endpoint)
            .field("model", &self.options.model)
            .finish_non_exhaustive()
    }
}

/// Why one try came to nothing.
struct FailedTry {
    fault: Fault,
    /// Nothing was received that could not be had again.
    retry: bool,
    retry_after: Option<Duration>,
}

impl UpstreamPolicy {
    pub fn new(options: UpstreamOptions) -> Result<Self, GatewayError> {
        let clients = Arc::new(HttpClients::new(options.connect_timeout));
        Self::build(options, clients, true)
    }

    /// Like `new`, for one rollout, with connections that are shared with others.
    pub(crate) fn for_a_rollout(
        options: UpstreamOptions,
        clients: &Arc<HttpClients>,
    ) -> Result<Self, GatewayError> {
        Self::build(options, Arc::clone(clients), false)
    }

    fn build(
        options: UpstreamOptions,
        clients: Arc<HttpClients>,
        named_in_metrics: bool,
    ) -> Result<Self, GatewayError> {
        let endpoints = options
            .endpoints
            .iter()
            .map(|endpoint| {
                let made = Endpoint::new(endpoint, &options, &clients)?;
                Ok((Arc::new(made), endpoint.max_in_flight))
            })
            .collect::<Result<Vec<_>, GatewayError>>()?;
        if endpoints.is_empty() {
            return Err(GatewayError::NoUpstream);
        }
        let names: Vec<&str> = endpoints
            .iter()
            .map(|(endpoint, _)| &*endpoint.name)
            .collect();
        Ok(Self {
            endpoint: names.join(", "),
            pool: Pool::new(endpoints, options.queue, options.breaker),
            clients,
            version: AtomicU64::new(options.version.0),
            named_in_metrics,
            newer_limit: AtomicBool::new(limit::is_openai_alone(&options)),
            dialects: options.dialects.iter().copied().collect(),
            options,
        })
    }

    fn output_limit(&self) -> OutputLimit {
        if self.newer_limit.load(Ordering::Relaxed) {
            OutputLimit::MaxCompletionTokens
        } else {
            OutputLimit::MaxTokens
        }
    }

    fn version(&self) -> PolicyVersion {
        PolicyVersion(self.version.load(Ordering::SeqCst))
    }

    /// The endpoints of a change. A key is kept by an endpoint on the same host and port, and goes
    /// nowhere else.
    fn changed_endpoints(&self, change: &PolicyChange) -> Vec<EndpointOptions> {
        let Some(endpoints) = &change.endpoints else {
            return self.options.endpoints.clone();
        };
        let known = |base_url: &str| {
            let origin = completions_url(base_url).ok()?.origin();
            let origin = origin.ascii_serialization();
            let at = self
                .pool
                .endpoints
                .iter()
                .position(|endpoint| endpoint.origin() == origin)?;
            self.options.endpoints.get(at)
        };
        endpoints
            .iter()
            .map(|endpoint| {
                let mut endpoint = endpoint.clone();
                if let Some(known) = known(&endpoint.base_url) {
                    endpoint.api_key = endpoint.api_key.or_else(|| known.api_key.clone());
                    endpoint.max_in_flight = endpoint.max_in_flight.or(known.max_in_flight);
                }
                endpoint
            })
            .collect()
    }

    /// One try, at the endpoint that the ticket is for.
    async fn try_at(
        &self,
        ticket: &mut Ticket,
        call: &ModelCall,
        dialect: Dialect,
    ) -> Result<ModelReply, FailedTry> {
        let endpoint = Arc::clone(ticket.endpoint());
        let name = Arc::clone(&endpoint.name);
        call.call_trace
            .sent(name, self.version(), self.named_in_metrics);
        let tried = endpoint.try_once(call, dialect).await;
        match &tried {
            Ok(reply) => {
                if limit::is_asked_for_by(reply) {
                    self.newer_limit.store(true, Ordering::Relaxed);
                }
                ticket.succeeded(matches!(reply.body, ReplyBody::Stream(_)));
            }
            Err(failed) => ticket.failed(&failed.fault, failed.retry_after),
        }
        tried
    }
}

#[async_trait]
impl Policy for UpstreamPolicy {
    fn describe(&self) -> PolicyDescription {
        PolicyDescription {
            model: self.options.model.clone(),
            endpoint: self.endpoint.clone(),
            version: self.version(),
        }
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            dialects: self.dialects,
            token_ids: false,
            output_limit: self.output_limit(),
            weights: None,
            servers: Some(self),
            updates: Some(self),
        }
    }

    async fn answer(&self, call: ModelCall) -> Result<ModelReply, Fault> {
        let CallFormat::Dialect(dialect) = call.format else {
            return Ok(ModelReply::no_token_ids(&self.describe()));
        };
        call.call_trace.begins();
        let several = self.pool.endpoints.len() > 1;
        let mut wish = Wish {
            preferred: if several {
                call.history.endpoint_of(self.pool.id)
            } else {
                None
            },
            tried: Vec::new(),
        };
        let mut tries = 0;
        let began = Instant::now();
        loop {
            tries += 1;
            let taken = self.pool.take(wish.clone()).await;
            call.call_trace.lost(began, Instant::now());
            let mut failed = match taken {
                Err(fault) => FailedTry {
                    // Who waited in vain for a place is not sent to wait again.
                    retry: fault.kind != crate::policy::FaultKind::QueueFull,
                    fault,
                    retry_after: None,
                },
                Ok(mut ticket) => {
                    let lane = ticket.lane();
                    match self.try_at(&mut ticket, &call, dialect).await {
                        Ok(reply) => {
                            // Where it went because its own endpoint was full it does not stay.
                            let moves = |own| wish.tried.contains(&own) || self.pool.is_open(own);
                            if several && wish.preferred.is_none_or(moves) {
                                call.history.stay_with(self.pool.id, lane);
                            }
                            return Ok(with_ticket(reply, ticket));
                        }
                        Err(failed) => {
                            wish.tried.push(lane);
                            failed
                        }
                    }
                }
            };
            call.call_trace.failed(&failed.fault);
            call.call_trace.lost(began, Instant::now());
            if !failed.retry || tries > self.options.retries {
                if tries > 1 {
                    // Writing into a `String` cannot fail.
                    let _ = write!(failed.fault.message, " (tried {tries} times)");
                }
                return Err(failed.fault);
            }
            if self.pool.has_another(&wish.tried) {
                tracing::debug!(tries, fault = %failed.fault, "a model call goes to another upstream");
                continue;
            }
            wish.tried.clear();
            let wait = retry::wait_before(
                tries,
                failed.retry_after,
                self.options.first_retry_wait,
                self.options.longest_retry_wait,
                rand::random::<f64>(),
            );
            tracing::debug!(
                rollout = %call.rollout_id, tries, wait_ms = wait.as_millis(), fault = %failed.fault,
                "a model call is tried again"
            );
            // Beforehand, so that no deadline passes while it waits.
            call.call_trace.lost(began, Instant::now() + wait);
            tokio::time::sleep(wait).await;
        }
    }
}

#[async_trait]
impl Servers for UpstreamPolicy {
    async fn probe(&self) -> Vec<Probed> {
        let endpoints = self.pool.endpoints.iter();
        let probed = endpoints.map(|endpoint| self.probe_at(endpoint));
        futures_util::future::join_all(probed).await
    }

    fn load(&self) -> Option<PoolLoad> {
        Some(self.pool.load())
    }
}

impl Updates for UpstreamPolicy {
    fn set_version(&self, version: PolicyVersion) {
        self.version.store(version.0, Ordering::SeqCst);
    }

    fn changed(&self, change: &PolicyChange) -> Result<Arc<dyn Policy>, GatewayError> {
        let mut options = self.options.clone();
        options.endpoints = self.changed_endpoints(change);
        options.version = change.version;
        if let Some(model) = &change.model {
            options.model.clone_from(model);
        }
        let made = Self::build(options, Arc::clone(&self.clients), self.named_in_metrics)?;
        Ok(Arc::new(made))
    }
}

/// A stream keeps its place at the endpoint until it ends, and says when it breaks.
fn with_ticket(reply: ModelReply, ticket: Ticket) -> ModelReply {
    let body = match reply.body {
        ReplyBody::Whole(body) => ReplyBody::Whole(body),
        ReplyBody::Stream(chunks) => ReplyBody::Stream(Box::pin(watched(chunks, ticket))),
    };
    ModelReply { body, ..reply }
}

fn watched(
    chunks: impl Stream<Item = Result<bytes::Bytes, Fault>> + Send + Unpin,
    ticket: Ticket,
) -> impl Stream<Item = Result<bytes::Bytes, Fault>> + Send {
    stream::unfold((chunks, ticket), |(mut chunks, mut ticket)| async move {
        let chunk = chunks.next().await?;
        if let Err(fault) = &chunk {
            ticket.failed(fault, None);
        }
        Some((chunk, (chunks, ticket)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    #[test]
    fn neither_the_key_nor_a_password_shows_in_debug_output() {
        let mut options = UpstreamOptions::new("https://u:hunter2@h/v1", "m");
        options.endpoints[0].api_key = Some(Secret::new("sk-secret"));
        let shown = format!(
            "{options:?} {:?}",
            UpstreamPolicy::new(options.clone()).unwrap()
        );
        assert!(
            !shown.contains("sk-secret") && !shown.contains("hunter2"),
            "{shown}"
        );
        options.endpoints[0].api_key = Some(Secret::new("sk\nsecret"));
        assert!(matches!(
            UpstreamPolicy::new(options.clone()),
            Err(GatewayError::UpstreamKey)
        ));
        options.endpoints.clear();
        assert!(matches!(
            UpstreamPolicy::new(options),
            Err(GatewayError::NoUpstream)
        ));
    }

    #[test]
    fn a_key_goes_with_a_change_to_the_same_host_and_port_alone() {
        let mut options = UpstreamOptions::new("http://h:1/v1", "m");
        options.endpoints[0].api_key = Some(Secret::new("sk-secret"));
        let policy = UpstreamPolicy::new(options).unwrap();
        let change = PolicyChange {
            endpoints: Some(
                ["http://h:1/v2", "http://h:2/v1", "https://h:1/v1"]
                    .map(EndpointOptions::new)
                    .into(),
            ),
            model: None,
            version: PolicyVersion(1),
        };
        let keyed: Vec<bool> = policy
            .changed_endpoints(&change)
            .iter()
            .map(|endpoint| endpoint.api_key.is_some())
            .collect();
        assert_eq!(keyed, [true, false, false]);
    }
}
