//! The trainer process: started, asked, and started again when it dies.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::learner::{LearnerError, LearnerErrorKind};
use osmosis_worker::guard::GuardProgram;
use osmosis_worker::{ServiceCommand, ServiceProcess};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::process_log::ProcessLog;
use super::wire::{Hello, Open, Opened, PROTOCOL, Reply, Request, read};
use super::{END_GRACE, failed};
use crate::notices::Notices;
use crate::{RunError, RunErrorKind};

/// Importing torch, on a machine with much to do.
const CONNECT_LIMIT: Duration = Duration::from_mins(10);
/// Longer than the largest model takes to load, or one pass over a microbatch.
const SILENCE_LIMIT: Duration = Duration::from_mins(30);
/// Between two starts of a trainer that died; doubles up to the last.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// So many deaths over one request, and it is the request that kills it.
const MOST_DEATHS: u32 = 4;

const SOCKET_VARIABLE: &str = "OSMOSIS_TRAINER_SOCKET";
const DEVICES_VARIABLE: &str = "OSMOSIS_TRAINER_DEVICES";
const PACKAGES: &str = "import importlib.util as u, sys\n\
    print(' '.join(m for m in ('torch', 'transformers', 'peft', 'accelerate', 'safetensors') if u.find_spec(m) is None))";

/// What a trainer is started with.
#[derive(Debug)]
pub(super) struct TrainerPlan {
    pub(super) python: Utf8PathBuf,
    /// One process for each.
    pub(super) devices: Vec<String>,
    pub(super) open: Open,
    /// Where the states after updates go.
    pub(super) states: Utf8PathBuf,
    pub(super) working_directory: Utf8PathBuf,
    pub(super) log: ProcessLog,
    pub(super) guard: Option<GuardProgram>,
    pub(super) notices: Arc<dyn Notices>,
}

/// What a trainer that is started again goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) model: Utf8PathBuf,
    pub(super) optimizer: Utf8PathBuf,
    pub(super) updates: u64,
}

/// A trainer process, or the next one.
#[derive(Debug)]
pub(super) struct Trainer {
    plan: TrainerPlan,
    link: Mutex<Link>,
    described: String,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Link {
    /// There while the process lives, as far as is known.
    connection: Option<Connection>,
    restore: Option<Saved>,
}

#[derive(Debug)]
struct Connection {
    process: ServiceProcess,
    replies: Lines<BufReader<OwnedReadHalf>>,
    requests: OwnedWriteHalf,
    /// Of the socket.
    _folder: tempfile::TempDir,
}

/// Why there is no answer.
enum NoAnswer {
    /// It answered that it could not, and is as it was.
    Refused(LearnerError),
    /// It is gone; says how, as the predicate of a sentence.
    Gone(String),
    /// The run is over.
    Stopped,
}

type Accept<'a> = &'a mut dyn FnMut(&[Vec<f32>]) -> bool;

impl Trainer {
    /// Starts it, and has it open the model. What fails here would fail again: it is an error.
    pub(super) async fn start(plan: TrainerPlan) -> Result<Self, RunError> {
        let stop = CancellationToken::new();
        let connected = connect(&plan, None, &stop).await;
        let (connection, hello, opened) = connected.map_err(|why| {
            let message = match why {
                NoAnswer::Refused(error) => return refused(error),
                NoAnswer::Gone(why) => format!(
                    "the torch trainer {why}. The end of its log, {}:\n{}",
                    plan.log.path,
                    plan.log.last_lines()
                ),
                NoAnswer::Stopped => "the run was stopped".to_owned(),
            };
            RunError::failed(RunErrorKind::Training, message)
        })?;
        let versions: Vec<String> = hello
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        let Opened {
            parameters,
            trained,
            device,
            processes,
        } = opened;
        let described = format!(
            "The torch trainer trains {trained} of {parameters} parameters on {device}, {processes} process{} ({})",
            if processes == 1 { "" } else { "es" },
            versions.join(", ")
        );
        Ok(Self {
            plan,
            link: Mutex::new(Link {
                connection: Some(connection),
                restore: None,
            }),
            described,
            stop,
        })
    }

    /// What it is, for people.
    pub(super) fn described(&self) -> &str {
        &self.described
    }

    pub(super) fn states(&self) -> &Utf8Path {
        &self.plan.states
    }

    pub(super) fn dtype(&self) -> &'static str {
        self.plan.open.dtype
    }

    /// The folder that training starts from.
    pub(super) fn start_model(&self) -> &Utf8Path {
        &self.plan.open.model
    }

    /// From here on, a trainer that is started again goes on from these files.
    pub(super) fn goes_on_from(&self, saved: Saved) {
        Handle::current().block_on(async { self.link.lock().await.restore = Some(saved) });
    }

    /// Asks it, and waits for the answer. One that dies is started again, with the last state, and asked again.
    /// Blocks.
    pub(super) fn ask(&self, request: &Request<'_>) -> Result<Value, LearnerError> {
        self.ask_with(request, &mut |_| true)
    }

    pub(super) fn ask_with(
        &self,
        request: &Request<'_>,
        accept: Accept<'_>,
    ) -> Result<Value, LearnerError> {
        Handle::current().block_on(self.ask_until_answered(request, accept))
    }

    async fn ask_until_answered(
        &self,
        request: &Request<'_>,
        accept: Accept<'_>,
    ) -> Result<Value, LearnerError> {
        let mut link = self.link.lock().await;
        let mut wait = FIRST_WAIT;
        let mut deaths = 0;
        loop {
            let answer = match link.connection.as_mut() {
                Some(connection) => connection.ask(request, accept, &self.stop).await,
                None => match connect(&self.plan, link.restore.as_ref(), &self.stop).await {
                    Ok((connection, ..)) => {
                        self.plan.notices.note(match &link.restore {
                            Some(saved) => format!(
                                "The torch trainer runs again and goes on after update {}",
                                saved.updates
                            ),
                            None => "The torch trainer runs again, from the start model".to_owned(),
                        });
                        link.connection = Some(connection);
                        continue;
                    }
                    Err(why) => Err(why),
                },
            };
            let why = match answer {
                Ok(value) => return Ok(value),
                Err(NoAnswer::Refused(error)) => return Err(error),
                Err(NoAnswer::Stopped) => return Err(stopped()),
                Err(NoAnswer::Gone(why)) => why,
            };
            if let Some(connection) = link.connection.take() {
                connection.process.end(END_GRACE).await;
            }
            deaths += 1;
            if deaths > MOST_DEATHS {
                return Err(failed(
                    LearnerErrorKind::Ended,
                    format!(
                        "the torch trainer {why}, {deaths} times in a row. The end of its log, {}:\n{}",
                        self.plan.log.path,
                        self.plan.log.last_lines()
                    ),
                ));
            }
            self.plan.notices.warn(format_args!(
                "The torch trainer {why}. Starting it again in {} s",
                wait.as_secs()
            ));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stop.cancelled() => return Err(stopped()),
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Ends it; who waits for an answer is told.
    pub(super) async fn shut_down(&self) {
        self.stop.cancel();
        let connection = self.link.lock().await.connection.take();
        if let Some(connection) = connection {
            let Connection {
                process, requests, ..
            } = connection;
            // The end of its input is the end of its work.
            drop(requests);
            process.end(END_GRACE).await;
        }
    }
}

impl Connection {
    /// `accept` is generic, because the future of one that need not be sent between threads can't be either.
    async fn ask<A: FnMut(&[Vec<f32>]) -> bool + ?Sized>(
        &mut self,
        request: &Request<'_>,
        accept: &mut A,
        stop: &CancellationToken,
    ) -> Result<Value, NoAnswer> {
        let line = serde_json::to_string(request).map_err(|error| {
            NoAnswer::Refused(failed(LearnerErrorKind::Fault, error.to_string()))
        })?;
        self.send(line).await?;
        loop {
            match self.reply(stop).await? {
                Reply::Progress(progress) => {
                    tracing::debug!(done = progress.done, of = progress.of, "the trainer works");
                }
                Reply::Logprobs(logprobs) => {
                    let accepted = accept(&logprobs);
                    self.send(serde_json::json!({ "accept": accepted }).to_string())
                        .await?;
                }
                Reply::Ok(value) => return Ok(value),
                Reply::Error(refusal) => return Err(NoAnswer::Refused(refusal.into())),
                Reply::Hello(_) => {
                    return Err(NoAnswer::Gone("said hello again".to_owned()));
                }
            }
        }
    }

    async fn send(&mut self, mut line: String) -> Result<(), NoAnswer> {
        line.push('\n');
        match self.requests.write_all(line.as_bytes()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(NoAnswer::Gone(self.how_it_ended().await)),
        }
    }

    async fn reply(&mut self, stop: &CancellationToken) -> Result<Reply, NoAnswer> {
        let line = tokio::select! {
            line = timeout(SILENCE_LIMIT, self.replies.next_line()) => line,
            () = stop.cancelled() => return Err(NoAnswer::Stopped),
        };
        match line {
            Ok(Ok(Some(line))) => serde_json::from_str(&line).map_err(|error| {
                NoAnswer::Gone(format!("sent something that is no answer: {error}"))
            }),
            Ok(Ok(None) | Err(_)) => Err(NoAnswer::Gone(self.how_it_ended().await)),
            Err(_) => Err(NoAnswer::Gone(format!(
                "was silent for {} minutes",
                SILENCE_LIMIT.as_secs() / 60
            ))),
        }
    }

    /// Its connection has ended; its process ends about then.
    async fn how_it_ended(&self) -> String {
        let ended = timeout(Duration::from_secs(10), self.process.ended()).await;
        ended.unwrap_or_else(|_| "closed its connection".to_owned())
    }
}

/// For requests that ask for nothing to be accepted.
fn refuse(_: &[Vec<f32>]) -> bool {
    false
}

/// Starts a process, has it open the model, and restore what it is to go on from.
async fn connect(
    plan: &TrainerPlan,
    restore: Option<&Saved>,
    stop: &CancellationToken,
) -> Result<(Connection, Hello, Opened), NoAnswer> {
    let gone = |message: String| NoAnswer::Gone(format!("can't be started: {message}"));
    // Not in the run's folder: the path of a socket is short.
    let folder = tempfile::Builder::new()
        .prefix("osmosis-trainer-")
        .tempdir()
        .map_err(|error| gone(error.to_string()))?;
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).map_err(|error| gone(error.to_string()))?;
    let socket = socket.to_string_lossy().into_owned();
    let process = ServiceProcess::start(command(plan, &socket).map_err(gone)?).await;
    let process = process.map_err(|error| gone(error.to_string()))?;
    let stream: UnixStream = tokio::select! {
        accepted = timeout(CONNECT_LIMIT, listener.accept()) => match accepted {
            Ok(Ok((stream, _))) => stream,
            Ok(Err(error)) => return Err(gone(error.to_string())),
            Err(_) => return Err(NoAnswer::Gone("did not connect".to_owned())),
        },
        how = process.ended() => return Err(NoAnswer::Gone(how)),
        () = stop.cancelled() => return Err(NoAnswer::Stopped),
    };
    let (reading, requests) = stream.into_split();
    let mut connection = Connection {
        process,
        replies: BufReader::new(reading).lines(),
        requests,
        _folder: folder,
    };
    let hello = match connection.reply(stop).await? {
        Reply::Hello(hello) if hello.protocol == PROTOCOL => hello,
        other => {
            return Err(NoAnswer::Gone(format!(
                "began with something else: {other:?}"
            )));
        }
    };
    let opened = connection
        .ask(&Request::Open(&plan.open), &mut refuse, stop)
        .await?;
    let opened: Opened = read(opened).map_err(NoAnswer::Refused)?;
    if let Some(saved) = restore {
        let request = Request::Restore {
            model: saved.model.as_str(),
            optimizer: saved.optimizer.as_str(),
            updates: saved.updates,
        };
        connection.ask(&request, &mut refuse, stop).await?;
    }
    Ok((connection, hello, opened))
}

fn command(plan: &TrainerPlan, socket: &str) -> Result<ServiceCommand, String> {
    const MODULE: &str = "osmosis_ai.trainer.torch";
    let package = osmosis_worker::environment::sdk_path().map_err(|error| error.to_string())?;
    let several = plan.devices.len();
    let mut arguments: Vec<String> = Vec::new();
    if several > 1 {
        // What `accelerate launch` starts on several devices, without its config file.
        let launch = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
        ];
        arguments.extend(launch.map(str::to_owned));
        arguments.push(several.to_string());
    }
    arguments.extend(["-m".to_owned(), MODULE.to_owned()]);
    let environment = vec![
        // The package of this very program, whatever is installed.
        ("PYTHONPATH".to_owned(), package.to_string()),
        ("PYTHONUNBUFFERED".to_owned(), "1".to_owned()),
        (SOCKET_VARIABLE.to_owned(), socket.to_owned()),
        (DEVICES_VARIABLE.to_owned(), plan.devices.join(",")),
    ];
    Ok(ServiceCommand {
        program: plan.python.clone(),
        arguments,
        working_directory: plan.working_directory.clone(),
        environment,
        output: plan
            .log
            .open()
            .map_err(|error| format!("{}: {error}", plan.log.path))?,
        guard: plan.guard.clone(),
    })
}

/// Refuses an interpreter that can't be run or lacks packages.
pub(super) async fn check_packages(python: &Utf8Path) -> Result<(), RunError> {
    let hint = format!(
        "install them with `{python} -m pip install 'osmosis-rs[torch]'`, or name another interpreter with \
         `python` in `[trainer]`"
    );
    let unusable = |message: String| {
        RunError::failed(
            RunErrorKind::Environment,
            format!("`[trainer] python`: `{python}` {message}"),
        )
        .hint(hint.clone())
    };
    let asked = Command::new(python)
        .args(["-c", PACKAGES])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(Duration::from_mins(1), asked)
        .await
        .map_err(|_| unusable("does not answer".to_owned()))?
        .map_err(|error| unusable(format!("can't be run: {error}")))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().unwrap_or("without a message");
        return Err(unusable(format!("failed: {last}")));
    }
    let missing = String::from_utf8_lossy(&output.stdout);
    match missing.trim() {
        "" => Ok(()),
        missing => {
            let missing = missing.replace(' ', "`, `");
            Err(unusable(format!("has no package `{missing}`")))
        }
    }
}

fn refused(error: LearnerError) -> RunError {
    let kind = match error.kind {
        LearnerErrorKind::Unreadable => RunErrorKind::ModelInvalid,
        LearnerErrorKind::Invalid
        | LearnerErrorKind::NotFinite
        | LearnerErrorKind::DiskFull
        | LearnerErrorKind::Unwritable
        | LearnerErrorKind::Ended
        | LearnerErrorKind::Fault => RunErrorKind::Training,
    };
    RunError::failed(kind, error.message).maybe_hint(error.hint)
}

fn stopped() -> LearnerError {
    failed(LearnerErrorKind::Ended, "the run was stopped".to_owned())
}
