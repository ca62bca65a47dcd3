//! The engine's side of a worker process: started through a guard, or directly where there is none.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;

use osmosis_core::frame::{ADDRESS_VARIABLE, TOKEN_VARIABLE};
use rustix::process::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, Command};

use super::exit::{Departure, Exit, ExitNews};
use super::guest::StartDeadline;
use super::process::apply_limits;
use super::{Inner, Starter};
use crate::guard::{
    GuardProgram, MARKER_VARIABLE, Marker, Order, Report, SUBCOMMAND, Settings, end_marked,
};
use crate::process_group::checked_pid;
use crate::{Launch, WorkerError, variables};

/// A worker process that is there, and whoever tells how it ends.
pub(super) struct StartedProcess {
    pub(super) pid: Pid,
    pub(super) exit: Exit,
    /// Ends what the process started when it is dropped.
    pub(super) guard: Option<Arc<GuardHandle>>,
    pub(super) stdout: Option<tokio::process::ChildStdout>,
    pub(super) stderr: Option<tokio::process::ChildStderr>,
}

/// The order channel to a guard. Dropping it orders the end of everything below the guard.
#[derive(Debug)]
pub(super) struct GuardHandle {
    socket: UnixStream,
}

impl GuardHandle {
    /// Orders something, without waiting. A guard that is gone has ended everything already.
    pub(super) fn order(&self, order: Order) {
        let _ = (&self.socket).write_all(order.line().as_bytes());
    }
}

impl Drop for GuardHandle {
    fn drop(&mut self) {
        self.order(Order::End);
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

impl Inner {
    /// Starts a worker process. Dropping the future ends it.
    pub(super) async fn start_process(
        &self,
        starter: &Starter,
        token: &str,
        deadline: StartDeadline,
    ) -> Result<StartedProcess, WorkerError> {
        let Starter { launch, spawner } = starter;
        let failed = |message: String| WorkerError::Spawn {
            program: launch.program.clone(),
            message,
        };
        match &launch.guard {
            None => {
                let command = self.worker_command(Command::new(&launch.program), launch, token);
                let child = spawner.spawn(command).await;
                let child = child.map_err(|error| failed(error.to_string()))?;
                self.unguarded(child).map_err(failed)
            }
            Some(program) => {
                let marker = Marker::next();
                let (ours, theirs) =
                    socket_pair().map_err(|error| failed(format!("no socket: {error}")))?;
                let handle = Arc::new(GuardHandle { socket: ours.0 });
                let command = self.guard_command(program, launch, token, marker, theirs);
                let child = spawner.spawn(command).await;
                let child = child
                    .map_err(|error| failed(format!("its guard can't be started: {error}")))?;
                let reports = BufReader::new(ours.1).lines();
                self.guarded(child, handle, reports, marker, deadline)
                    .await
                    .map_err(failed)
            }
        }
    }

    fn unguarded(&self, mut child: Child) -> Result<StartedProcess, String> {
        let pid = child.id().and_then(checked_pid);
        let pid = pid.ok_or_else(|| "it has no process id".to_owned())?;
        apply_limits(self.options.limits, pid)
            .map_err(|error| format!("its limits can't be set: {error}"))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (exit_news, exit) = Exit::channel();
        self.processes.spawn(async move {
            let departure = Departure::of_status(child.wait().await);
            exit_news.send_replace(Some(ExitNews::Ended(departure)));
        });
        Ok(StartedProcess {
            pid,
            exit,
            guard: None,
            stdout,
            stderr,
        })
    }

    async fn guarded(
        &self,
        mut child: Child,
        handle: Arc<GuardHandle>,
        mut reports: Lines<BufReader<tokio::net::UnixStream>>,
        marker: Marker,
        deadline: StartDeadline,
    ) -> Result<StartedProcess, String> {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let first = tokio::select! {
            first = next_report(&mut reports) => first,
            () = deadline.passed() => return Err("its guard did not answer".to_owned()),
        };
        let pid = match first {
            Some(Report::Started { pid }) => checked_pid(pid),
            Some(Report::NotStarted { message }) => return Err(message),
            Some(Report::Ended(_)) | None => return Err("its guard has ended".to_owned()),
        };
        let pid = pid.ok_or_else(|| "it has no process id".to_owned())?;
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
                exit_news.send_replace(Some(ExitNews::Ended(Departure::of_status(status))));
                // Somebody killed it; the kernel kills the worker, and nobody the rest.
                drop(tokio::task::spawn_blocking(move || end_marked(marker)).await);
            }
        });
        Ok(StartedProcess {
            pid,
            exit,
            guard: Some(handle),
            stdout,
            stderr,
        })
    }

    fn guard_command(
        &self,
        program: &GuardProgram,
        launch: &Launch,
        token: &str,
        marker: Marker,
        socket: OwnedFd,
    ) -> Command {
        let settings = Settings {
            limits: self.options.limits,
            folder: self.door.folder(),
        };
        let mut command = Command::new(program.path());
        command
            .arg0("osmosis")
            .arg(SUBCOMMAND)
            .args(settings.arguments())
            .arg(&launch.program);
        let mut command = self.worker_command(command, launch, token);
        command
            .env(MARKER_VARIABLE, marker.to_string())
            .stdin(Stdio::from(socket))
            // It has to outlive us for a moment.
            .kill_on_drop(false);
        command
    }

    fn worker_command(&self, mut command: Command, launch: &Launch, token: &str) -> Command {
        command
            .args(&launch.arguments)
            .current_dir(&launch.working_directory)
            .env_clear()
            .envs(variables::for_workers())
            .envs(launch.environment.iter().map(|(name, value)| (name, value)))
            .env(ADDRESS_VARIABLE, self.door.address())
            .env(TOKEN_VARIABLE, token)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        command
    }
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
