//! The rollout server as a whole: it takes rollouts until it is told to drain, and ends when everything
//! it accepted has a result and everybody was told.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use osmosis_core::Phase;
use osmosis_engine::{Engine, RunEvent, Stop};
use osmosis_gateway::RelayPolicy;
use osmosis_store::{RolloutQuery, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::callback::Courier;
use crate::desk::Desk;
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
    pub options: ServerOptions,
}

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Rollouts whose callbacks nobody took.
    pub undelivered: usize,
}

impl RolloutService {
    /// Serves until `stop`: *drain* refuses new rollouts, has what was accepted run and graded as far as
    /// the drain's limit allows, cancels the rest and delivers all callbacks; *now* does nothing of it.
    /// `events` are the engine's, and are passed on to `observer`.
    ///
    /// Rollouts that an earlier process left without a result are cancelled: their keys went with it.
    pub async fn run(
        self,
        listening: Listening,
        events: mpsc::Receiver<RunEvent>,
        observer: Option<mpsc::Sender<RunEvent>>,
        stop: &Stop,
    ) -> Result<Served, ServerError> {
        let over = CancellationToken::new();
        let capacity = self.options.max_in_flight + self.options.max_queued;
        let shared = Arc::new(Shared {
            desk: Desk::new(capacity, next_row(&*self.store).await?),
            courier: Arc::new(Courier::new(self.options.callbacks, over.clone())),
            engine: self.engine,
            relay: self.relay,
            store: self.store,
            options: self.options,
            wake: Arc::default(),
            admissions: TaskTracker::new(),
            heralds: TaskTracker::new(),
            over: over.clone(),
            process_id: format!("{:032x}", rand::random::<u128>()),
        });
        // Whatever happens, nothing of it outlives this function.
        let _over = over.drop_guard();
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(Arc::clone(&shared), events, observer));
        shared.engine.cancel_queued().await?;

        let http_stop = CancellationToken::new();
        let listener = listening.listener.tap_io(|stream| {
            // It only makes small answers faster.
            let _ = stream.set_nodelay(true);
        });
        let serving = axum::serve(listener, api::router(Arc::clone(&shared)))
            .with_graceful_shutdown(http_stop.clone().cancelled_owned());
        let mut http = JoinSet::new();
        http.spawn(serving.into_future());

        let ended = shared.serve(stop, &mut http).await;
        http_stop.cancel();
        let _ = tokio::time::timeout(LAST_REQUESTS, http.join_next()).await;
        let undelivered = shared.desk.counts().undelivered;
        ended.map(|()| Served { undelivered })
    }
}

impl Shared {
    /// From the first rollout to the last callback.
    async fn serve(
        self: &Arc<Self>,
        stop: &Stop,
        http: &mut JoinSet<std::io::Result<()>>,
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
        self.desk.close();
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
        // Requests that were half accepted when the desk was closed.
        self.admissions.close();
        self.admissions.wait().await;
        if tokio::time::timeout_at(deadline, self.desk.all_finished())
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
        if tokio::time::timeout(CANCEL_LIMIT, self.desk.all_finished())
            .await
            .is_err()
        {
            tracing::warn!("some rollouts did not end");
        }
        Ok(())
    }

    async fn cancel_all(&self) -> Result<usize, ServerError> {
        let open = self.desk.open_ones(|_| true);
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
            } => shared.desk.agent_done(id),
            RunEvent::Finished { id, outcome, .. } => {
                shared.relay.forget(id);
                shared.desk.finished(id, outcome.clone());
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

/// The first row that is not in the store.
async fn next_row(store: &dyn Store) -> Result<u64, StoreError> {
    let mut query = RolloutQuery::default();
    let mut next = 0;
    loop {
        let page = store.rollouts(query.clone()).await?;
        if let Some(last) = page.items.last() {
            next = last.row_index + 1;
        }
        query.after = page.next;
        if query.after.is_none() {
            return Ok(next);
        }
    }
}
