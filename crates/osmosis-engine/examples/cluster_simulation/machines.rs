//! Model servers with a capacity and a tail, and nodes whose rollouts call them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use osmosis_core::endpoint_choice::{EndpointChoice, EndpointState, choose_endpoint};
use osmosis_core::execution::{GradeJob, GradeReport, RunJob, TaskReport, TaskResult, Terms};
use osmosis_core::frame::TurnRewards;
use osmosis_core::{Attempt, JsonText, Reward, RolloutId, Sample, SampleId, TaskClock};
use osmosis_engine::{AgentSession, Executor, JudgeSession, Session, SessionCalls, Sessions};
use osmosis_store::CallSummary;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::node_store::NodeStore;

/// Model calls of one rollout.
pub(crate) const CALLS: u64 = 6;

/// A model server: so many calls at once, the others wait.
#[derive(Debug)]
pub(crate) struct ModelServer {
    slots: Mutex<BinaryHeap<Reverse<Instant>>>,
    /// In seconds; half of the calls take longer.
    median: f64,
    /// Of the logarithm. With 0.8, one call in a hundred takes more than six times the median.
    spread: f64,
    pub(crate) busy: Mutex<Duration>,
}

impl ModelServer {
    pub(crate) fn new(capacity: usize, median: f64, spread: f64) -> Self {
        let now = Instant::now();
        Self {
            slots: Mutex::new((0..capacity).map(|_| Reverse(now)).collect()),
            median,
            spread,
            busy: Mutex::default(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.lock().len()
    }

    /// When a call that arrives now is answered.
    fn answered_at(&self, random: &Random) -> Instant {
        let now = Instant::now();
        let took = Duration::from_secs_f64(self.median * (self.spread * random.normal()).exp());
        let mut slots = self.slots.lock();
        let Reverse(free) = slots.pop().unwrap_or(Reverse(now));
        let ready = free.max(now) + took;
        slots.push(Reverse(ready));
        *self.busy.lock() += took;
        ready
    }
}

/// The servers as one node sees them: it knows the calls of its own, and chooses as its gateway does.
#[derive(Debug)]
pub(crate) struct KnownServers(Mutex<KnownLoad>);

#[derive(Debug)]
struct KnownLoad {
    in_flight: Vec<u32>,
    turn: usize,
}

impl KnownServers {
    pub(crate) fn new(servers: usize) -> Self {
        Self(Mutex::new(KnownLoad {
            in_flight: vec![0; servers],
            turn: 0,
        }))
    }

    /// Where the next call of a rollout goes, which has its prefix at one of them.
    fn begin(&self, prefix_at: Option<usize>) -> usize {
        let mut known = self.0.lock();
        let states: Vec<EndpointState> = known
            .in_flight
            .iter()
            .map(|&in_flight| EndpointState {
                open: false,
                room: true,
                in_flight,
                resting: false,
                tried: false,
            })
            .collect();
        let at = match choose_endpoint(&states, prefix_at, known.turn) {
            EndpointChoice::Go(at) => at,
            // Their breakers are closed and they have room.
            EndpointChoice::Wait | EndpointChoice::NoneLeft => 0,
        };
        known.turn = at + 1;
        known.in_flight[at] += 1;
        at
    }

    fn end(&self, at: usize) {
        self.0.lock().in_flight[at] -= 1;
    }
}

/// Numbers that a seed determines.
#[derive(Debug)]
pub(crate) struct Random(AtomicU64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    fn next(&self) -> u64 {
        // SplitMix64.
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Box-Muller.
    fn normal(&self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// What runs rollouts on one node: calls, one after the other, then a grade.
#[derive(Debug)]
pub(crate) struct SimulatedExecutor {
    pub(crate) servers: Arc<Vec<ModelServer>>,
    pub(crate) known: KnownServers,
    pub(crate) store: Arc<NodeStore>,
    pub(crate) random: Arc<Random>,
    /// 1 for a machine like the others.
    pub(crate) slowness: f64,
}

#[async_trait]
impl Executor for SimulatedExecutor {
    fn alias(&self, _rollout: &RolloutId, _attempt: Attempt) -> Option<RolloutId> {
        None
    }

    async fn run(&self, _: RunJob, _: Terms, cancel: &CancellationToken) -> TaskReport {
        let mut prefix_at = None;
        for _ in 0..CALLS {
            let at = self.known.begin(prefix_at);
            prefix_at = Some(at);
            let ready = self.servers[at].answered_at(&self.random);
            // The agent's own work after each answer.
            let own = Duration::from_secs_f64(0.02 * self.slowness);
            let answered = tokio::select! {
                () = tokio::time::sleep_until(ready) => true,
                () = cancel.cancelled() => false,
            };
            self.known.end(at);
            if !answered {
                return TaskReport::undispatched(TaskResult::Cancelled);
            }
            tokio::time::sleep(own).await;
            self.store.note_call();
        }
        TaskReport::undispatched(done(vec![Sample {
            id: SampleId::main(),
            messages: self.store.no_messages(),
            reward: None,
            remove_sample: false,
            metrics: None,
            extra_fields: None,
        }]))
    }

    async fn grade(&self, job: GradeJob, _: Terms, _: &CancellationToken) -> GradeReport {
        tokio::time::sleep(Duration::from_secs_f64(0.05 * self.slowness)).await;
        let samples = job.samples;
        let reward = Reward::new(1.0).ok();
        let graded = samples.iter().map(|sample| Sample {
            reward,
            ..sample.clone()
        });
        GradeReport {
            task: TaskReport::undispatched(done(graded.collect())),
            samples,
        }
    }
}

fn done(samples: Vec<Sample>) -> TaskResult {
    TaskResult::Done {
        samples,
        metrics: None,
        interactions: vec![],
        turn_rewards: TurnRewards::new(),
    }
}

/// Sessions that open nothing.
#[derive(Debug)]
pub(crate) struct NoSessions;

#[derive(Debug)]
struct NoSession;

impl Sessions for NoSessions {
    fn open(&self, _: AgentSession) -> Box<dyn Session> {
        Box::new(NoSession)
    }

    fn open_other(&self, _: RolloutId, _: Attempt) -> Box<dyn Session> {
        Box::new(NoSession)
    }

    fn open_judge(&self, _: RolloutId, _: Attempt, _: Arc<TaskClock>) -> Option<JudgeSession> {
        None
    }
}

#[async_trait]
impl Session for NoSession {
    fn url(&self) -> &'static str {
        "http://gateway.example/v1"
    }

    fn key(&self) -> &'static str {
        "key"
    }

    async fn end(self: Box<Self>) -> SessionCalls {
        SessionCalls {
            summary: CallSummary {
                model_calls: CALLS,
                ..CallSummary::default()
            },
            ..SessionCalls::default()
        }
    }
}

/// A row that every rollout has.
pub(crate) fn row_body() -> Option<JsonText> {
    JsonText::parse(r#"{"system_prompt": "", "user_prompt": "6*7?", "ground_truth": "42"}"#).ok()
}
