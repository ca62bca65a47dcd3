//! The endpoints of a policy, who is where, and who waits.

mod ticket;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use osmosis_core::endpoint_choice::{EndpointChoice, EndpointState, choose_endpoint};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::ticket::Place;
pub(super) use self::ticket::Ticket;
use super::adaptive::Adaptive;
use super::breaker::{Breaker, BreakerSettings, Health};
use super::endpoint::Endpoint;
use crate::policy::{Fault, FaultKind};

/// Who may wait when all endpoints have as many calls as they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// More than this are refused.
    pub length: usize,
    /// Longer than this nobody waits.
    pub wait: Duration,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            length: 16_384,
            wait: Duration::from_mins(5),
        }
    }
}

/// How a policy's endpoints are doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolLoad {
    /// Calls that wait for an endpoint to have room.
    pub queued: usize,
    pub endpoints: Vec<EndpointLoad>,
}

/// How an endpoint is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndpointLoad {
    pub url: String,
    pub health: Health,
    pub in_flight: u32,
    /// How many it may take by now; `None` as long as it never complained.
    pub limit: Option<u32>,
    pub last_error: Option<String>,
    /// Tries that failed there, rate limits included.
    pub failed_tries: u64,
    /// Tries that it turned away as too many (429 or 503).
    pub rate_limited: u64,
    /// For how much longer it asked to be left alone.
    pub rests_ms: Option<u64>,
}

pub(super) struct Pool {
    /// No two pools of a process have the same.
    pub(super) id: u64,
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    queue: QueueLimits,
    state: Mutex<State>,
    checks: Mutex<JoinSet<()>>,
}

struct State {
    lanes: Vec<Lane>,
    waiting: VecDeque<Waiting>,
    numbers: u64,
    turn: usize,
}

struct Lane {
    in_flight: u32,
    /// Those of them that began since the breaker opened last.
    since_opened: u32,
    breaker: Breaker,
    adaptive: Adaptive,
    rests_until: Option<Instant>,
    last_error: Option<String>,
    failed_tries: u64,
    rate_limited: u64,
}

struct Waiting {
    number: u64,
    wish: Wish,
    grant: oneshot::Sender<Result<Grant, NoneLeft>>,
}

/// Where a call would rather go.
#[derive(Debug, Clone, Default)]
pub(super) struct Wish {
    pub(super) preferred: Option<usize>,
    pub(super) tried: Vec<usize>,
}

/// Every breaker is open.
#[derive(Debug, Clone)]
struct NoneLeft {
    last_error: Option<String>,
}

/// A place at an endpoint, to be given back.
#[derive(Debug, Clone, Copy)]
struct Grant {
    lane: usize,
    breaker_epoch: u64,
    limit_epoch: u64,
}

impl Pool {
    pub(super) fn new(
        endpoints: Vec<(Arc<Endpoint>, Option<u32>)>,
        queue: QueueLimits,
        breaker: BreakerSettings,
    ) -> Arc<Self> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let lanes = endpoints
            .iter()
            .map(|(_, max_in_flight)| Lane {
                in_flight: 0,
                since_opened: 0,
                breaker: Breaker::new(breaker),
                adaptive: Adaptive::new(max_in_flight.unwrap_or(u32::MAX)),
                rests_until: None,
                last_error: None,
                failed_tries: 0,
                rate_limited: 0,
            })
            .collect();
        Arc::new(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            endpoints: endpoints
                .into_iter()
                .map(|(endpoint, _)| endpoint)
                .collect(),
            queue,
            state: Mutex::new(State {
                lanes,
                waiting: VecDeque::new(),
                numbers: 0,
                turn: 0,
            }),
            checks: Mutex::new(JoinSet::new()),
        })
    }

    /// A place at an endpoint, when there is one; the call waits for it in the order of arrival.
    pub(super) async fn take(self: &Arc<Self>, wish: Wish) -> Result<Ticket, Fault> {
        let place = {
            let mut state = self.state.lock();
            // Nobody overtakes those who wait.
            let now_served = if state.waiting.is_empty() {
                state.serve(&wish, Instant::now())
            } else {
                None
            };
            match now_served {
                Some(served) => return self.ticket(served),
                None if state.waiting.len() >= self.queue.length => {
                    return Err(full(&format!("{} calls wait already", self.queue.length)));
                }
                None => {
                    state.numbers += 1;
                    let number = state.numbers;
                    let (grant, granted) = oneshot::channel();
                    state.waiting.push_back(Waiting {
                        number,
                        wish,
                        grant,
                    });
                    Place::new(self, number, granted)
                }
            }
        };
        place.wait().await
    }

    fn ticket(self: &Arc<Self>, served: Result<Grant, NoneLeft>) -> Result<Ticket, Fault> {
        match served {
            Ok(grant) => Ok(Ticket::new(Arc::clone(self), grant)),
            Err(none) => Err(self.none_left(&none)),
        }
    }

    /// Whether a call that failed at `tried` can go elsewhere.
    pub(super) fn has_another(&self, tried: &[usize]) -> bool {
        let state = self.state.lock();
        (0..)
            .zip(&state.lanes)
            .any(|(at, lane)| lane.breaker.health() != Health::Open && !tried.contains(&at))
    }

    pub(super) fn is_open(&self, lane: usize) -> bool {
        let state = self.state.lock();
        let lane = state.lanes.get(lane);
        lane.is_none_or(|lane| lane.breaker.health() == Health::Open)
    }

    pub(super) fn load(&self) -> PoolLoad {
        let now = Instant::now();
        let state = self.state.lock();
        PoolLoad {
            queued: state.waiting.len(),
            endpoints: state
                .lanes
                .iter()
                .zip(&self.endpoints)
                .map(|(lane, endpoint)| EndpointLoad {
                    url: endpoint.name.as_ref().to_owned(),
                    health: lane.breaker.health(),
                    in_flight: lane.in_flight,
                    limit: Some(lane.adaptive.limit()).filter(|limit| *limit < u32::MAX),
                    last_error: lane.last_error.clone(),
                    failed_tries: lane.failed_tries,
                    rate_limited: lane.rate_limited,
                    rests_ms: lane
                        .rests_until
                        .and_then(|until| until.checked_duration_since(now))
                        .filter(|rest| !rest.is_zero())
                        .map(|rest| u64::try_from(rest.as_millis()).unwrap_or(u64::MAX)),
                })
                .collect(),
        }
    }

    fn none_left(&self, none: &NoneLeft) -> Fault {
        let names: Vec<&str> = self
            .endpoints
            .iter()
            .map(|endpoint| &*endpoint.name)
            .collect();
        let last = none.last_error.as_deref().unwrap_or("nothing is known");
        Fault {
            kind: FaultKind::Unreachable,
            status: 503,
            message: format!(
                "{} failed too often and is left alone until a health check succeeds; last: {last}",
                names.join(", ")
            ),
        }
    }

    /// Looks after an endpoint whose breaker has opened, until it is closed again.
    fn look_after(self: &Arc<Self>, lane: usize) {
        let Some(endpoint) = self.endpoints.get(lane).map(Arc::clone) else {
            return;
        };
        let pool = Arc::downgrade(self);
        let mut checks = self.checks.lock();
        while checks.try_join_next().is_some() {}
        checks.spawn(async move {
            while let Some(at) = next_check(&pool, lane) {
                tokio::time::sleep_until(at).await;
                let alive = endpoint.is_alive().await;
                let Some(pool) = pool.upgrade() else { return };
                tracing::info!(upstream = %endpoint.name, alive, "health of a failing upstream");
                let mut state = pool.state.lock();
                if let Some(lane) = state.lanes.get_mut(lane) {
                    lane.breaker.checked(alive, Instant::now());
                }
                state.settle();
            }
        });
    }
}

fn full(why: &str) -> Fault {
    Fault {
        kind: FaultKind::QueueFull,
        status: 429,
        message: format!("the gateway has no room for this call: {why}"),
    }
}

fn next_check(pool: &Weak<Pool>, lane: usize) -> Option<Instant> {
    let pool = pool.upgrade()?;
    let state = pool.state.lock();
    state.lanes.get(lane)?.breaker.next_check()
}

impl State {
    /// Takes a place for a call with this wish; `None` when it has to wait.
    fn serve(&mut self, wish: &Wish, now: Instant) -> Option<Result<Grant, NoneLeft>> {
        let lanes: Vec<EndpointState> = (0..)
            .zip(&self.lanes)
            .map(|(at, lane)| {
                let health = lane.breaker.health();
                EndpointState {
                    open: health == Health::Open,
                    room: match health {
                        Health::Closed => lane.in_flight < lane.adaptive.limit(),
                        Health::HalfOpen => lane.since_opened == 0,
                        Health::Open => false,
                    },
                    in_flight: lane.in_flight,
                    resting: lane.rests_until.is_some_and(|until| now < until),
                    tried: wish.tried.contains(&at),
                }
            })
            .collect();
        match choose_endpoint(&lanes, wish.preferred, self.turn) {
            EndpointChoice::Go(at) => {
                self.turn = at + 1;
                let lane = self.lanes.get_mut(at)?;
                lane.in_flight += 1;
                lane.since_opened += 1;
                Some(Ok(Grant {
                    lane: at,
                    breaker_epoch: lane.breaker.epoch(),
                    limit_epoch: lane.adaptive.epoch(),
                }))
            }
            EndpointChoice::Wait => None,
            EndpointChoice::NoneLeft => Some(Err(NoneLeft {
                last_error: self.lanes.iter().find_map(|lane| lane.last_error.clone()),
            })),
        }
    }

    /// Serves those who wait, as far as there is room now.
    fn settle(&mut self) {
        let now = Instant::now();
        while let Some(first) = self.waiting.pop_front() {
            let Some(served) = self.serve(&first.wish, now) else {
                self.waiting.push_front(first);
                return;
            };
            if let Err(Ok(grant)) = first.grant.send(served) {
                // It went away in this moment.
                self.give_back(grant);
            }
        }
    }

    fn give_back(&mut self, grant: Grant) {
        if let Some(lane) = self.lanes.get_mut(grant.lane) {
            lane.in_flight = lane.in_flight.saturating_sub(1);
            if grant.breaker_epoch == lane.breaker.epoch() {
                lane.since_opened = lane.since_opened.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests;
