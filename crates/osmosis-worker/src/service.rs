//! A long-running program beside the workers: an inference server, a trainer.
//!
//! It is started below a guard like a worker, so that nothing that it started outlives it or us. What it prints goes
//! to a file.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::execution::ExitStatus;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::exit::Departure;
use crate::guard::{
    GuardProgram, MARKER_VARIABLE, Marker, Report, SUBCOMMAND, Settings, Watched, adopt_orphans,
};
use crate::launcher::{GuardHandle, Spawner, end_what_is_left};
use crate::process_group::{checked_pid, kill_with_descendants};
use crate::{WorkerError, variables};

/// How long a guard may take to answer.
const START_LIMIT: Duration = Duration::from_secs(30);

/// What to start.
#[derive(Debug)]
pub struct ServiceCommand {
    pub program: Utf8PathBuf,
    pub arguments: Vec<String>,
    pub working_directory: Utf8PathBuf,
    /// On top of [`variables::for_programs`].
    pub environment: Vec<(String, String)>,
    /// Takes what it prints.
    pub output: File,
    /// What ends everything that it starts; without it only its process group is ended.
    pub guard: Option<GuardProgram>,
}

/// A program that runs until it ends or this is dropped.
#[derive(Debug)]
pub struct ServiceProcess {
    pid: Pid,
    guard: Option<GuardHandle>,
    ended: watch::Receiver<Option<String>>,
    tasks: TaskTracker,
    /// To the kernel, it is the parent of the guard.
    _spawner: Spawner,
}

impl ServiceProcess {
    pub async fn start(command: ServiceCommand) -> Result<Self, WorkerError> {
        let program = command.program.clone();
        let failed = |message: String| WorkerError::Spawn {
            program: program.clone(),
            message,
        };
        let spawner = Spawner::start().map_err(|error| failed(error.to_string()))?;
        let guard = command.guard.clone();
        if guard.is_some() {
            adopt_orphans();
        }
        let (news, ended) = watch::channel(None);
        let tasks = TaskTracker::new();
        let (pid, handle) = match guard {
            None => {
                let mut plain = prepared(Command::new(&program), &command)
                    .map_err(|e| failed(e.to_string()))?;
                // Ctrl-C is for the run.
                plain.process_group(0);
                let child = spawner.spawn(plain).await;
                let mut child = child.map_err(|error| failed(error.to_string()))?;
                let pid = child.id().and_then(checked_pid);
                let pid = pid.ok_or_else(|| failed("it has no process id".to_owned()))?;
                tasks.spawn(async move {
                    let departure = Departure::of_status(child.wait().await);
                    news.send_replace(Some(departure.to_string()));
                });
                (pid, None)
            }
            Some(guard) => {
                let marker = Marker::next();
                let (ours, theirs) =
                    GuardHandle::pair().map_err(|e| failed(format!("no socket: {e}")))?;
                let mut guarding = Command::new(guard.path());
                guarding
                    .arg0("osmosis")
                    .arg(SUBCOMMAND)
                    .args(Settings::default().arguments())
                    .arg(&program);
                let mut guarding =
                    prepared(guarding, &command).map_err(|e| failed(e.to_string()))?;
                guarding
                    .env(MARKER_VARIABLE, marker.to_string())
                    .stdin(Stdio::from(theirs))
                    // It has to outlive us for a moment.
                    .kill_on_drop(false);
                let child = spawner.spawn(guarding).await;
                let child =
                    child.map_err(|e| failed(format!("its guard can't be started: {e}")))?;
                let (handle, reading) = ours;
                let mut reports = BufReader::new(reading).lines();
                let first = tokio::time::timeout(START_LIMIT, reports.next_line()).await;
                let first = first.map_err(|_| failed("its guard did not answer".to_owned()))?;
                let first = first.ok().flatten().and_then(|line| Report::parse(&line));
                let pid = match first {
                    Some(Report::Started { pid }) => checked_pid(pid),
                    Some(Report::NotStarted { message }) => return Err(failed(message)),
                    Some(Report::Ended(_)) | None => {
                        return Err(failed("its guard has ended".to_owned()));
                    }
                };
                let pid = pid.ok_or_else(|| failed("it has no process id".to_owned()))?;
                let watched = child.id().and_then(Watched::new);
                tasks.spawn(watch_guard(child, reports, marker, watched, news));
                (pid, Some(handle))
            }
        };
        Ok(Self {
            pid,
            guard: handle,
            ended,
            tasks,
            _spawner: spawner,
        })
    }

    /// Waits for its end; says how it ended, as the predicate of a sentence.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        let told = ended.wait_for(Option::is_some).await;
        let told = told.ok().and_then(|told| told.clone());
        told.unwrap_or_else(|| Departure::Exited(ExitStatus::Unknown).to_string())
    }

    /// How it ended, when it has.
    pub fn has_ended(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    /// Asks it to end, and ends it with all that it started when `grace` has passed.
    pub async fn end(self, grace: Duration) {
        if self.has_ended().is_none() {
            let _ = kill_process_group(self.pid, Signal::TERM);
            let _ = tokio::time::timeout(grace, self.ended()).await;
        }
        let tasks = self.tasks.clone();
        drop(self);
        tasks.close();
        let _ = tokio::time::timeout(Duration::from_secs(15), tasks.wait()).await;
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        if self.guard.is_none() && self.has_ended().is_none() {
            kill_with_descendants(self.pid);
        }
    }
}

async fn watch_guard(
    mut child: Child,
    mut reports: tokio::io::Lines<BufReader<tokio::net::UnixStream>>,
    marker: Marker,
    watched: Option<Watched>,
    news: watch::Sender<Option<String>>,
) {
    let told = loop {
        match reports.next_line().await {
            Ok(Some(line)) => {
                if let Some(Report::Ended(status)) = Report::parse(&line) {
                    break Some(Departure::Exited(status));
                }
            }
            Ok(None) | Err(_) => break None,
        }
    };
    if let Some(departure) = &told {
        news.send_replace(Some(departure.to_string()));
    }
    // It goes when nothing is left.
    let status = child.wait().await;
    if told.is_none() {
        news.send_replace(Some(Departure::of_status(status).to_string()));
        // Somebody killed it; the kernel kills the program, and nobody the rest.
        end_what_is_left(watched, marker).await;
    }
}

fn prepared(mut command: Command, service: &ServiceCommand) -> std::io::Result<Command> {
    let output = OwnedFd::from(service.output.try_clone()?);
    let errors = output.try_clone()?;
    command
        .args(&service.arguments)
        .current_dir(&service.working_directory)
        .env_clear()
        .envs(variables::for_programs(&[]))
        .envs(
            service
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors))
        .kill_on_drop(true);
    Ok(command)
}
