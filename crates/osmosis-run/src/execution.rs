//! The running parts of a run: how many workers, which gateway, which limits.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use osmosis_core::config::{
    Evaluation, ModelErrors, Sampling as SamplingConfig, Training, WorkerIsolation,
};
use osmosis_core::{Redactor, RewardRange};
use osmosis_engine::{Claims, EngineOptions, Measuring};
use osmosis_gateway::{
    ExtraRoutes, Gateway, GatewayError, GatewayOptions, Policy, Sampling, TelemetryOptions,
};
use osmosis_store::Store;
use osmosis_worker::{Limits, PoolOptions};

use crate::run_folder::RunFolder;
use crate::settings::Throughput;
use crate::{RunError, RunErrorKind};

const MOST_DEFAULT_WORKERS: usize = 8;
/// Importing an agent framework takes seconds; on a busy machine many.
const WORKER_START_LIMIT: Duration = Duration::from_mins(2);
/// From cancelling a task to killing the worker that does not let go of it.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// Seconds that a claim holds without a heartbeat; for tests, which have no time.
pub const LEASE_VARIABLE: &str = "OSMOSIS_LEASE_SECONDS";
const LEASE: Duration = Duration::from_mins(1);
const MAX_FAILURES: u32 = 3;
/// A kept sample of a training passes from this reward on.
const TRAINING_PASS_THRESHOLD: f64 = 1.0;
const RETRY_WAIT: Duration = Duration::from_millis(500);
const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// For rollouts that somebody looks at in a debugger.
pub const NO_DEADLINE: Duration = Duration::from_hours(24 * 7);

/// How long a claim holds without a heartbeat: a minute, unless the environment says otherwise. All members of a run must
/// have the same.
pub fn lease() -> Duration {
    let seconds = std::env::var(LEASE_VARIABLE).ok();
    let seconds = seconds.and_then(|text| text.parse::<f64>().ok());
    seconds
        .filter(|seconds| (0.5..=3600.0).contains(seconds))
        .map_or(LEASE, Duration::from_secs_f64)
}

/// How many worker processes there are, and what each may take.
pub fn pool_options(
    throughput: &Throughput,
    max_in_flight: u32,
    isolation: WorkerIsolation,
) -> PoolOptions {
    let in_flight = max_in_flight as usize;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let agent_workers = throughput
        .workers
        .map_or_else(|| cores.min(MOST_DEFAULT_WORKERS), |n| n as usize)
        .min(in_flight);
    PoolOptions {
        agent_workers,
        grader_workers: agent_workers.div_ceil(2),
        in_flight_per_worker: in_flight.div_ceil(agent_workers),
        start_limit: WORKER_START_LIMIT,
        cancel_grace: CANCEL_GRACE,
        limits: Limits {
            memory: throughput.worker_memory,
            processes: throughput.worker_processes,
        },
        isolation,
    }
}

/// What differs between kinds of runs in how rollouts are driven.
#[derive(Debug, Clone)]
pub struct DriveSettings {
    pub max_in_flight: u32,
    pub agent_limit: Duration,
    pub grade_limit: Duration,
    pub pass_threshold: f64,
    pub reward_range: Option<RewardRange>,
    pub model_errors: ModelErrors,
    pub measuring: Measuring,
    pub redactor: Redactor,
}

impl DriveSettings {
    pub fn of_evaluation(evaluation: &Evaluation, max_in_flight: u32, redactor: Redactor) -> Self {
        Self {
            max_in_flight,
            agent_limit: evaluation.agent_timeout(),
            grade_limit: evaluation.grader_timeout(),
            pass_threshold: evaluation.pass_threshold,
            reward_range: evaluation.reward_range,
            model_errors: evaluation.model_errors,
            measuring: Measuring::Everything,
            redactor,
        }
    }
}

impl DriveSettings {
    pub fn of_training(training: &Training, max_in_flight: u32, redactor: Redactor) -> Self {
        Self {
            max_in_flight,
            agent_limit: training.agent_timeout(),
            grade_limit: training.grader_timeout(),
            pass_threshold: TRAINING_PASS_THRESHOLD,
            reward_range: training.reward_range,
            model_errors: training.model_errors,
            measuring: Measuring::Nothing,
            redactor,
        }
    }
}

pub fn engine_options(settings: DriveSettings, folder: &RunFolder) -> EngineOptions {
    EngineOptions {
        owner: format!("pid {}", std::process::id()),
        max_in_flight: settings.max_in_flight as usize,
        claims: Claims::Everything,
        agent_limit: settings.agent_limit,
        grade_limit: settings.grade_limit,
        pass_threshold: settings.pass_threshold,
        reward_range: settings.reward_range,
        model_errors: settings.model_errors,
        max_failures: MAX_FAILURES,
        retry_wait: RETRY_WAIT,
        lease: lease(),
        artifacts_root: Some(folder.artifacts()),
        measuring: settings.measuring,
        redactor: settings.redactor,
    }
}

/// `[sampling]` of an evaluation: fills what a call leaves out. What neither says is left to the model server.
pub fn eval_sampling(config: SamplingConfig) -> Sampling {
    Sampling {
        temperature: config.rollout_temperature,
        top_p: config.rollout_top_p,
        overrides: false,
    }
}

/// `[sampling]` of a training: replaces what a call says, since the distribution must be known.
pub fn training_sampling(config: SamplingConfig) -> Sampling {
    Sampling {
        temperature: Some(config.temperature()),
        top_p: Some(config.top_p()),
        overrides: true,
    }
}

pub async fn start_gateway(
    listen: Option<SocketAddr>,
    sampling: Sampling,
    policy: &Arc<dyn Policy>,
    store: &Arc<dyn Store>,
) -> Result<Gateway, RunError> {
    start_gateway_with(gateway_options(listen, sampling), policy, store).await
}

/// What the gateways of all commands have in common.
pub fn gateway_options(listen: Option<SocketAddr>, sampling: Sampling) -> GatewayOptions {
    // Who sets a variable wrongly misses the spans; a run is not lost for that.
    let telemetry = TelemetryOptions::from_variables(|name| std::env::var(name).ok())
        .unwrap_or_else(|problem| {
            tracing::warn!(problem, "no spans are exported");
            None
        });
    GatewayOptions {
        listen: listen.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        sampling,
        max_body_bytes: MAX_BODY_BYTES,
        telemetry,
        ..GatewayOptions::default()
    }
}

pub async fn start_gateway_with(
    options: GatewayOptions,
    policy: &Arc<dyn Policy>,
    store: &Arc<dyn Store>,
) -> Result<Gateway, RunError> {
    Gateway::start(options, Arc::clone(policy), Arc::clone(store))
        .await
        .map_err(no_gateway)
}

/// A gateway that shares its address with something else.
pub async fn start_gateway_beside(
    extra_routes: ExtraRoutes,
    listen: SocketAddr,
    sampling: Sampling,
    policy: &Arc<dyn Policy>,
    store: &Arc<dyn Store>,
) -> Result<Gateway, RunError> {
    let options = gateway_options(Some(listen), sampling);
    Gateway::start_beside(options, Arc::clone(policy), Arc::clone(store), extra_routes)
        .await
        .map_err(no_gateway)
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn no_gateway(error: GatewayError) -> RunError {
    RunError::failed(RunErrorKind::Gateway, error.to_string())
}
