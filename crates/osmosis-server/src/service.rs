//! The rollout server as a whole: it takes rollouts until it is told to drain, and ends when everything
//! it accepted has a result and everybody was told.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use osmosis_core::Phase;
use osmosis_engine::{Engine, RunEvent, Stop};
use osmosis_gateway::{ConnectionLimits, RelayPolicy, serve_connections};
use osmosis_store::Store;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service as _;

use crate::callback::CallbackSender;
use crate::guard::Guard;
use crate::registry::RolloutRegistry;
use crate::resuming::Found;
use crate::sealed::StateKey;
use crate::shared::Shared;
use crate::{ServerError, ServerOptions, api};

/// How long rollouts may take to end once they were cancelled.
const CANCEL_LIMIT: Duration = Duration::from_secs(15);
/// The least time that callbacks get when everything has ended.
const LAST_CALLBACKS: Duration = Duration::from_secs(10);
/// How long open requests may take when all is over.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// An address that is ours; requests wait there until the service runs.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    url: String,
    loopback: bool,
}

impl Listening {
    pub async fn on(address: SocketAddr) -> Result<Self, ServerError> {
        let failed = |error: std::io::Error| ServerError::Listen {
            address,
            message: error.to_string(),
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let mut ours = listener.local_addr().map_err(failed)?;
        let loopback = ours.ip().is_loopback();
        if ours.ip().is_unspecified() {
            ours.set_ip(match ours.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            });
        }
        Ok(Self {
            listener,
            url: format!("http://{ours}"),
            loopback,
        })
    }

    /// Whether only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Everything a rollout server is made of.
#[derive(Debug)]
pub struct RolloutService {
    /// Made by `Engine::for_requests`.
    pub engine: Engine,
    /// What the engine's gateway asks.
    pub relay: Arc<RelayPolicy>,
    /// The engine's own.
    pub store: Arc<dyn Store>,
    /// Seals what requests need after a restart; the same one each time.
    pub state_key: StateKey,
    pub options: ServerOptions,
}

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Rollouts whose callbacks nobody took; the next start calls again.
    pub undelivered: usize,
    /// Rollouts that have no result; the next start runs them.
    pub unfinished: usize,
}

impl RolloutService {
    /// Serves until `stop`: *drain* refuses new rollouts, has what was accepted run and graded as far as
    /// the drain's limit allows, cancels the rest and delivers all callbacks; *now* does nothing of it.
    /// `events` are the engine's, and are passed on to `observer`.
    ///
    /// What an earlier process accepted is gone on with: rollouts without a result run, callbacks that nobody
    /// acknowledged are sent. Those whose keys can't be opened wait for the same request again.
    pub async fn run(
        self,
        listening: Listening,
        events: mpsc::Receiver<RunEvent>,
        observer: Option<mpsc::Sender<RunEvent>>,
        stop: &Stop,
    ) -> Result<Served, ServerError> {
        let over = CancellationToken::new();
        let capacity = self.options.max_in_flight + self.options.max_queued;
        let found = Found::in_store(&*self.store).await?;
        let sender = CallbackSender::new(
            self.options.callbacks,
            self.options.address_rules.clone(),
            over.clone(),
        );
        let shared = Arc::new(Shared {
            registry: RolloutRegistry::new(capacity, found.next_row),
            sender: Arc::new(sender),
            guard: Guard::new(&self.options, listening.loopback),
            state_key: self.state_key,
            without_keys: Mutex::default(),
            engine: self.engine,
            relay: self.relay,
            store: self.store,
            options: self.options,
            wake: Arc::default(),
            admissions: TaskTracker::new(),
            heralds: TaskTracker::new(),
            connections: TaskTracker::new(),
            over: over.clone(),
            process_id: format!("{:032x}", rand::random::<u128>()),
        });
        // Whatever happens, nothing of it outlives this function.
        let _over = over.drop_guard();
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(Arc::clone(&shared), events, observer));
        shared.resume(found.unfinished).await?;

        let http_stop = CancellationToken::new();
        let router = api::router(Arc::clone(&shared));
        let answer = move |request| {
            let mut router = router.clone();
            async move {
                match router.call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
        };
        let mut http = JoinSet::new();
        http.spawn(serve_connections(
            listening.listener,
            answer,
            ConnectionLimits::default(),
            shared.connections.clone(),
            http_stop.clone(),
            |_| {},
        ));

        let ended = shared.serve(stop, &mut http).await;
        http_stop.cancel();
        shared.connections.close();
        let _ = tokio::time::timeout(LAST_REQUESTS, shared.connections.wait()).await;
        ended?;
        shared.left().await
    }
}

impl Shared {
    /// From the first rollout to the last callback.
    async fn serve(
        self: &Arc<Self>,
        stop: &Stop,
        http: &mut JoinSet<()>,
    ) -> Result<(), ServerError> {
        let engine_stop = Stop {
            drain: CancellationToken::new(),
            now: stop.now.clone(),
        };
        let mut driving = pin!(self.engine.serve(&engine_stop, &self.wake));
        tokio::select! {
            biased;
            () = stop.now.cancelled() => {}
            () = stop.drain.cancelled() => {}
            driven = &mut driving => return driven.map_err(ServerError::from),
            Some(ended) = http.join_next() => {
                return Err(ServerError::Http(format!("{ended:?}")));
            }
        }
        let deadline = Instant::now() + self.options.drain_limit;
        self.registry.close();
        tokio::select! {
            biased;
            () = stop.now.cancelled() => {}
            drained = self.drain(deadline) => drained?,
            driven = &mut driving => return driven.map_err(ServerError::from),
        }
        engine_stop.drain.cancel();
        driving.await?;
        if !stop.now.is_cancelled() {
            self.heralds.close();
            let deadline = deadline.max(Instant::now() + LAST_CALLBACKS);
            tokio::select! {
                () = stop.now.cancelled() => {}
                _ = tokio::time::timeout_at(deadline, self.heralds.wait()) => {}
            }
        }
        Ok(())
    }

    /// Waits until everything that was accepted has its result; cancels what has not at the deadline.
    async fn drain(&self, deadline: Instant) -> Result<(), ServerError> {
        // Requests that were half accepted when the registry was closed.
        self.admissions.close();
        self.admissions.wait().await;
        if tokio::time::timeout_at(deadline, self.registry.all_finished())
            .await
            .is_ok()
        {
            return Ok(());
        }
        let cancelled = self.cancel_all().await?;
        tracing::warn!(
            cancelled,
            "the drain took too long; what was left is cancelled"
        );
        if tokio::time::timeout(CANCEL_LIMIT, self.registry.all_finished())
            .await
            .is_err()
        {
            tracing::warn!("some rollouts did not end");
        }
        Ok(())
    }

    /// What the next start has to go on with.
    async fn left(&self) -> Result<Served, ServerError> {
        let requests = self.store.unsettled_requests().await?;
        let ids: Vec<_> = requests.into_iter().map(|one| one.rollout_id).collect();
        let records = self.store.rollouts_by_id(&ids).await?;
        let unfinished = records.iter().filter(|one| one.outcome.is_none()).count();
        Ok(Served {
            undelivered: records.len() - unfinished,
            unfinished,
        })
    }

    async fn cancel_all(&self) -> Result<usize, ServerError> {
        let open = self.registry.open_ones(|_| true);
        for (id, _) in &open {
            self.engine.cancel(id).await?;
        }
        self.wake.notify_one();
        Ok(open.len())
    }
}

/// Notes what the engine tells, and passes it on.
async fn follow(
    shared: Arc<Shared>,
    mut events: mpsc::Receiver<RunEvent>,
    observer: Option<mpsc::Sender<RunEvent>>,
) {
    while let Some(event) = events.recv().await {
        match &event {
            RunEvent::PhaseBegan {
                id,
                phase: Phase::Grade,
                ..
            } => shared.registry.agent_done(id),
            RunEvent::Finished { id, outcome, .. } => {
                shared.relay.forget(id);
                shared.registry.finished(id, outcome.clone());
            }
            RunEvent::Began { .. }
            | RunEvent::Claimed { .. }
            | RunEvent::PhaseBegan {
                phase: Phase::Agent,
                ..
            }
            | RunEvent::Retrying { .. }
            | RunEvent::GradingAgain { .. }
            | RunEvent::Draining { .. } => {}
        }
        if let Some(observer) = &observer {
            // Nobody looks any more: the display is gone, the server is not.
            let _ = observer.send(event).await;
        }
    }
}
