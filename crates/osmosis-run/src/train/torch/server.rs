//! The inference server: started, watched, started again when it dies, and given the weights of each version.
//!
//! One task owns the process. Weights are exchanged by orders to it, so that a server that dies meanwhile is started
//! again with what was ordered last, and who ordered it waits no longer than that takes.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::PolicyVersion;
use osmosis_core::config::TorchDtype;
use osmosis_gateway::{
    EngineKind, ExchangingEngine, RemoteEngineOptions, ServerLogprobs, VllmControl,
    VllmControlError,
};
use osmosis_worker::guard::GuardProgram;
use osmosis_worker::{ServiceCommand, ServiceProcess};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::END_GRACE;
use super::process_log::ProcessLog;
use super::server_command::{CommandParts, SERVED_NAME};
use crate::notices::Notices;
use crate::{RunError, RunErrorKind};

/// A large model takes minutes to load.
const START_LIMIT: Duration = Duration::from_mins(30);
/// Between two looks whether it is ready.
const LOOK: Duration = Duration::from_millis(250);
/// While it starts, people are told this often.
const TELL: Duration = Duration::from_secs(30);
/// Between two starts of a server that died; doubles up to the last.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// So many deaths before it was ready, one after another, and the next would be no different.
const MOST_DEATHS: u32 = 4;

/// What a server is started with.
#[derive(Debug)]
pub(super) struct ServerPlan {
    pub(super) command: Option<Vec<String>>,
    pub(super) python: Utf8PathBuf,
    pub(super) model: Utf8PathBuf,
    pub(super) dtype: TorchDtype,
    pub(super) max_context: usize,
    /// Adapters are loaded, and the weights below them stay.
    pub(super) lora_rank: Option<u32>,
    pub(super) logprobs: ServerLogprobs,
    pub(super) working_directory: Utf8PathBuf,
    pub(super) log: ProcessLog,
    pub(super) guard: Option<GuardProgram>,
    pub(super) notices: Arc<dyn Notices>,
}

/// The handle of the task.
#[derive(Debug)]
pub(super) struct Server {
    engine: Arc<ExchangingEngine>,
    orders: mpsc::Sender<Order>,
    stop: CancellationToken,
    task: Mutex<JoinSet<()>>,
}

/// Weights that are to answer from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    folder: Utf8PathBuf,
    version: PolicyVersion,
}

#[derive(Debug)]
struct Order {
    wanted: Wanted,
    reply: oneshot::Sender<Result<(), String>>,
}

impl Server {
    /// Starts it; returns when it is ready. What fails here would fail again: it is an error.
    pub(super) async fn start(plan: ServerPlan) -> Result<Self, RunError> {
        let engine = Arc::new(ExchangingEngine::new(plan.logprobs));
        let stop = CancellationToken::new();
        let began = Life::begin(&plan, &engine, &stop).await;
        let life = began.map_err(|why| {
            let message = format!(
                "the inference server {why}. The end of its log, {}:\n{}",
                plan.log.path,
                plan.log.last_lines()
            );
            RunError::failed(RunErrorKind::EngineUnusable, message)
                .hint("`server_command` in `[trainer]` is what is started (docs/training.md)")
        })?;
        let (orders, incoming) = mpsc::channel(1);
        let mut task = JoinSet::new();
        let supervision = Supervision {
            plan,
            engine: Arc::clone(&engine),
            stop: stop.clone(),
            wanted: None,
        };
        task.spawn(supervision.run(life, incoming));
        Ok(Self {
            engine,
            orders,
            stop,
            task: Mutex::new(task),
        })
    }

    pub(super) fn engine(&self) -> &Arc<ExchangingEngine> {
        &self.engine
    }

    /// Has the weights in a folder answer, as this version. In place when this returns.
    pub(super) async fn exchange(
        &self,
        folder: Utf8PathBuf,
        version: PolicyVersion,
    ) -> Result<(), String> {
        let ended = || "the inference server was ended".to_owned();
        let (reply, answer) = oneshot::channel();
        let wanted = Wanted { folder, version };
        let order = Order { wanted, reply };
        self.orders.send(order).await.map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Ends it.
    pub(super) async fn shut_down(&self) {
        self.stop.cancel();
        self.engine.shut_down();
        let mut task = std::mem::take(&mut *self.task.lock());
        while task.join_next().await.is_some() {}
    }
}

/// The task that owns the process.
struct Supervision {
    plan: ServerPlan,
    engine: Arc<ExchangingEngine>,
    stop: CancellationToken,
    /// What every server is to answer with.
    wanted: Option<Wanted>,
}

impl Supervision {
    async fn run(mut self, first: Life, mut orders: mpsc::Receiver<Order>) {
        let mut life = Some(first);
        let mut pending: Option<Order> = None;
        let mut wait = FIRST_WAIT;
        let mut deaths = 0;
        loop {
            let why = match life.take() {
                None => match Life::begin(&self.plan, &self.engine, &self.stop).await {
                    Ok(again) => {
                        life = Some(again);
                        continue;
                    }
                    Err(why) => why,
                },
                Some(mut current) => {
                    match self.serve(&mut current, &mut pending, &mut orders).await {
                        ServeEnd::Stopped => {
                            self.engine.close();
                            current.process.end(END_GRACE).await;
                            return;
                        }
                        ServeEnd::Died(why, was_ready) => {
                            self.engine.close();
                            current.process.end(Duration::ZERO).await;
                            if was_ready {
                                (deaths, wait) = (0, FIRST_WAIT);
                            }
                            why
                        }
                    }
                }
            };
            if self.stop.is_cancelled() {
                return;
            }
            deaths += 1;
            if deaths > MOST_DEATHS {
                let message = format!(
                    "the inference server {why}, {deaths} times in a row. The end of its log, {}:\n{}",
                    self.plan.log.path,
                    self.plan.log.last_lines()
                );
                self.plan.notices.warn(&message);
                self.engine.shut_down();
                if let Some(order) = pending {
                    let _ = order.reply.send(Err(message.clone()));
                }
                // Whoever orders weights now learns why there is nobody to load them.
                while let Some(order) = orders.recv().await {
                    let _ = order.reply.send(Err(message.clone()));
                }
                return;
            }
            self.plan.notices.warn(format_args!(
                "The inference server {why}. Starting it again in {} s; rollouts that wait for it go on then",
                wait.as_secs()
            ));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stop.cancelled() => return,
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Gives a server that is ready the weights that are wanted, and others as they are ordered, until it ends.
    async fn serve(
        &mut self,
        life: &mut Life,
        pending: &mut Option<Order>,
        orders: &mut mpsc::Receiver<Order>,
    ) -> ServeEnd {
        let mut was_ready = false;
        if let Some(wanted) = self.wanted.clone() {
            // One that is ordered and not answered comes right after.
            match life
                .load(&self.plan, &self.engine, &wanted, &self.stop)
                .await
            {
                Ok(()) => {
                    was_ready = true;
                    let PolicyVersion(version) = wanted.version;
                    self.plan.notices.note(format_args!(
                        "The inference server runs again, with version {version}"
                    ));
                }
                Err(why) => return ServeEnd::of(why, was_ready),
            }
        }
        loop {
            let order = if let Some(order) = pending.take() {
                order
            } else {
                tokio::select! {
                    order = orders.recv() => match order {
                        Some(order) => order,
                        None => return ServeEnd::Stopped,
                    },
                    how = life.process.ended() => return ServeEnd::Died(how, true),
                    () = self.stop.cancelled() => return ServeEnd::Stopped,
                }
            };
            match life
                .load(&self.plan, &self.engine, &order.wanted, &self.stop)
                .await
            {
                Ok(()) => {
                    was_ready = true;
                    self.wanted = Some(order.wanted);
                    // The loop waits for it, unless it is gone.
                    let _ = order.reply.send(Ok(()));
                }
                Err(NotLoaded::Refused(message)) => {
                    let _ = order.reply.send(Err(message));
                }
                Err(why) => {
                    *pending = Some(order);
                    return ServeEnd::of(why, was_ready);
                }
            }
        }
    }
}

/// How a server's life ended.
enum ServeEnd {
    Stopped,
    /// And whether it had been of use.
    Died(String, bool),
}

impl ServeEnd {
    fn of(why: NotLoaded, was_ready: bool) -> Self {
        match why {
            NotLoaded::Stopped => Self::Stopped,
            NotLoaded::Died(how) | NotLoaded::Refused(how) => Self::Died(how, was_ready),
        }
    }
}

/// Why weights were not loaded.
enum NotLoaded {
    Stopped,
    /// As the predicate of a sentence.
    Died(String),
    /// It lives, and does not want them.
    Refused(String),
}

/// Waits until a server has ended, or the run.
async fn ended(process: &ServiceProcess, stop: &CancellationToken) -> NotLoaded {
    tokio::select! {
        how = process.ended() => NotLoaded::Died(how),
        () = stop.cancelled() => NotLoaded::Stopped,
    }
}

/// One server process that is ready.
struct Life {
    process: ServiceProcess,
    control: VllmControl,
    /// `http://127.0.0.1:8000/v1`
    base_url: String,
    context: Option<usize>,
    /// The folder whose weights are in it.
    loaded: Utf8PathBuf,
    /// Adapters that are in it, the newest last.
    adapters: Vec<String>,
    /// How many adapters were ever loaded.
    names: u64,
}

impl Life {
    /// Starts a process, and waits until it is ready.
    async fn begin(
        plan: &ServerPlan,
        engine: &ExchangingEngine,
        stop: &CancellationToken,
    ) -> Result<Self, String> {
        engine.close();
        let unable = |message: String| format!("can't be started: {message}");
        // Free now, and taken in a moment: a port that somebody else takes in between is an error, and tried again.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(|error| unable(error.to_string()))?
            .port();
        let (program, arguments) = CommandParts {
            command: plan.command.as_deref(),
            python: &plan.python,
            model: &plan.model,
            port,
            dtype: plan.dtype,
            max_context: plan.max_context,
            lora_rank: plan.lora_rank,
            logprobs: plan.logprobs,
        }
        .build();
        let variable = |name: &str| (name.to_owned(), "1".to_owned());
        let package = osmosis_worker::environment::sdk_path();
        let package = package.map_err(|error| unable(error.to_string()))?;
        // Before the user's own, which the command may need.
        let python_path = match std::env::var("PYTHONPATH") {
            Ok(others) if !others.is_empty() => format!("{package}:{others}"),
            Ok(_) | Err(_) => package.to_string(),
        };
        let command = ServiceCommand {
            program,
            arguments,
            working_directory: plan.working_directory.clone(),
            environment: vec![
                variable("VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
                variable("VLLM_SERVER_DEV_MODE"),
                variable("PYTHONUNBUFFERED"),
                ("PYTHONPATH".to_owned(), python_path),
            ],
            output: plan.log.open().map_err(|error| unable(error.to_string()))?,
            guard: plan.guard.clone(),
        };
        let process = ServiceProcess::start(command).await;
        let process = process.map_err(|error| unable(error.to_string()))?;
        let base = format!("http://127.0.0.1:{port}");
        let control = VllmControl::new(&base).map_err(|error| unable(error.to_string()))?;
        tokio::select! {
            ready = wait_until_ready(&control, &*plan.notices) => ready?,
            how = process.ended() => return Err(how),
            () = stop.cancelled() => return Err("was not waited for".to_owned()),
        }
        let context = control.context().await.map_err(|error| error.to_string())?;
        Ok(Self {
            process,
            control,
            base_url: format!("{base}/v1"),
            context,
            loaded: plan.model.clone(),
            adapters: Vec::new(),
            names: 0,
        })
    }

    /// Has weights answer; no generation begins with others after that.
    async fn load(
        &mut self,
        plan: &ServerPlan,
        engine: &ExchangingEngine,
        wanted: &Wanted,
        stop: &CancellationToken,
    ) -> Result<(), NotLoaded> {
        let (process, control) = (&self.process, &self.control);
        let model = if plan.lora_rank.is_some() {
            if self.adapters.is_empty() || self.loaded != wanted.folder {
                self.names += 1;
                let name = format!("{SERVED_NAME}-v{}-{}", wanted.version.0, self.names);
                let loading = control.load_adapter(&name, wanted.folder.as_str());
                tokio::select! {
                    loaded = loading => loaded.map_err(not_loaded)?,
                    why = ended(process, stop) => return Err(why),
                }
                self.adapters.push(name);
            }
            self.adapters.last().cloned().unwrap_or_default()
        } else {
            if self.loaded != wanted.folder {
                // No request of the old weights may wait at the server while they are exchanged: it would get the
                // old version, and the new weights.
                engine.close();
                let exchanging = async {
                    engine.drained().await;
                    exchange(control, &wanted.folder).await
                };
                tokio::select! {
                    exchanged = exchanging => exchanged.map_err(not_loaded)?,
                    why = ended(process, stop) => return Err(why),
                }
            }
            SERVED_NAME.to_owned()
        };
        self.loaded.clone_from(&wanted.folder);
        let options = RemoteEngineOptions {
            version: wanted.version,
            context: self.context,
            ..RemoteEngineOptions::new(EngineKind::Vllm, &self.base_url, model)
        };
        let opened = engine.open(options);
        opened.map_err(|error| NotLoaded::Refused(error.to_string()))?;
        self.unload_old_adapters().await;
        Ok(())
    }

    /// All but the newest two: answers that began with the one before go on with it.
    async fn unload_old_adapters(&mut self) {
        while self.adapters.len() > 2 {
            let name = self.adapters.remove(0);
            if let Err(error) = self.control.unload_adapter(&name).await {
                tracing::warn!(%error, name, "an adapter stays in the inference server");
            }
        }
    }
}

async fn exchange(control: &VllmControl, folder: &Utf8Path) -> Result<(), VllmControlError> {
    control.pause().await?;
    let reloaded = control.reload_weights(folder.as_str()).await;
    let resumed = control.resume().await;
    reloaded.and(resumed)
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn not_loaded(error: VllmControlError) -> NotLoaded {
    match error {
        VllmControlError::Unreachable { .. } => {
            NotLoaded::Died(format!("does not answer: {error}"))
        }
        VllmControlError::Refused { .. } => {
            NotLoaded::Refused(format!("the inference server took no weights: {error}"))
        }
    }
}

async fn wait_until_ready(control: &VllmControl, notices: &dyn Notices) -> Result<(), String> {
    let began = tokio::time::Instant::now();
    let mut told = began;
    while !control.is_healthy().await {
        let waited = began.elapsed();
        if waited > START_LIMIT {
            return Err(format!(
                "was not ready after {} minutes",
                START_LIMIT.as_secs() / 60
            ));
        }
        if told.elapsed() > TELL {
            told = tokio::time::Instant::now();
            notices.step(format_args!(
                "Waiting for the inference server to load the model ({} s)",
                waited.as_secs()
            ));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}
