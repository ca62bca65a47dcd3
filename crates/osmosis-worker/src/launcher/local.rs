//! Processes of this machine: started through a guard, or directly where there is none.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use osmosis_core::frame::{ADDRESS_VARIABLE, TOKEN_ON_STDIN, TOKEN_VARIABLE};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader, Lines};
use tokio::process::{Child, Command};
use tokio_util::task::TaskTracker;

use super::limits::apply_limits;
use super::spawner::Spawner;
use super::{Invitation, Launched, LaunchedProcess, Launcher, LocalProcess};
use crate::exit::{Departure, Exit, ExitNews};
use crate::guard::{
    GuardProgram, MARKER_VARIABLE, Marker, Order, Report, SUBCOMMAND, Settings, Watched,
    adopt_orphans, end_marked,
};
use crate::pool::{HOME, TEMPORARY};
use crate::process_group::checked_pid;
use crate::user::{NOT_INHERITED, WorkerIdentity};
use crate::{Endpoint, Launch, Limits, WorkerError, variables};

/// The order channel to a guard. Dropping it orders the end of everything below the guard.
#[derive(Debug)]
pub(crate) struct GuardHandle {
    socket: UnixStream,
}

impl GuardHandle {
    /// A handle, where the guard's reports are read, and the guard's end of the connection.
    pub(crate) fn pair() -> std::io::Result<((Self, tokio::net::UnixStream), OwnedFd)> {
        let ((socket, reading), theirs) = socket_pair()?;
        Ok(((Self { socket }, reading), theirs))
    }

    /// Gives the guard the token of its worker, before anything else.
    fn hand_over(&self, token: &str) {
        let _ = (&self.socket).write_all(format!("{token}\n").as_bytes());
    }

    /// Orders something, without waiting. A guard that is gone has ended everything already.
    pub(crate) fn order(&self, order: Order) {
        let _ = (&self.socket).write_all(order.line().as_bytes());
    }
}

impl Drop for GuardHandle {
    fn drop(&mut self) {
        self.order(Order::End);
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

/// Starts worker processes on this machine.
#[derive(Debug)]
pub struct LocalLauncher {
    launch: Launch,
    limits: Limits,
    spawner: Spawner,
    /// One for each process, until it is gone.
    processes: TaskTracker,
}

impl LocalLauncher {
    pub fn new(launch: Launch, limits: Limits) -> Result<Self, WorkerError> {
        let spawner = Spawner::start().map_err(|error| WorkerError::Spawn {
            program: launch.program.clone(),
            message: format!("no thread can be started: {error}"),
        })?;
        if launch.guard.is_some() {
            adopt_orphans();
        }
        Ok(Self {
            launch,
            limits,
            spawner,
            processes: TaskTracker::new(),
        })
    }

    /// Compares what the process will import with what it was.
    async fn check_seal(&self) -> Result<(), WorkerError> {
        let Some(seal) = &self.launch.seal else {
            return Ok(());
        };
        let seal = Arc::clone(seal);
        let checked = tokio::task::spawn_blocking(move || seal.check()).await;
        let checked = checked.map_err(|error| WorkerError::Spawn {
            program: self.launch.program.clone(),
            message: error.to_string(),
        })?;
        Ok(checked?)
    }

    fn unguarded(&self, mut child: Child) -> Result<LocalProcess, String> {
        let pid = child.id().and_then(checked_pid);
        let pid = pid.ok_or_else(|| "it has no process id".to_owned())?;
        apply_limits(self.limits, pid)
            .map_err(|error| format!("its limits can't be set: {error}"))?;
        let output = output(&mut child);
        let (exit_news, exit) = Exit::channel();
        self.processes.spawn(async move {
            let departure = Departure::of_status(child.wait().await);
            exit_news.send_replace(Some(ExitNews::Ended(departure)));
        });
        Ok(LocalProcess {
            pid,
            parent: std::process::id(),
            exit,
            guard: None,
            output,
        })
    }

    async fn guarded(
        &self,
        mut child: Child,
        handle: Arc<GuardHandle>,
        mut reports: Lines<BufReader<tokio::net::UnixStream>>,
        marker: Marker,
        until: Instant,
    ) -> Result<LocalProcess, String> {
        let output = output(&mut child);
        let first = tokio::select! {
            first = next_report(&mut reports) => first,
            () = tokio::time::sleep_until(until.into()) => {
                return Err("its guard did not answer".to_owned());
            }
        };
        let pid = match first {
            Some(Report::Started { pid }) => checked_pid(pid),
            Some(Report::NotStarted { message }) => return Err(message),
            Some(Report::Ended(_)) | None => return Err("its guard has ended".to_owned()),
        };
        let pid = pid.ok_or_else(|| "it has no process id".to_owned())?;
        let parent = child.id().ok_or_else(|| "its guard has ended".to_owned())?;
        let watched = Watched::new(parent);
        let (exit_news, exit) = Exit::channel();
        self.processes.spawn(async move {
            let told = loop {
                match next_report(&mut reports).await {
                    Some(Report::Ended(status)) => break Some(Departure::Exited(status)),
                    Some(Report::Started { .. } | Report::NotStarted { .. }) => {}
                    None => break None,
                }
            };
            if let Some(departure) = &told {
                exit_news.send_replace(Some(ExitNews::Ended(departure.clone())));
            }
            // It goes when nothing is left.
            let status = child.wait().await;
            if told.is_none() {
                // Somebody killed it; the kernel kills the worker, and nobody the rest.
                let guard = Departure::of_status(status);
                tracing::warn!(pid = parent, %guard, "the guard process of a worker ended before the worker");
                let lost = Departure::LostGuard(Box::new(guard));
                exit_news.send_replace(Some(ExitNews::Ended(lost)));
                end_what_is_left(watched, marker).await;
            }
        });
        Ok(LocalProcess {
            pid,
            parent,
            exit,
            guard: Some(handle),
            output,
        })
    }

    fn guard_command(
        &self,
        program: &GuardProgram,
        invitation: &Invitation,
        marker: Marker,
        socket: OwnedFd,
    ) -> Command {
        let settings = Settings {
            limits: self.limits,
            folder: folder_of(invitation).map(Path::to_owned),
            user: self.launch.user.as_ref().map(|user| (user.uid, user.gid)),
            has_token: true,
        };
        let mut command = Command::new(program.path());
        command
            .arg0("osmosis")
            .arg(SUBCOMMAND)
            .args(settings.arguments())
            .arg(&self.launch.program);
        let mut command = self.worker_command(command, invitation);
        command
            .env(MARKER_VARIABLE, marker.to_string())
            .stdin(Stdio::from(socket))
            // It has to outlive us for a moment.
            .kill_on_drop(false);
        command
    }

    fn worker_command(&self, mut command: Command, invitation: &Invitation) -> Command {
        let Launch {
            arguments,
            working_directory,
            environment,
            ..
        } = &self.launch;
        command
            .args(arguments)
            .current_dir(working_directory)
            .env_clear()
            .envs(variables::for_workers());
        if let (Some(user), Some(folder)) = (&self.launch.user, folder_of(invitation)) {
            for name in NOT_INHERITED {
                command.env_remove(name);
            }
            command.envs(user.variables(&folder.join(HOME), &folder.join(TEMPORARY)));
        }
        command
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .env(ADDRESS_VARIABLE, invitation.endpoint.to_string())
            // The token itself must not stand where other processes can read it.
            .env(TOKEN_VARIABLE, TOKEN_ON_STDIN)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }
}

#[async_trait]
impl Launcher for LocalLauncher {
    async fn launch(&self, invitation: Invitation) -> Result<LaunchedProcess, WorkerError> {
        self.check_seal().await?;
        let program = &self.launch.program;
        let failed = |message: String| WorkerError::Spawn {
            program: program.clone(),
            message,
        };
        let process = match &self.launch.guard {
            None => {
                let mut command = self.worker_command(Command::new(program), &invitation);
                let input = token_pipe(&invitation.token);
                command
                    .stdin(input.map_err(|error| failed(format!("no pipe: {error}")))?)
                    .process_group(0);
                if let Some(user) = &self.launch.user {
                    command.uid(user.uid).gid(user.gid);
                }
                let child = self.spawner.spawn(command).await;
                let child = child.map_err(|error| failed(error.to_string()))?;
                self.unguarded(child).map_err(failed)?
            }
            Some(guard) => {
                let marker = Marker::next();
                let (ours, theirs) =
                    socket_pair().map_err(|error| failed(format!("no socket: {error}")))?;
                let handle = Arc::new(GuardHandle { socket: ours.0 });
                handle.hand_over(&invitation.token);
                let command = self.guard_command(guard, &invitation, marker, theirs);
                let child = self.spawner.spawn(command).await;
                let child = child
                    .map_err(|error| failed(format!("its guard can't be started: {error}")))?;
                let reports = BufReader::new(ours.1).lines();
                self.guarded(child, handle, reports, marker, invitation.until)
                    .await
                    .map_err(failed)?
            }
        };
        Ok(LaunchedProcess(Launched::Here(process)))
    }

    fn user(&self) -> Option<&WorkerIdentity> {
        self.launch.user.as_ref()
    }

    async fn all_gone(&self) {
        self.processes.close();
        self.processes.wait().await;
    }
}

/// A pipe to be a worker's standard input: it holds the token and then ends, so that it can be read once.
pub(crate) fn token_pipe(token: &str) -> std::io::Result<Stdio> {
    let (reader, mut writer) = std::io::pipe()?;
    writer.write_all(token.as_bytes())?;
    Ok(Stdio::from(reader))
}

/// Ends what a guard that was killed had below it.
pub(crate) async fn end_what_is_left(watched: Option<Watched>, marker: Marker) {
    drop(tokio::task::spawn_blocking(move || end_marked(marker)).await);
    if let Some(watched) = watched {
        watched.end_adopted().await;
    }
}

/// The folder of the engine's socket.
fn folder_of(invitation: &Invitation) -> Option<&Path> {
    match &invitation.endpoint {
        Endpoint::Unix(socket) => socket.parent(),
        Endpoint::Tcp { .. } => None,
    }
}

/// What a process prints.
fn output(child: &mut Child) -> Vec<Box<dyn AsyncRead + Send + Unpin>> {
    let mut output: Vec<Box<dyn AsyncRead + Send + Unpin>> = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        output.push(Box::new(pipe));
    }
    if let Some(pipe) = child.stderr.take() {
        output.push(Box::new(pipe));
    }
    output
}

type OurEnd = (UnixStream, tokio::net::UnixStream);

/// Our end, to write and to read, and the guard's.
fn socket_pair() -> std::io::Result<(OurEnd, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let reading = tokio::net::UnixStream::from_std(ours.try_clone()?)?;
    Ok(((ours, reading), OwnedFd::from(theirs)))
}

async fn next_report(reports: &mut Lines<BufReader<tokio::net::UnixStream>>) -> Option<Report> {
    let line = reports.next_line().await.ok()??;
    Report::parse(&line)
}
