use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use osmosis_core::{Attempt, RolloutId};
use osmosis_store::{Claim, Store, StoreError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ahead::Pace;
use crate::decision::Rules;
use crate::live::Live;
use crate::others::{Duty, NodeEnd, NodeEnds, Others};
use crate::reading::Reading;
use crate::regrade::{Recorded, Regrade, SampleBatch};
use crate::sessions::Sessions;
use crate::{EngineError, EngineOptions, Executor, RunEnd, RunEvent, Stop, regrade, rollout};

/// Most rollouts asked for in one claim: enough to fill a batch of the store's writer.
pub(crate) const CLAIM_BATCH: usize = 64;

/// A process that was stopped for a while (`SIGSTOP`) finds one wait over when it goes on, and not all of them:
/// the store stood still as long, and may answer now.
const LOOKS_AT_SILENCE: u32 = 3;

/// Runs what is in the store's queue until nothing is left or it is asked to stop.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) parts: Arc<Parts>,
    may_begin: MayBegin,
}

/// Asked before rollouts are claimed.
#[derive(Clone)]
struct MayBegin(Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for MayBegin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MayBegin")
    }
}

/// What every rollout of the run shares.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sessions: Arc<dyn Sessions>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) options: EngineOptions,
    pub(crate) rules: Rules,
    pub(crate) reading: Reading,
    pub(crate) live: Live,
    /// Set in a run that grades the samples of another.
    pub(crate) regrade: Option<Regrade>,
    pub(crate) events: mpsc::Sender<RunEvent>,
}

impl Engine {
    pub fn new(
        store: Arc<dyn Store>,
        sessions: Arc<dyn Sessions>,
        executor: Arc<dyn Executor>,
        options: EngineOptions,
        events: mpsc::Sender<RunEvent>,
    ) -> Self {
        let reading = if executor.self_graded() {
            Reading::WholeRows
        } else {
            Reading::DatasetRows
        };
        Self::reading(reading, store, sessions, executor, options, events)
    }

    /// An engine for a queue of requests to a rollout server instead of dataset rows. The body of such
    /// a row is a JSON object with `initial_messages` and, as far as they were sent, `label`,
    /// `metadata`, `agent_timeout_sec` and `grader_timeout_sec`; the timeouts go before the limits of
    /// `options`. What else it holds is nobody's business here. See [`Engine::serve`].
    pub fn for_requests(
        store: Arc<dyn Store>,
        sessions: Arc<dyn Sessions>,
        executor: Arc<dyn Executor>,
        options: EngineOptions,
        events: mpsc::Sender<RunEvent>,
    ) -> Self {
        Self::reading(
            Reading::ServedRequests,
            store,
            sessions,
            executor,
            options,
            events,
        )
    }

    /// An engine that runs no workflow: it grades the samples of another run's rollouts, which have the same
    /// ids. What has no samples there keeps the outcome that it has.
    pub fn for_regrade(
        recorded: Recorded,
        store: Arc<dyn Store>,
        sessions: Arc<dyn Sessions>,
        executor: Arc<dyn Executor>,
        options: EngineOptions,
        events: mpsc::Sender<RunEvent>,
    ) -> Self {
        let reading = Reading::DatasetRows;
        let parts = Self::parts(reading, store, sessions, executor, options, events);
        Self {
            parts: Arc::new(Parts {
                regrade: Some(Regrade::new(recorded, parts.options.max_in_flight)),
                ..parts
            }),
            may_begin: MayBegin(Arc::new(|| true)),
        }
    }

    fn reading(
        reading: Reading,
        store: Arc<dyn Store>,
        sessions: Arc<dyn Sessions>,
        executor: Arc<dyn Executor>,
        options: EngineOptions,
        events: mpsc::Sender<RunEvent>,
    ) -> Self {
        Self {
            parts: Arc::new(Self::parts(
                reading, store, sessions, executor, options, events,
            )),
            may_begin: MayBegin(Arc::new(|| true)),
        }
    }

    fn parts(
        reading: Reading,
        store: Arc<dyn Store>,
        sessions: Arc<dyn Sessions>,
        executor: Arc<dyn Executor>,
        options: EngineOptions,
        events: mpsc::Sender<RunEvent>,
    ) -> Parts {
        let rules = Rules {
            agent_limit: options.agent_limit,
            grade_limit: options.grade_limit,
            pass_threshold: options.pass_threshold,
            reward_range: options.reward_range,
            max_failures: options.max_failures,
            model_errors: options.model_errors,
        };
        Parts {
            store,
            sessions,
            executor,
            options,
            rules,
            reading,
            live: Live::default(),
            regrade: None,
            events,
        }
    }

    /// The same, beginning rollouts only while `may_begin` says so; after a `false` what runs is
    /// finished, as if it had been asked to drain.
    #[must_use]
    pub fn begins_while(self, may_begin: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self {
            may_begin: MayBegin(Arc::new(may_begin)),
            ..self
        }
    }

    /// Drives the run. On an error what is under way is abandoned; the store still has it queued or
    /// leased, so a resume picks it up.
    ///
    /// Where others work on the run too, what they finish is told as well, and the run ends when nothing is queued or
    /// leased; a drain waits for those of them that are alive.
    pub async fn run(&self, stop: &Stop) -> Result<RunEnd, EngineError> {
        self.begin_and_drive(stop, Duty::Controls).await?;

        let counts = self.parts.answered(self.parts.store.counts()).await?;
        let left = counts.queued + counts.leased;
        Ok(if left == 0 {
            RunEnd::Complete
        } else {
            RunEnd::Stopped { left }
        })
    }

    /// Claims from the run beside the process that controls it. What the store says of the run is heeded: when it asks
    /// to stop, `stop` is cancelled.
    pub async fn run_as_node(&self, stop: &Stop, ends: NodeEnds) -> Result<NodeEnd, EngineError> {
        self.begin_and_drive(stop, Duty::Node(ends)).await
    }

    async fn begin_and_drive(&self, stop: &Stop, duty: Duty) -> Result<NodeEnd, EngineError> {
        let (mut others, counts) = match Others::begin(&self.parts, duty).await? {
            Some((others, counts)) => (Some(others), counts),
            None => (None, self.parts.answered(self.parts.store.counts()).await?),
        };
        self.parts
            .tell(RunEvent::Began {
                total: counts.total(),
                done: counts.done,
            })
            .await;
        let mut flight = Flight::default();
        let driven = self.drive(stop, &mut flight, others.as_mut()).await;
        if driven.is_err() {
            flight.tasks.abort_all();
        }
        while flight.tasks.join_next().await.is_some() {}
        driven
    }

    async fn drive(
        &self,
        stop: &Stop,
        flight: &mut Flight,
        mut others: Option<&mut Others<'_>>,
    ) -> Result<NodeEnd, EngineError> {
        let mut heartbeat = self.heartbeat();
        let mut draining = false;
        let mut unusable = self.parts.sessions.run_fault();

        loop {
            if !draining {
                self.fill_beside(stop, flight, others.as_deref_mut())
                    .await?;
            }
            if flight.tasks.is_empty() {
                // A drain that was just asked for is told before it is over.
                let ended = match &mut others {
                    None => Some(NodeEnd::NothingLeft),
                    Some(_) if stop.drain.is_cancelled() && !draining => None,
                    Some(others) => others.are_done(stop, draining).await?,
                };
                if let Some(end) = ended {
                    return Ok(end);
                }
            }
            let has_room = flight.tasks.len() < self.parts.options.max_in_flight;
            tokio::select! {
                biased;
                fault = &mut unusable => return Err(EngineError::PolicyUnusable(fault)),
                () = stop.drain.cancelled(), if !draining => {
                    draining = true;
                    let in_flight = match &self.parts.regrade {
                        // The others go back.
                        Some(regrade) => regrade.graded_now(),
                        None => flight.tasks.len(),
                    };
                    self.parts.tell(RunEvent::Draining { in_flight }).await;
                    if let Some(others) = &mut others {
                        others.tell_draining().await?;
                    }
                }
                Some(ended) = flight.tasks.join_next() => flight.all_landed(ended)?,
                _ = heartbeat.tick() => self.keep_leases(flight).await?,
                () = look_due(&mut others, has_room) => if let Some(others) = &mut others {
                    others.look(stop).await?;
                },
            }
        }
    }

    pub(crate) fn heartbeat(&self) -> tokio::time::Interval {
        let mut heartbeat = tokio::time::interval(self.parts.options.lease / 3);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        heartbeat
    }

    pub(crate) async fn keep_leases(&self, flight: &Flight) -> Result<(), EngineError> {
        let held: Vec<_> = flight.held.keys().cloned().collect();
        let lease = self.parts.options.lease;
        let renewing = self.parts.store.heartbeat(&held, lease);
        for lost in self.parts.answered(renewing).await? {
            // Whoever has it now will record it; our result would be fenced.
            if let Some(token) = flight.held.get(&lost) {
                token.cancel();
            }
        }
        Ok(())
    }

    /// Claims as many rollouts as there is room for, unless the queue is known to be empty.
    pub(crate) async fn fill_beside(
        &self,
        stop: &Stop,
        flight: &mut Flight,
        others: Option<&mut Others<'_>>,
    ) -> Result<(), EngineError> {
        let Some(others) = others else {
            return self.fill(stop, flight).await.map(drop);
        };
        flight.nodes = others.nodes();
        if others.may_claim() && self.fill(stop, flight).await? == Filled::QueueEmpty {
            others.note_empty();
        }
        Ok(())
    }

    async fn fill(&self, stop: &Stop, flight: &mut Flight) -> Result<Filled, EngineError> {
        let options = &self.parts.options;
        loop {
            let wanted = self.wanted(flight);
            if wanted == 0 || stop.drain.is_cancelled() {
                return Ok(Filled::Enough);
            }
            if !(self.may_begin.0)() {
                stop.drain.cancel();
                return Ok(Filled::Enough);
            }
            let claiming = self
                .parts
                .store
                .claim(&options.owner, wanted, options.lease);
            let claims = self.parts.answered(claiming).await?;
            let got = claims.len();
            let batch = self.parts.regrade.as_ref().map(|_| {
                let ids = claims.iter().map(|claim| claim.id.clone());
                Arc::new(SampleBatch::of(ids.collect()))
            });
            for claim in claims {
                match &batch {
                    Some(batch) => self.launch_regrade(claim, batch, stop, flight),
                    None => self.launch(claim, stop, flight).await,
                }
            }
            if got < wanted {
                return Ok(Filled::QueueEmpty);
            }
        }
    }

    /// How many rollouts to claim now.
    fn wanted(&self, flight: &mut Flight) -> usize {
        let ahead = match &self.parts.regrade {
            Some(_) => flight.pace.ahead(Instant::now()),
            None => 0,
        };
        let options = &self.parts.options;
        let most = options.claims.of(options.max_in_flight, flight.nodes) + ahead;
        let room = most.saturating_sub(flight.tasks.len());
        // While some wait, there is time to let a batch come together.
        if room < ahead / 4 {
            0
        } else {
            room.min(CLAIM_BATCH)
        }
    }

    async fn launch(&self, claim: Claim, stop: &Stop, flight: &mut Flight) {
        self.parts
            .tell(RunEvent::Claimed {
                id: claim.id.clone(),
                attempt: claim.attempt,
            })
            .await;
        let (key, token) = self.hold(&claim, stop, flight);
        let parts = Arc::clone(&self.parts);
        flight.tasks.spawn(async move {
            let result = rollout::execute(&parts, claim, &token).await;
            parts.live.ends(&key.0, key.1);
            (key, result)
        });
    }

    /// It is told as claimed when its turn comes: until then it only waits here instead of in the store.
    fn launch_regrade(
        &self,
        claim: Claim,
        batch: &Arc<SampleBatch>,
        stop: &Stop,
        flight: &mut Flight,
    ) {
        let (key, token) = self.hold(&claim, stop, flight);
        let (parts, batch) = (Arc::clone(&self.parts), Arc::clone(batch));
        let drain = stop.drain.clone();
        flight.tasks.spawn(async move {
            let result = match &parts.regrade {
                Some(regrade) => {
                    regrade::execute(&parts, regrade, &batch, claim, &drain, &token).await
                }
                None => Ok(()),
            };
            parts.live.ends(&key.0, key.1);
            (key, result)
        });
    }

    fn hold(&self, claim: &Claim, stop: &Stop, flight: &mut Flight) -> (Held, CancellationToken) {
        let key = (claim.id.clone(), claim.attempt);
        let token = stop.now.child_token();
        self.parts
            .live
            .begins(&claim.id, claim.attempt, token.clone());
        flight.held.insert(key.clone(), token.clone());
        (key, token)
    }
}

/// When it is time to look at what others do; never where there are none.
pub(crate) async fn look_due(others: &mut Option<&mut Others<'_>>, has_room: bool) {
    match others {
        Some(others) => others.due(has_room).await,
        None => std::future::pending().await,
    }
}

impl Parts {
    /// What the store answers. One that is silent for as long as a lease holds has let everything go that we
    /// claimed, so that there is nothing to wait for.
    pub(crate) async fn answered<T>(
        &self,
        asking: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, EngineError> {
        let mut asking = pin!(asking);
        for _ in 0..LOOKS_AT_SILENCE {
            let step = self.options.lease / LOOKS_AT_SILENCE;
            if let Ok(answer) = tokio::time::timeout(step, asking.as_mut()).await {
                return Ok(answer?);
            }
        }
        let waited = self.options.lease;
        Err(EngineError::StoreSilent { waited })
    }

    pub(crate) async fn tell(&self, event: RunEvent) {
        // Nobody listens any more: the display is gone, the run is not.
        let _ = self.events.send(event).await;
    }
}

/// Why no more was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// There is no room, or nothing more is to begin.
    Enough,
    QueueEmpty,
}

pub(crate) type Held = (RolloutId, Attempt);

/// The rollouts under way.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    pub(crate) tasks: JoinSet<(Held, Result<(), EngineError>)>,
    held: HashMap<Held, CancellationToken>,
    pace: Pace,
    /// Living nodes that claim from the same queue.
    nodes: usize,
}

type Landing = Result<(Held, Result<(), EngineError>), tokio::task::JoinError>;

impl Flight {
    /// Takes note of one that ended and of all others that have: what is claimed next, in one commit, is as many.
    pub(crate) fn all_landed(&mut self, first: Landing) -> Result<(), EngineError> {
        self.landed(first)?;
        while let Some(ended) = self.tasks.try_join_next() {
            self.landed(ended)?;
        }
        Ok(())
    }

    fn landed(&mut self, ended: Landing) -> Result<(), EngineError> {
        self.pace.note_done(Instant::now());
        let (key, result) = ended.map_err(|error| EngineError::Task(error.to_string()))?;
        self.held.remove(&key);
        result
    }
}
