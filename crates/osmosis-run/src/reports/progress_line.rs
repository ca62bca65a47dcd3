//! What a run says while it goes on, to programs: a line of `--progress ndjson`.

use osmosis_core::clock::now_ms;
use osmosis_core::{Attempt, Durations, OutcomeKind, Phase, Redactor, Reward, RolloutId};
use osmosis_engine::RunEvent;
use osmosis_gateway::{EndpointLoad, PoolLoad};
use osmosis_store::CallSummary;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

const SCHEMA_VERSION: u32 = 1;

/// A line of `--progress ndjson`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ProgressLine {
    #[serde(flatten)]
    pub event: ProgressEvent,
    /// 1.
    pub schema_version: u32,
    /// Milliseconds since 1970.
    pub at_ms: i64,
}

impl ProgressLine {
    /// Something that happens now.
    pub fn now(event: ProgressEvent) -> Self {
        Self {
            event,
            schema_version: SCHEMA_VERSION,
            at_ms: now_ms(),
        }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ProgressEvent {
    Began {
        total: u64,
        /// By earlier processes.
        done: u64,
    },
    Finished {
        rollout_id: RolloutId,
        outcome: OutcomeKind,
        reward: Option<Reward>,
        passed: bool,
        error: Option<String>,
        /// In milliseconds.
        durations: Durations,
        calls: CallSummary,
    },
    Retrying {
        rollout_id: RolloutId,
        attempt: Attempt,
        reason: String,
        wait_s: f64,
    },
    GradingAgain {
        rollout_id: RolloutId,
        reason: String,
    },
    /// Nothing is begun any more.
    Draining {
        under_way: usize,
    },
    /// Every second.
    Progress(ProgressStatus),
    Ended(ProgressStatus),
}

impl ProgressEvent {
    /// An event of the engine; `None` for those that the next `progress` reports.
    pub fn of(event: &RunEvent, redactor: &Redactor) -> Option<Self> {
        Some(match event {
            RunEvent::Began { total, done } => Self::Began {
                total: *total,
                done: *done,
            },
            RunEvent::Finished {
                id,
                outcome,
                durations,
                calls,
            } => Self::Finished {
                rollout_id: id.clone(),
                outcome: outcome.kind(),
                reward: outcome.reward(),
                passed: outcome.passed(),
                error: outcome.explanation().map(|why| redactor.clean(&why)),
                durations: *durations,
                calls: *calls,
            },
            RunEvent::Retrying {
                id,
                attempt,
                reason,
                wait,
            } => Self::Retrying {
                rollout_id: id.clone(),
                attempt: *attempt,
                reason: redactor.clean(reason),
                wait_s: wait.as_secs_f64(),
            },
            RunEvent::GradingAgain { id, reason } => Self::GradingAgain {
                rollout_id: id.clone(),
                reason: redactor.clean(reason),
            },
            RunEvent::Draining { in_flight } => Self::Draining {
                under_way: *in_flight,
            },
            RunEvent::Claimed { .. } | RunEvent::PhaseBegan { .. } => return None,
        })
    }
}

/// How far a run is.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ProgressStatus {
    pub total: u64,
    pub done: u64,
    /// Of those that this process finished, as are the next.
    pub ran: u64,
    pub passed: u64,
    pub failed: u64,
    pub infrastructure_failed: u64,
    pub retries: u64,
    pub under_way: usize,
    pub elapsed_s: f64,
    /// `[low, high]`; `null` as long as too little is known.
    pub eta_s: Option<[f64; 2]>,
    /// Sums over every attempt of the run; `null` before the first call.
    pub calls: Option<CallSummary>,
    /// `null` without prices.
    pub cost_usd: Option<f64>,
    /// Ten at most.
    pub oldest: Vec<OldRollout>,
    /// `null` for a policy without servers.
    pub servers: Option<WatchedServers>,
}

/// A rollout that is under way.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OldRollout {
    pub rollout_id: RolloutId,
    /// `null` before its first phase.
    pub phase: Option<Phase>,
    pub age_s: f64,
    pub calls: Option<CallSummary>,
    pub calls_under_way: Option<u32>,
}

/// The servers of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WatchedServers {
    /// Calls that wait for a server to have room.
    pub calls_queued: usize,
    /// With `url`, `health`, `in_flight`, `limit`, `last_error`, `failed_tries`, `rate_limited` and `rests_ms`.
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub endpoints: Vec<EndpointLoad>,
}

impl WatchedServers {
    pub fn of(load: &PoolLoad, redactor: &Redactor) -> Self {
        let mut endpoints = load.endpoints.clone();
        for endpoint in &mut endpoints {
            let error = endpoint.last_error.take();
            endpoint.last_error = error.map(|error| redactor.clean(&error));
        }
        Self {
            calls_queued: load.queued,
            endpoints,
        }
    }
}
