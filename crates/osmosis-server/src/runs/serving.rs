//! One run that serves: rollouts come over HTTP, are run and graded, and whoever sent them is called back.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use osmosis_core::config::{LogLimits, ModelErrors};
use osmosis_core::{Redactor, RunName};
use osmosis_engine::{Engine, EngineOptions, Measuring, RunEvent};
use osmosis_gateway::{AddressRules, Policy, RelayPolicy, Sampling, Secret};
use osmosis_run::execution::{self, DriveSettings};
use osmosis_run::life::{OpenRun, RunIdentity, Surroundings, Work};
use osmosis_run::run_code::RunCode;
use osmosis_run::run_folder::RunFolder;
use osmosis_run::runs::Pinned;
use osmosis_run::stop_signals::StopSignals;
use osmosis_run::workspace::Workspace;
use osmosis_run::{GatewaySessions, RunError, RunErrorKind};
use osmosis_store::{RunKind, RunStatus};
use osmosis_worker::WorkerPool;
use reqwest::Url;
use tokio::sync::mpsc;

use super::user_side::UserSide;
use crate::{Listening, RolloutService, Served, ServerOptions, StateKey};

/// The name that model servers of controllers know.
const MODEL: &str = "osmosis-rollout";
const DEFAULT_MAX_IN_FLIGHT: u32 = 32;
const EVENT_QUEUE: usize = 1024;
/// A rollout whose model server fails is not run again: the controller behind it has recorded the calls
/// of the first time.
const MAX_FAILURES: u32 = 1;

/// A server of rollouts, as a run.
pub struct Serving {
    pub side: UserSide,
    pub workspace: Workspace,
    pub name: RunName,
    pub folder: RunFolder,
    pub address: SocketAddr,
    /// What opens it; without one, whoever reaches it may use it.
    pub api_key: Option<Secret>,
    pub state_key: StateKey,
    pub limits: ServingLimits,
    pub allowed_hosts: Vec<String>,
    pub allowed_urls: Vec<Url>,
    /// Called when requests can be sent.
    pub serving: Box<dyn Fn(&ServerAddress<'_>) + Send + Sync>,
}

/// How much a server takes on, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct ServingLimits {
    pub max_in_flight: Option<u32>,
    pub max_queued: usize,
    pub agent_limit: Duration,
    pub grade_limit: Duration,
    pub drain_limit: Duration,
}

/// Where a server is.
#[derive(Debug)]
pub struct ServerAddress<'a> {
    pub url: &'a str,
    /// Where the one worker has to come that is not started by us.
    pub worker_address: Option<&'a str>,
}

/// Everything that is needed to take the first request but workers.
#[derive(Debug)]
pub struct ReadyServer {
    code: Option<Arc<RunCode>>,
    listening: Listening,
    /// Those that are started here. The one that comes by itself does so when it is told where we are.
    workers: Option<Arc<WorkerPool>>,
}

/// How serving ended.
#[derive(Debug)]
pub struct ServeEnd {
    served: Served,
    /// It was not given the time to drain.
    pub stopped_now: bool,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("name", &self.name)
            .field("folder", &self.folder)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Work for Serving {
    type Event = RunEvent;
    type Ready = ReadyServer;
    type End = ServeEnd;
    type Report = ();

    fn identity(&self) -> RunIdentity<'_> {
        RunIdentity {
            kind: RunKind::Serving,
            name: &self.name,
            folder: &self.folder,
            workspace: &self.workspace,
            project: self.side.name(),
            config_text: "",
            log_limits: LogLimits::default(),
            run_again: vec![],
            dataset: None,
        }
    }

    fn redactor(&self) -> Redactor {
        let api_key = self.api_key.iter().map(Secret::expose);
        Redactor::new(self.side.passed_values().chain(api_key).map(str::to_owned))
    }

    async fn prepare(&self, around: &Surroundings<'_, RunEvent>) -> Result<ReadyServer, RunError> {
        let code = self.side.prepare(&**around.notices).await?;
        if let Some(code) = &code {
            around.parts.add_code(Arc::clone(code), around.notices);
        }
        Ok(ReadyServer {
            code,
            listening: Listening::on(self.address).await?,
            workers: None,
        })
    }

    async fn preflight(
        &self,
        ready: &mut ReadyServer,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<(), RunError> {
        if let Some(code) = &ready.code {
            let events = around.events.worker_events();
            let notices = &**around.notices;
            let starting = self
                .side
                .start_workers(code, self.most_in_flight(), events, notices);
            ready.workers = Some(around.parts.add_workers(starting.await?));
        }
        Ok(())
    }

    fn pin(&self, _ready: &ReadyServer) -> Result<Pinned, RunError> {
        Pinned::of_config(&self.side.pinned())
    }

    async fn opened(
        &self,
        _ready: &ReadyServer,
        _run: &OpenRun,
        _around: &Surroundings<'_, RunEvent>,
    ) -> Result<(), RunError> {
        Ok(())
    }

    async fn drive(
        &self,
        ready: ReadyServer,
        run: &OpenRun,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<ServeEnd, RunError> {
        let ReadyServer {
            listening, workers, ..
        } = ready;
        let rules = self.address_rules(&listening);
        let relay = Arc::new(RelayPolicy::new(MODEL).within(rules));
        let policy: Arc<dyn Policy> = Arc::<RelayPolicy>::clone(&relay);
        let sampling = Sampling::default();
        let gateway = execution::start_gateway(None, sampling, &policy, &run.store).await?;
        let gateway = around.parts.add_gateway(gateway);
        let joining = self.announce(workers, &listening, around);
        let workers = around.stop.unless_stopped(joining).await?;
        let manifest = workers.manifest();
        for warning in manifest.warnings.iter().chain(&manifest.serve_warnings) {
            around.notices.warn(warning);
        }
        let max_in_flight = self.max_in_flight(&workers);
        let (events, heard) = mpsc::channel(EVENT_QUEUE);
        let engine = Engine::for_requests(
            Arc::clone(&run.store),
            Arc::new(GatewaySessions::local(gateway)),
            Arc::<WorkerPool>::clone(&workers),
            self.engine_options(max_in_flight),
            events,
        );
        let service = RolloutService {
            engine,
            relay,
            store: Arc::clone(&run.store),
            state_key: self.state_key.clone(),
            options: self.server_options(max_in_flight, &listening),
        };
        around.notices.note(format_args!(
            "{} is served; rollouts are recorded in {}. Ctrl-C drains, twice stops now.",
            workers.manifest().workflow.name,
            self.folder.path
        ));
        let observer = Some(around.events.run_events());
        let stop = &around.stop.stop;
        let serving = service.run(listening, heard, observer, stop);
        let closed = async {
            let detail = workers.closed().await;
            stop.drain.cancel();
            detail
        };
        let (served, lost) = until_served(around.stop, serving, closed).await;
        self.concluded(served?, lost, around)
    }

    fn status(&self, end: &ServeEnd) -> RunStatus {
        if end.stopped_now || end.served.undelivered + end.served.unfinished > 0 {
            RunStatus::Interrupted
        } else {
            RunStatus::Finished
        }
    }

    async fn report(&self, _run: &OpenRun) -> Result<(), RunError> {
        Ok(())
    }
}

impl Serving {
    /// Says where the server is; whoever started us brings the worker then, unless there are some.
    async fn announce(
        &self,
        workers: Option<Arc<WorkerPool>>,
        listening: &Listening,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<Arc<WorkerPool>, RunError> {
        let told = |worker_address: Option<&str>| {
            (self.serving)(&ServerAddress {
                url: listening.url(),
                worker_address,
            });
        };
        if let Some(workers) = workers {
            told(None);
            return Ok(workers);
        }
        let events = around.events.worker_events();
        let worker = self.side.admit_worker(self.most_in_flight(), events, told);
        Ok(around.parts.add_workers(worker.await?))
    }

    /// As far as can be said before the workflow is known.
    fn most_in_flight(&self) -> u32 {
        self.limits.max_in_flight.unwrap_or(DEFAULT_MAX_IN_FLIGHT)
    }

    fn max_in_flight(&self, workers: &WorkerPool) -> u32 {
        let own_limit = workers.manifest().workflow.max_concurrent;
        self.limits
            .max_in_flight
            // Those that are graded leave room for those that run.
            .or(own_limit.map(|limit| limit.max(1).saturating_mul(2)))
            .unwrap_or(DEFAULT_MAX_IN_FLIGHT)
    }

    fn concluded(
        &self,
        served: Served,
        lost: Option<String>,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<ServeEnd, RunError> {
        if served.undelivered + served.unfinished > 0 {
            around.notices.warn(format_args!(
                "the callbacks of {} rollouts were not delivered, and {} rollouts have no result yet; the same \
                 command with `--name {}` goes on with them",
                served.undelivered, served.unfinished, self.name
            ));
        }
        if let Some(detail) = lost {
            return Err(RunError::failed(
                RunErrorKind::NoWorkers,
                format!("the server ended because {detail}"),
            ));
        }
        Ok(ServeEnd {
            served,
            stopped_now: around.stop.stop.now.is_cancelled(),
        })
    }

    fn engine_options(&self, max_in_flight: u32) -> EngineOptions {
        let settings = DriveSettings {
            max_in_flight,
            agent_limit: self.limits.agent_limit,
            grade_limit: self.limits.grade_limit,
            pass_threshold: 1.0,
            reward_range: None,
            model_errors: ModelErrors::Infrastructure,
            measuring: Measuring::Everything,
            redactor: self.redactor(),
        };
        EngineOptions {
            max_failures: MAX_FAILURES,
            ..execution::engine_options(settings, &self.folder)
        }
    }

    /// What others may have us ask: behind a façade, that is the façade's to say.
    fn address_rules(&self, listening: &Listening) -> AddressRules {
        if listening.is_loopback() {
            AddressRules::anywhere()
        } else {
            AddressRules::elsewhere_only(self.allowed_urls.clone())
        }
    }

    fn server_options(&self, max_in_flight: u32, listening: &Listening) -> ServerOptions {
        ServerOptions {
            api_key: self.api_key.clone(),
            facade_token: self.side.token().map(Secret::new),
            allowed_hosts: self.allowed_hosts.clone(),
            address_rules: self.address_rules(listening),
            max_in_flight: max_in_flight as usize,
            max_queued: self.limits.max_queued,
            drain_limit: self.limits.drain_limit,
            ..ServerOptions::default()
        }
    }
}

/// Serves to the end. The second value says why there are no workers any more, when that is what ended it
/// rather than somebody's wish.
async fn until_served<T>(
    stop: &StopSignals,
    serving: impl Future<Output = T>,
    lost: impl Future<Output = String>,
) -> (T, Option<String>) {
    let mut serving = pin!(serving);
    let detail = tokio::select! {
        biased;
        served = &mut serving => return (served, None),
        () = stop.stop.drain.cancelled() => return (serving.await, None),
        detail = lost => detail,
    };
    (serving.await, Some(detail))
}
