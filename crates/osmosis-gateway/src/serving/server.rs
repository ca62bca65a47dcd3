//! The gateway as it is started, asked and stopped from Rust, and what all of its requests share.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use camino::Utf8Path;
use futures_util::future::BoxFuture;
use osmosis_core::{Attempt, PolicyVersion, RolloutId};
use osmosis_dialect::Sampling;
use osmosis_store::{CallPurpose, CallSummary, Store};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::GatewayError;
use crate::options::{ConnectionLimits, Durability, GatewayOptions};
use crate::policy::registry::{HoldLimits, PolicyStatus, PolicyUpdate, Registry};
use crate::policy::{Fault, FaultKind, Policy, PolicyDescription};
use crate::secret::Secret;
use crate::serving::connection;
use crate::serving::control::{self, ControlKey};
use crate::serving::control_service::Services;
use crate::serving::requests::serve;
use crate::sessions::call_history::CallHistory;
use crate::sessions::live::LiveStatus;
use crate::sessions::rollout_session::{RolloutSession, SessionRegistry, Whose};
use crate::telemetry::metrics::{Metrics, MoreMetrics};
use crate::telemetry::spans::{RolloutSpans, Telemetry};

/// Answers what is not for the gateway itself, on the same address: every request whose path is not
/// below `/v1/`.
#[derive(Clone)]
pub struct ExtraRoutes(
    pub(super) Arc<dyn Fn(Request) -> BoxFuture<'static, Response> + Send + Sync>,
);

impl ExtraRoutes {
    pub fn new<F>(answer: impl Fn(Request) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        Self(Arc::new(move |request| Box::pin(answer(request))))
    }
}

impl fmt::Debug for ExtraRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExtraRoutes(..)")
    }
}

/// How long records may still be written after the grace period of a shutdown ran out.
const LAST_RECORDS: Duration = Duration::from_secs(2);

/// A running gateway. Dropping it stops it at once.
pub struct Gateway {
    url: String,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

/// What every request needs.
pub(crate) struct Shared {
    pub(crate) registry: Registry,
    pub(crate) hold: HoldLimits,
    pub(crate) connections: ConnectionLimits,
    pub(crate) control_key: ControlKey,
    pub(crate) open_metrics: bool,
    pub(crate) metrics: Metrics,
    pub(crate) telemetry: Option<Arc<Telemetry>>,
    /// `None` for a gateway that records nothing.
    pub(crate) store: Option<Arc<dyn Store>>,
    pub(crate) durability: Durability,
    pub(crate) sampling: Sampling,
    /// The first fault that a run has no use for going on after.
    run_fault: watch::Sender<Option<Fault>>,
    /// Fields of calls that were warned of.
    warned_of: Mutex<Vec<&'static str>>,
    pub(crate) max_body_bytes: usize,
    pub(super) extra_routes: Option<ExtraRoutes>,
    pub(crate) services: Services,
    pub(super) sessions: SessionRegistry,
    /// Nothing is waited for any more.
    pub(crate) stop: CancellationToken,
    /// Ends every session.
    everything: CancellationToken,
    /// The accept loop, the connections, and records whose caller is gone.
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: tokio::runtime::Handle,
}

impl Gateway {
    pub async fn start(
        options: GatewayOptions,
        policy: Arc<dyn Policy>,
        store: Arc<dyn Store>,
    ) -> Result<Self, GatewayError> {
        Self::start_with(options, policy, Some(store), None).await
    }

    /// A gateway that shares its address with something else.
    pub async fn start_beside(
        options: GatewayOptions,
        policy: Arc<dyn Policy>,
        store: Arc<dyn Store>,
        extra_routes: ExtraRoutes,
    ) -> Result<Self, GatewayError> {
        Self::start_with(options, policy, Some(store), Some(extra_routes)).await
    }

    /// A gateway that keeps no record of what passes through it.
    pub async fn start_unrecorded(
        options: GatewayOptions,
        policy: Arc<dyn Policy>,
    ) -> Result<Self, GatewayError> {
        Self::start_with(options, policy, None, None).await
    }

    async fn start_with(
        options: GatewayOptions,
        policy: Arc<dyn Policy>,
        store: Option<Arc<dyn Store>>,
        extra_routes: Option<ExtraRoutes>,
    ) -> Result<Self, GatewayError> {
        let cannot_listen = |error: std::io::Error| GatewayError::Listen {
            address: options.listen,
            message: error.to_string(),
        };
        let listener = TcpListener::bind(options.listen)
            .await
            .map_err(cannot_listen)?;
        let mut address = listener.local_addr().map_err(cannot_listen)?;
        if address.ip().is_unspecified() {
            address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        let metrics = Metrics::default();
        let telemetry = options
            .telemetry
            .map(|options| Telemetry::start(options, Arc::clone(&metrics.spans_dropped)))
            .transpose()?
            .map(Arc::new);
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            registry: Registry::new(policy),
            hold: options.hold,
            connections: options.connections,
            control_key: ControlKey::new(options.control_key),
            open_metrics: options.open_metrics,
            metrics,
            telemetry,
            store,
            durability: options.durability,
            sampling: options.sampling,
            run_fault: watch::Sender::new(None),
            warned_of: Mutex::default(),
            max_body_bytes: options.max_body_bytes,
            extra_routes,
            services: Services(options.services),
            sessions: SessionRegistry::default(),
            stop: stop.clone(),
            everything: CancellationToken::new(),
            tasks: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
        });
        let answering = Arc::clone(&shared);
        let accepting = connection::serve_connections(
            listener,
            move |request| serve(Arc::clone(&answering), request),
            shared.connections,
            shared.tasks.clone(),
            stop.clone(),
            {
                let shared = Arc::clone(&shared);
                move |error| shared.note_run_fault(&out_of_descriptors(error))
            },
        );
        shared.tasks.spawn(accepting);
        Ok(Self {
            url: format!("http://{address}/v1"),
            shared,
            stop,
        })
    }

    /// The base URL that clients append `/chat/completions` to: `http://127.0.0.1:PORT/v1`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits for a fault that a run has no use for going on after: every rollout would fare alike.
    pub async fn run_fault(&self) -> Fault {
        let mut faults = self.shared.run_fault.subscribe();
        loop {
            let noted = faults.borrow_and_update().clone();
            match noted {
                Some(fault) => return fault,
                // The sender lives as long as the gateway.
                None if faults.changed().await.is_err() => return std::future::pending().await,
                None => {}
            }
        }
    }

    /// From now on the page of metrics has these lines too; the first who asks for it has it.
    pub fn add_metrics(&self, more: MoreMetrics) {
        let _ = self.shared.metrics.more.set(more);
    }

    /// Shows the page of metrics at another address as well, to those who have the key, until the gateway stops. Without a
    /// key it makes one. Returns the address and the key.
    pub async fn serve_metrics(
        &self,
        listen: SocketAddr,
        key: Option<Secret>,
    ) -> Result<(SocketAddr, Secret), GatewayError> {
        let cannot_listen = |error: std::io::Error| GatewayError::Listen {
            address: listen,
            message: error.to_string(),
        };
        let listener = TcpListener::bind(listen).await.map_err(cannot_listen)?;
        let address = listener.local_addr().map_err(cannot_listen)?;
        let shared = Arc::clone(&self.shared);
        let key = Arc::new(ControlKey::new(key));
        let secret = key.key.clone();
        let accepting = connection::serve_connections(
            listener,
            move |request| {
                let answer = control::serve_metrics(&shared, &key, request);
                async move { answer }
            },
            self.shared.connections,
            self.shared.tasks.clone(),
            self.stop.clone(),
            |_| {},
        );
        self.shared.tasks.spawn(accepting);
        Ok((address, secret))
    }

    /// What opens the control API.
    pub fn control_key(&self) -> &Secret {
        &self.shared.control_key.key
    }

    /// The version of the run's policy, each time another one is announced.
    pub fn announced_versions(&self) -> watch::Receiver<PolicyVersion> {
        self.shared.registry.run_policy().versions()
    }

    /// Calls that ask for the model `name` go to this policy from now on.
    pub fn register(&self, name: &str, policy: Arc<dyn Policy>) -> Result<(), GatewayError> {
        self.shared.registry.register(name, policy)
    }

    /// How a policy is doing; `None` is the run's own.
    pub fn policy(&self, name: Option<&str>) -> Result<PolicyStatus, GatewayError> {
        Ok(self.shared.registry.get(name)?.status())
    }

    /// Changes where a policy is or which version it is, all at once. Calls under way finish with what they
    /// began with.
    pub fn update_policy(
        &self,
        name: Option<&str>,
        update: PolicyUpdate,
    ) -> Result<PolicyVersion, GatewayError> {
        self.shared.registry.get(name)?.update(update)
    }

    /// Has an embedded policy answer with the weights of a checkpoint folder, from the next token on.
    /// Without `version` it is the next one.
    pub async fn load_weights(
        &self,
        name: Option<&str>,
        folder: &Utf8Path,
        version: Option<PolicyVersion>,
    ) -> Result<PolicyVersion, GatewayError> {
        let served = self.shared.registry.get(name)?;
        served.load_weights(folder, version).await
    }

    /// Puts another policy in the place of one. Calls under way finish with what they began with.
    pub fn replace_policy(
        &self,
        name: Option<&str>,
        policy: Arc<dyn Policy>,
    ) -> Result<(), GatewayError> {
        self.shared.registry.get(name)?.replace(policy);
        Ok(())
    }

    /// Holds calls that come from now on, without failing them; those under way go on.
    pub fn pause(&self, name: Option<&str>) -> Result<(), GatewayError> {
        self.shared.registry.get(name)?.pause();
        Ok(())
    }

    /// Returns when none of a paused policy's calls is under way; `false` when it was resumed meanwhile.
    pub async fn drained(&self, name: Option<&str>) -> Result<bool, GatewayError> {
        Ok(self.shared.registry.get(name)?.drained().await)
    }

    /// Lets the calls that were held go on.
    pub fn resume(&self, name: Option<&str>) -> Result<(), GatewayError> {
        self.shared.registry.get(name)?.resume();
        Ok(())
    }

    /// The rollouts whose sessions are open, and all calls so far.
    pub fn live(&self) -> LiveStatus {
        self.shared.sessions.live()
    }

    /// All calls so far, of every rollout and attempt.
    pub fn call_totals(&self) -> CallSummary {
        self.shared.sessions.totals()
    }

    /// Makes a key for one attempt of a rollout.
    pub fn open(&self, rollout: RolloutId, attempt: Attempt) -> RolloutSession {
        self.open_as(rollout, attempt, None)
    }

    /// The same, for a rollout whose calls may come under another name than its own.
    pub fn open_as(
        &self,
        rollout: RolloutId,
        attempt: Attempt,
        alias: Option<RolloutId>,
    ) -> RolloutSession {
        self.shared.sessions.open(
            Whose {
                rollout,
                attempt,
                alias,
                purpose: CallPurpose::Policy,
                judge: None,
            },
            CallHistory::default(),
            &self.shared.everything,
        )
    }

    /// Makes a second key for one attempt of a rollout, for clients of its agent that were given no address.
    /// The run's policy answers, with the sampling that is asked for. Calls are recorded as
    /// [`CallPurpose::Other`]: they are in no sum, and nothing of them is trained on.
    pub fn open_other(&self, rollout: RolloutId, attempt: Attempt) -> RolloutSession {
        self.shared.sessions.open(
            Whose {
                rollout,
                attempt,
                alias: None,
                purpose: CallPurpose::Other,
                judge: None,
            },
            CallHistory::apart(),
            &self.shared.everything,
        )
    }

    /// From now on graders have a judge: [`Gateway::open_judge`] opens its sessions.
    pub fn set_judge(&self, policy: Arc<dyn Policy>) {
        self.shared.registry.set_judge(policy);
    }

    /// Where the calls of this rollout go, without credentials.
    pub fn endpoint_for(&self, rollout: &RolloutId) -> String {
        let policy = self.shared.registry.run_policy();
        policy.describe_for(rollout).endpoint
    }

    /// Makes a key for the grader of one attempt, with the model behind it; `None` when there
    /// is no judge. Whatever is asked with it goes to the judge, and is recorded as the judge's.
    pub fn open_judge(
        &self,
        rollout: RolloutId,
        attempt: Attempt,
    ) -> Option<(RolloutSession, PolicyDescription)> {
        let judge = self.shared.registry.judge()?;
        let described = judge.policy().describe();
        let session = self.shared.sessions.open(
            Whose {
                rollout,
                attempt,
                alias: None,
                purpose: CallPurpose::Judge,
                judge: Some(judge),
            },
            CallHistory::default(),
            &self.shared.everything,
        );
        Some((session, described))
    }

    /// Makes a key that is no rollout's and stays open for as long as it is kept, for any number of
    /// callers. Calls are recorded under `name`, attempt 1. Of their conversations the latest are
    /// remembered; one that is forgotten begins anew with its next call, which costs the policy the work
    /// of reading it again, and the record the knowledge that it goes on.
    pub fn open_standing(&self, name: RolloutId) -> RolloutSession {
        self.shared.sessions.open(
            Whose {
                rollout: name,
                attempt: Attempt(1),
                alias: None,
                purpose: CallPurpose::Policy,
                judge: None,
            },
            CallHistory::bounded(),
            &self.shared.everything,
        )
    }

    /// Where the spans of rollouts go; `None` when spans go nowhere. From now on the calls of a rollout
    /// belong to its span, so whoever asks has to send it.
    pub fn rollout_spans(&self) -> Option<RolloutSpans> {
        self.shared.telemetry.clone().map(RolloutSpans::new)
    }

    /// Stops accepting, waits for what runs; `false` when the grace period ran out. What still ran then
    /// is ended, and recorded as that.
    pub async fn shut_down(&self, grace: Duration) -> bool {
        self.stop.cancel();
        let tasks = &self.shared.tasks;
        tasks.close();
        let drained = tokio::time::timeout(grace, tasks.wait()).await.is_ok();
        self.shared.everything.cancel();
        if !drained
            && tokio::time::timeout(LAST_RECORDS, tasks.wait())
                .await
                .is_err()
        {
            tracing::warn!("some model calls were still under way when the gateway stopped");
        }
        if let Some(telemetry) = &self.shared.telemetry {
            telemetry.shut_down().await;
        }
        drained
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.cancel();
        self.shared.everything.cancel();
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

fn out_of_descriptors(error: &std::io::Error) -> Fault {
    Fault {
        kind: FaultKind::OutOfDescriptors,
        status: 503,
        message: format!("the gateway can't accept connections: {error}"),
    }
}

impl Shared {
    /// Whether a rollout's session opens with this key.
    pub(crate) fn opens_a_session(&self, key: &str) -> bool {
        self.sessions.enter(key).is_some()
    }

    /// Lets whoever drives the run know of a fault that ends it.
    pub(crate) fn note_run_fault(&self, fault: &Fault) {
        if fault.kind.ends_the_run() {
            self.run_fault.send_if_modified(|first| {
                let is_first = first.is_none();
                first.get_or_insert_with(|| fault.clone());
                is_first
            });
        }
    }

    /// Reports once for each field that calls don't get the sampling they ask for.
    pub(crate) fn warn_of_overrides(&self, fields: &[&'static str]) {
        for field in fields.iter().copied() {
            {
                let mut warned = self.warned_of.lock();
                if warned.contains(&field) {
                    continue;
                }
                warned.push(field);
            }
            let what = match field {
                "seed" => "training ignores it: with it, all attempts at a row would be identical",
                "top_k" => "training ignores it and samples from all tokens",
                "n" => {
                    "of several choices only those that a later call continues are trained on; make one \
                     call for each answer to have all of them trained on"
                }
                _ => "the run's `[sampling]` replaces it in training",
            };
            tracing::warn!(field, "agents choose a `{field}` of their own; {what}");
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}
