//! `osmosis serve`: rollouts over HTTP, for a training controller elsewhere.

mod state_key;
mod stop;
mod user_side;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use osmosis_core::config::{LogLimits, ModelErrors};
use osmosis_core::{Redactor, RunName};
use osmosis_engine::{Engine, EngineOptions, Measuring, RunEvent};
use osmosis_gateway::{AddressRules, Gateway, Policy, RelayPolicy, Sampling, Secret};
use osmosis_run::{GatewaySessions, RunError, RunErrorKind};
use osmosis_server::{
    Listening, RolloutService, Served, ServerOptions, StateKey, generate_api_key,
};
use osmosis_store::{RunKind, RunStatus, Store};
use osmosis_worker::WorkerPool;
use serde_json::json;
use tokio::sync::mpsc;

use self::stop::ServeStop;
use self::user_side::UserSide;
use crate::arguments::ServeArguments;
use crate::display::{Display, View};
use crate::error::Exit;
use crate::execution::{self, DriveSettings, SHUTDOWN_GRACE};
use crate::gateway::workspace_or_here;
use crate::output::Output;
use crate::policy::variable;
use crate::run_folder::RunFolder;
use crate::run_log::RunLog;
use crate::runs::{Opened, Pinned, RunToOpen, fresh_name, given_name};

const PORT_VARIABLE: &str = "_OSMOSIS_ROLLOUT_PORT";
/// The key of a server that `create_rollout_server()` makes; the name under which a new key is printed.
const KEY_VARIABLE: &str = "OSMOSIS_ROLLOUT_KEY";
/// The name that model servers of controllers know.
const MODEL: &str = "osmosis-rollout";
const DEFAULT_MAX_IN_FLIGHT: u32 = 32;
const DRAIN_LIMIT: Duration = Duration::from_mins(10);
/// Who started us waits a minute.
const ATTACHED_DRAIN_LIMIT: Duration = Duration::from_secs(40);
const EVENT_QUEUE: usize = 1024;
/// A rollout whose model server fails is not run again: the controller behind it has recorded the calls
/// of the first time.
const MAX_FAILURES: u32 = 1;

pub(crate) async fn run(
    arguments: ServeArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let address = address(&arguments)?;
    let api_key = ApiKey::of(&arguments, address)?;
    let workspace = workspace_or_here(workspace)?;
    let side = UserSide::check(&arguments, &workspace)?;
    let state_key = state_key::load(arguments.attach, &workspace, output)?;
    let name = match given_name(arguments.name.as_deref())? {
        Some(name) => name,
        None => fresh_name(side.name(), &workspace, RunKind::Serving)?,
    };
    let folder = side.folder(RunFolder::of(&workspace, RunKind::Serving, &name));
    let stop = ServeStop::listen(arguments.attach)?;
    let mut display = Display::start(Quiet);
    let side = stop
        .unless_stopped(side.prepare(&arguments, *output))
        .await?;
    let listening = Listening::on(address).await?;
    let store = open_store(&side, &folder, &name).await?;
    let passed = side.passed_values();
    let redactor = Redactor::new(
        passed
            .chain(api_key.secret().into_iter().map(Secret::expose))
            .map(str::to_owned),
    );
    let limits = LogLimits::default();
    display.attach(RunLog::open(&folder.logs(), redactor.clone(), limits)?);
    let server = Server {
        arguments,
        api_key,
        state_key,
        facade_token: side.token().map(Secret::new),
        redactor,
        folder,
        name,
        output: *output,
    };
    let served = server.serve(side, listening, &store, &display, &stop).await;
    display.finish().await;
    let closed = close(&store, &server.folder).await;
    let exit = served?;
    closed?;
    Ok(exit)
}

/// What is decided before the first worker starts.
struct Server {
    arguments: ServeArguments,
    api_key: ApiKey,
    state_key: StateKey,
    facade_token: Option<Secret>,
    redactor: Redactor,
    folder: RunFolder,
    name: RunName,
    output: Output,
}

impl Server {
    /// Whatever happens, workers and gateway are gone afterwards.
    async fn serve(
        &self,
        side: UserSide,
        listening: Listening,
        store: &Arc<dyn Store>,
        display: &Display<RunEvent>,
        stop: &ServeStop,
    ) -> Result<Exit, RunError> {
        let rules = self.address_rules(&listening);
        let relay = Arc::new(RelayPolicy::new(MODEL).within(rules));
        let policy: Arc<dyn Policy> = Arc::<RelayPolicy>::clone(&relay);
        let gateway = execution::start_gateway(None, Sampling::default(), &policy, store).await?;
        let gateway = Arc::new(gateway);
        let workers = self.start_workers(side, &listening, display, stop).await;
        let workers = match workers {
            Ok(workers) => Arc::new(workers),
            Err(error) => {
                gateway.shut_down(SHUTDOWN_GRACE).await;
                return Err(error);
            }
        };
        let served = self
            .take_rollouts(relay, &gateway, &workers, listening, store, display, stop)
            .await;
        workers.shut_down(SHUTDOWN_GRACE).await;
        gateway.shut_down(SHUTDOWN_GRACE).await;
        served
    }

    async fn start_workers(
        &self,
        side: UserSide,
        listening: &Listening,
        display: &Display<RunEvent>,
        stop: &ServeStop,
    ) -> Result<WorkerPool, RunError> {
        let told = |worker_address: Option<&str>| self.tell(listening, worker_address);
        let starting = side.start_workers(&self.arguments, display.worker_events(), told);
        stop.unless_stopped(starting).await
    }

    /// Says where it is. When attached, before the one worker comes, which needs to know.
    fn tell(&self, listening: &Listening, worker_address: Option<&str>) {
        self.output.line(listening.url());
        if let ApiKey::Made(key) = &self.api_key {
            let key = key.expose();
            self.output.line(format_args!("{KEY_VARIABLE}={key}"));
        }
        self.output.operation_line(
            "serving",
            &json!({
                "url": listening.url(),
                "api_key": match &self.api_key {
                    ApiKey::Made(key) => Some(key.expose()),
                    // Who gave it knows it.
                    ApiKey::Given(_) | ApiKey::None => None,
                },
                "worker_address": worker_address,
                "needs_key": self.api_key.secret().is_some(),
                "output_path": self.folder.path,
            }),
        );
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the running parts, put together in this one place"
    )]
    async fn take_rollouts(
        &self,
        relay: Arc<RelayPolicy>,
        gateway: &Arc<Gateway>,
        workers: &Arc<WorkerPool>,
        listening: Listening,
        store: &Arc<dyn Store>,
        display: &Display<RunEvent>,
        stop: &ServeStop,
    ) -> Result<Exit, RunError> {
        let manifest = workers.manifest();
        for warning in &manifest.warnings {
            self.output.warn(warning);
        }
        let own_limit = manifest.workflow.max_concurrent;
        let max_in_flight = self
            .arguments
            .max_in_flight
            // Those that are graded leave room for those that run.
            .or(own_limit.map(|limit| limit.max(1).saturating_mul(2)))
            .unwrap_or(DEFAULT_MAX_IN_FLIGHT);
        let (events, heard) = mpsc::channel(EVENT_QUEUE);
        let engine = Engine::for_requests(
            Arc::clone(store),
            Arc::new(GatewaySessions::local(Arc::clone(gateway))),
            Arc::<WorkerPool>::clone(workers),
            self.engine_options(max_in_flight),
            events,
        );
        let service = RolloutService {
            engine,
            relay,
            store: Arc::clone(store),
            state_key: self.state_key.clone(),
            options: self.server_options(max_in_flight, &listening),
        };
        self.output.note(format_args!(
            "{} is served; rollouts are recorded in {}. Ctrl-C drains, twice stops now.",
            manifest.workflow.name, self.folder.path
        ));
        let observer = Some(display.run_events());
        let serving = service.run(listening, heard, observer, &stop.stop);
        let closed = async {
            let detail = workers.closed().await;
            stop.stop.drain.cancel();
            detail
        };
        let (served, lost) = stop.until_served(serving, closed).await;
        self.conclude(served?, lost, stop)
    }

    fn conclude(
        &self,
        served: Served,
        lost: Option<String>,
        stop: &ServeStop,
    ) -> Result<Exit, RunError> {
        if served.undelivered + served.unfinished > 0 {
            self.output.warn(format_args!(
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
        Ok(if stop.stop.now.is_cancelled() {
            Exit::Interrupted
        } else {
            Exit::Ok
        })
    }

    fn engine_options(&self, max_in_flight: u32) -> EngineOptions {
        let settings = DriveSettings {
            max_in_flight,
            agent_limit: Duration::from_secs(self.arguments.agent_timeout.into()),
            grade_limit: Duration::from_secs(self.arguments.grader_timeout.into()),
            pass_threshold: 1.0,
            reward_range: None,
            model_errors: ModelErrors::Infrastructure,
            measuring: Measuring::Everything,
            redactor: self.redactor.clone(),
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
            AddressRules::elsewhere_only(self.arguments.allow_url.clone())
        }
    }

    fn server_options(&self, max_in_flight: u32, listening: &Listening) -> ServerOptions {
        let drain_limit = match self.arguments.drain_limit {
            Some(seconds) => Duration::from_secs(seconds.into()),
            None if self.arguments.attach => ATTACHED_DRAIN_LIMIT,
            None => DRAIN_LIMIT,
        };
        ServerOptions {
            api_key: self.api_key.secret().cloned(),
            facade_token: self.facade_token.clone(),
            allowed_hosts: self.arguments.allow_host.clone(),
            address_rules: self.address_rules(listening),
            max_in_flight: max_in_flight as usize,
            max_queued: self.arguments.max_queued as usize,
            drain_limit,
            ..ServerOptions::default()
        }
    }
}

async fn open_store(
    side: &UserSide,
    folder: &RunFolder,
    name: &RunName,
) -> Result<Arc<dyn Store>, RunError> {
    let pinned = Pinned::of_config(&side.pinned())?;
    let Opened { store, .. } = RunToOpen {
        folder,
        name,
        kind: RunKind::Serving,
        config_text: "",
        pinned: &pinned,
        run_again: &[],
    }
    .open()
    .await?;
    Ok(store)
}

async fn close(store: &Arc<dyn Store>, folder: &RunFolder) -> Result<(), RunError> {
    store.set_status(RunStatus::Finished).await?;
    folder.write_index(&**store).await?;
    Ok(store.close().await?)
}

/// What opens the server.
#[derive(Debug)]
enum ApiKey {
    /// Whoever reaches it may use it.
    None,
    Given(Secret),
    /// It is told to whoever started us.
    Made(Secret),
}

impl ApiKey {
    fn of(arguments: &ServeArguments, address: SocketAddr) -> Result<Self, RunError> {
        if arguments.attach {
            // Controllers of the reference send none.
            let key = variable(KEY_VARIABLE).map(Secret::new);
            return Ok(key.map_or(Self::None, Self::Given));
        }
        if arguments.no_key {
            if address.ip().is_loopback() {
                return Ok(Self::None);
            }
            let message = format!("--no-key: others can reach {address}, and could run rollouts");
            return Err(RunError::usage(RunErrorKind::Usage, message)
                .hint("leave it out, or listen on 127.0.0.1 behind a proxy that asks for a key"));
        }
        let Some(name) = &arguments.api_key_env else {
            return Ok(Self::Made(generate_api_key()));
        };
        match std::env::var(name) {
            Ok(key) if !key.trim().is_empty() => Ok(Self::Given(Secret::new(key))),
            _ => Err(RunError::usage(
                RunErrorKind::Usage,
                format!("--api-key-env: the variable `{name}` is not set"),
            )
            .hint(format!("set `{name}` to the key that controllers send"))),
        }
    }

    fn secret(&self) -> Option<&Secret> {
        match self {
            Self::None => None,
            Self::Given(key) | Self::Made(key) => Some(key),
        }
    }
}

fn address(arguments: &ServeArguments) -> Result<SocketAddr, RunError> {
    if let Some(address) = arguments.listen {
        return Ok(address);
    }
    let port = match std::env::var(PORT_VARIABLE) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let message = format!("{PORT_VARIABLE} is `{text}`, which is no port");
            RunError::usage(RunErrorKind::Usage, message)
        })?,
        Err(_) => 0,
    };
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// What happens goes to the log; the terminal stays as it is.
struct Quiet;

impl View for Quiet {
    type Event = RunEvent;

    fn event(&mut self, _event: &RunEvent) {}

    fn log(event: &RunEvent, log: &mut RunLog) {
        log.run_event(event);
    }

    fn tick(&mut self) {}

    fn finish(&mut self) {}
}
