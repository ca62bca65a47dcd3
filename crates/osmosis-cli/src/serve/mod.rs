//! `osmosis serve`: rollouts over HTTP, for a training controller elsewhere.

mod stop;
mod user_side;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use osmosis_core::config::{LogLimits, ModelErrors};
use osmosis_core::{Redactor, RunName};
use osmosis_engine::{Engine, EngineOptions, Measuring, RunEvent};
use osmosis_gateway::{Gateway, Policy, RelayPolicy, Sampling, Secret};
use osmosis_server::{Listening, RolloutService, Served, ServerError, ServerOptions};
use osmosis_store::{RunKind, RunStatus, Store};
use osmosis_worker::WorkerPool;
use serde_json::json;
use tokio::sync::mpsc;

use self::stop::ServeStop;
use self::user_side::UserSide;
use crate::arguments::ServeArguments;
use crate::display::{Display, View};
use crate::error::{CliError, Exit};
use crate::execution::{self, DriveSettings, SHUTDOWN_GRACE};
use crate::gateway::workspace_or_here;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::run_log::RunLog;
use crate::runs::{Opened, Pinned, RunToOpen, fresh_name, given_name};

const PORT_VARIABLE: &str = "_OSMOSIS_ROLLOUT_PORT";
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
) -> Result<Exit, CliError> {
    let api_key = api_key(&arguments)?;
    let address = address(&arguments)?;
    let workspace = workspace_or_here(workspace)?;
    let side = UserSide::check(&arguments, &workspace)?;
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
            .chain(api_key.iter().map(|key| key.expose()))
            .map(str::to_owned),
    );
    let limits = LogLimits::default();
    display.attach(RunLog::open(&folder.logs(), redactor.clone(), limits)?);
    let server = Server {
        arguments,
        api_key,
        redactor,
        folder,
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
    api_key: Option<Secret>,
    redactor: Redactor,
    folder: RunFolder,
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
    ) -> Result<Exit, CliError> {
        let relay = Arc::new(RelayPolicy::new(MODEL));
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
    ) -> Result<WorkerPool, CliError> {
        let told = |worker_address: Option<&str>| self.tell(listening, worker_address);
        let starting = side.start_workers(&self.arguments, display.worker_events(), told);
        stop.unless_stopped(starting).await
    }

    /// Says where it is. When attached, before the one worker comes, which needs to know.
    fn tell(&self, listening: &Listening, worker_address: Option<&str>) {
        self.output.line(listening.url());
        self.output.operation_line(
            "serving",
            &json!({
                "url": listening.url(),
                "worker_address": worker_address,
                "needs_key": self.api_key.is_some(),
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
    ) -> Result<Exit, CliError> {
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
            Arc::clone(gateway),
            Arc::clone(workers),
            self.engine_options(max_in_flight),
            events,
        );
        let service = RolloutService {
            engine,
            relay,
            store: Arc::clone(store),
            options: self.server_options(max_in_flight),
        };
        if self.api_key.is_none() && !listening.is_loopback() {
            self.output.warn(
                "everybody who can reach this address can run rollouts; ask for a key with `--api-key-env NAME`",
            );
        }
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
    ) -> Result<Exit, CliError> {
        if served.undelivered > 0 {
            self.output.warn(format_args!(
                "the callbacks of {} rollouts could not be delivered",
                served.undelivered
            ));
        }
        if let Some(detail) = lost {
            return Err(CliError::failed(
                "no_workers",
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

    fn server_options(&self, max_in_flight: u32) -> ServerOptions {
        let drain_limit = match self.arguments.drain_limit {
            Some(seconds) => Duration::from_secs(seconds.into()),
            None if self.arguments.attach => ATTACHED_DRAIN_LIMIT,
            None => DRAIN_LIMIT,
        };
        ServerOptions {
            api_key: self.api_key.clone(),
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
) -> Result<Arc<dyn Store>, CliError> {
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

async fn close(store: &Arc<dyn Store>, folder: &RunFolder) -> Result<(), CliError> {
    store.set_status(RunStatus::Finished).await?;
    folder.write_index(&**store).await?;
    Ok(store.close().await?)
}

fn api_key(arguments: &ServeArguments) -> Result<Option<Secret>, CliError> {
    let Some(name) = &arguments.api_key_env else {
        return Ok(None);
    };
    match std::env::var(name) {
        Ok(key) if !key.trim().is_empty() => Ok(Some(Secret::new(key))),
        _ => Err(CliError::usage(
            "usage",
            format!("--api-key-env: the variable `{name}` is not set"),
        )
        .hint(format!("set `{name}` to the key that controllers send"))),
    }
}

fn address(arguments: &ServeArguments) -> Result<SocketAddr, CliError> {
    if let Some(address) = arguments.listen {
        return Ok(address);
    }
    let port = match std::env::var(PORT_VARIABLE) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let message = format!("{PORT_VARIABLE} is `{text}`, which is no port");
            CliError::usage("usage", message)
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

impl From<ServerError> for CliError {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Engine(error) => error.into(),
            ServerError::Store(error) => error.into(),
            ServerError::Listen { .. } => Self::failed("serve", error.to_string())
                .hint("choose another address with `--listen ADDR`"),
            ServerError::Http(_) => Self::failed("serve", error.to_string()),
            ServerError::NoServer { .. } => {
                let hint = error.hint().unwrap_or_default();
                Self::failed("no_rollout_server", error.to_string()).hint(hint)
            }
        }
    }
}
