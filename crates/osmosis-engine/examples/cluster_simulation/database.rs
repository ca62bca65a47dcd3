//! A run in a PostgreSQL that is only modelled: what an operation costs is time of a processor, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use osmosis_core::RolloutId;
use osmosis_store::{ChangeSender, Changes};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Processor time of the server, in microseconds. `many_nodes` of `osmosis-store-postgres` measures these.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    /// A transaction, whatever is in it.
    pub(crate) commit: f64,
    /// Each rollout claimed, completed or released.
    pub(crate) rollout: f64,
    /// Each model call recorded.
    pub(crate) call: f64,
    /// Each lease that is extended.
    pub(crate) lease: f64,
    /// A small question that commits nothing.
    pub(crate) look: f64,
    /// Each process that hears of a notification.
    pub(crate) notified: f64,
    /// Until a commit is on disk: time in which the processor is free.
    pub(crate) flush: Duration,
    pub(crate) processors: usize,
}

/// Between two notifications of one member, as in `osmosis-store-postgres`.
pub(crate) const ANNOUNCE_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Queued,
    Leased { node: usize, until: Instant },
    Done,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: RolloutId,
    pub(crate) state: State,
    pub(crate) attempt: u32,
    pub(crate) losses: u32,
    pub(crate) failures: u32,
    pub(crate) first_claimed: Option<Instant>,
    pub(crate) done: Option<Instant>,
}

/// How often something was done.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Operations {
    pub(crate) commits: u64,
    pub(crate) claims: u64,
    pub(crate) empty_claims: u64,
    pub(crate) completions: u64,
    pub(crate) fenced: u64,
    pub(crate) heartbeats: u64,
    pub(crate) calls: u64,
    pub(crate) looks: u64,
    pub(crate) notifications: u64,
}

pub(crate) struct Table {
    pub(crate) rows: Vec<Row>,
    pub(crate) by_id: HashMap<RolloutId, usize>,
    pub(crate) queued: BTreeSet<usize>,
    /// By the time when they were leased until; what was extended since is looked at again.
    pub(crate) leases: BinaryHeap<Reverse<(Instant, usize)>>,
    pub(crate) leased: usize,
    pub(crate) done: usize,
}

/// The processors of the server: when each is free again.
#[derive(Debug)]
struct Processors {
    free: BinaryHeap<Reverse<Instant>>,
    busy: Duration,
}

pub(crate) struct Database {
    pub(crate) table: Mutex<Table>,
    pub(crate) operations: Mutex<Operations>,
    /// How long claims and commits took, from question to answer.
    pub(crate) waits: Mutex<Vec<Duration>>,
    /// Rollouts that each node completed.
    pub(crate) per_node: Mutex<Vec<u64>>,
    pub(crate) costs: Costs,
    pub(crate) listeners: std::sync::atomic::AtomicUsize,
    processors: Mutex<Processors>,
    changes: (ChangeSender, Changes),
    began: Instant,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Database")
    }
}

impl Database {
    pub(crate) fn new(rollouts: u64, nodes: usize, costs: Costs) -> Self {
        let rows: Vec<Row> = (0..rollouts)
            .map(|row| Row {
                id: RolloutId::of(row, 0),
                state: State::Queued,
                attempt: 0,
                losses: 0,
                failures: 0,
                first_claimed: None,
                done: None,
            })
            .collect();
        let now = Instant::now();
        Self {
            table: Mutex::new(Table {
                by_id: rows
                    .iter()
                    .enumerate()
                    .map(|(n, row)| (row.id.clone(), n))
                    .collect(),
                queued: (0..rows.len()).collect(),
                rows,
                leases: BinaryHeap::new(),
                leased: 0,
                done: 0,
            }),
            operations: Mutex::default(),
            waits: Mutex::default(),
            per_node: Mutex::new(vec![0; nodes]),
            costs,
            listeners: std::sync::atomic::AtomicUsize::new(0),
            processors: Mutex::new(Processors {
                free: (0..costs.processors).map(|_| Reverse(now)).collect(),
                busy: Duration::ZERO,
            }),
            changes: ChangeSender::new(),
            began: now,
        }
    }

    pub(crate) fn changes(&self) -> Changes {
        self.changes.1.from_now()
    }

    /// Waits for a free processor and for the work to be done by it. First come, first served.
    pub(crate) async fn work(&self, microseconds: f64, flush: bool) {
        let now = Instant::now();
        let cost = Duration::from_secs_f64(microseconds / 1e6);
        let mut ready = {
            let mut processors = self.processors.lock();
            let Reverse(free) = processors.free.pop().unwrap_or(Reverse(now));
            let ready = free.max(now) + cost;
            processors.free.push(Reverse(ready));
            processors.busy += cost;
            ready
        };
        if flush {
            ready += self.costs.flush;
            let mut waits = self.waits.lock();
            // A sample is enough, and a million of them no help.
            if waits.len() < 2_000_000 {
                waits.push(ready - now);
            }
        }
        tokio::time::sleep_until(ready).await;
    }

    /// One commit that changed something is announced to all who listen.
    pub(crate) async fn announce(&self) {
        let listeners = self.listeners.load(std::sync::atomic::Ordering::Relaxed);
        self.operations.lock().notifications += 1;
        self.work(
            self.costs.commit / 2.0 + self.costs.notified * listeners as f64,
            false,
        )
        .await;
        self.changes.0.send();
    }

    /// Which part of its time the server worked.
    pub(crate) fn utilisation(&self) -> f64 {
        let passed = self.began.elapsed().as_secs_f64() * self.costs.processors as f64;
        self.processors.lock().busy.as_secs_f64() / passed.max(1e-9)
    }
}

impl Table {
    /// The first that are free, in the order of the rows, as the real queue has it.
    pub(crate) fn claim(&mut self, node: usize, n: usize, lease: Duration) -> Vec<usize> {
        let now = Instant::now();
        while let Some(Reverse((until, at))) = self.leases.peek().copied() {
            if until > now {
                break;
            }
            self.leases.pop();
            match self.rows[at].state {
                State::Leased { until, .. } if until <= now => {
                    self.rows[at].state = State::Queued;
                    self.leased -= 1;
                    self.queued.insert(at);
                }
                State::Leased { until, .. } => self.leases.push(Reverse((until, at))),
                State::Queued | State::Done => {}
            }
        }
        let taken: Vec<usize> = self.queued.iter().copied().take(n).collect();
        for &at in &taken {
            self.queued.remove(&at);
            let until = now + lease;
            self.leases.push(Reverse((until, at)));
            let row = &mut self.rows[at];
            row.state = State::Leased { node, until };
            row.attempt += 1;
            row.first_claimed.get_or_insert(now);
            self.leased += 1;
        }
        taken
    }

    /// Whether this attempt holds its lease. One that has run out still holds until another claims it.
    pub(crate) fn holds(&self, id: &RolloutId, attempt: u32) -> Option<usize> {
        let at = *self.by_id.get(id)?;
        let row = &self.rows[at];
        (matches!(row.state, State::Leased { .. }) && row.attempt == attempt).then_some(at)
    }

    pub(crate) fn extend(&mut self, at: usize, lease: Duration) {
        if let State::Leased { until, .. } = &mut self.rows[at].state {
            *until = Instant::now() + lease;
        }
    }

    pub(crate) fn end(&mut self, at: usize, state: State) {
        self.leased -= 1;
        self.rows[at].state = state;
        match state {
            State::Done => {
                self.rows[at].done = Some(Instant::now());
                self.done += 1;
            }
            State::Queued => {
                self.queued.insert(at);
            }
            State::Leased { .. } => {}
        }
    }

    pub(crate) fn held_by(&self, lost: impl Fn(usize) -> bool) -> Vec<usize> {
        let held = self.rows.iter().enumerate();
        held.filter(|(_, row)| matches!(row.state, State::Leased { node, .. } if lost(node)))
            .map(|(at, _)| at)
            .collect()
    }
}
