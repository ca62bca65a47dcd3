//! Bringing a process up: spawned or forked, until it has said hello and loaded the entrypoint.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use osmosis_core::frame::{FromWorker, Manifest, PROTOCOL_VERSION, ToWorker};
use tokio::sync::{mpsc, oneshot};

use super::Inner;
use super::connection::{frame_bytes, write_frames};
use super::lifeline::Lifeline;
use super::listener::{Arrival, Caller, Expectation, fresh_token};
use super::output::OutputSink;
use super::peer::{Holder, StartedProcess};
use super::process::ProcessHandle;
use super::template::Template;
use crate::WorkerError;
use crate::exit::{Exit, ExitNews};
use crate::guard::Order;
use crate::launcher::{GuardHandle, Invitation, Launched};

/// How long the last lines of a process that failed may take to arrive.
const LAST_LINES_LIMIT: Duration = Duration::from_secs(1);

/// How long a forked process whose parent is gone may take to dial in.
const ORPHAN_LIMIT: Duration = Duration::from_secs(2);

/// A process that has said hello and has no task in the pool yet. Dropping it ends it.
#[derive(Debug)]
pub(super) struct ConnectedProcess {
    pub(super) id: u64,
    pub(super) process: ProcessHandle,
    /// The process that dialled, which is below the one that was started when that is a script.
    pub(super) pid: u32,
    pub(super) lifeline: Lifeline,
    pub(super) outgoing: mpsc::Sender<Bytes>,
    pub(super) expectation: Expectation,
    pub(super) features: Vec<String>,
    pub(super) output: Arc<OutputSink>,
}

/// When a process must be ready.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartDeadline {
    at: Instant,
    limit: Duration,
}

impl StartDeadline {
    pub(super) fn after(limit: Duration) -> Self {
        let now = Instant::now();
        // A limit that no clock can express is as good as a day.
        let at = now
            .checked_add(limit)
            .unwrap_or(now + Duration::from_hours(24));
        Self { at, limit }
    }

    pub(super) async fn passed(self) {
        tokio::time::sleep_until(self.at.into()).await;
    }
}

/// A process that is expected at the pool's endpoint.
#[derive(Debug)]
pub(super) struct Invited {
    id: u64,
    output: Arc<OutputSink>,
    expectation: Expectation,
    arrival: oneshot::Receiver<Arrival>,
}

impl Invited {
    /// Only the process that `parent` started is let in. When it has ended already, nobody is.
    fn give_to(&self, pid: u32, parent: u32) {
        if let Some(started) = StartedProcess::of_parent(pid, parent) {
            self.expectation.give_to(Holder::Started(started));
        }
    }

    /// Whoever brings the token first is let in.
    pub(super) fn give_to_anybody(&self) {
        self.expectation.give_to(Holder::Anybody);
    }
}

impl Inner {
    /// Expects one process, with a token that it was given before or with a fresh one.
    pub(super) fn invite(&self, token: Option<String>) -> Invited {
        let id = self.next_worker_id();
        let output = self.output_sink(id);
        let token = token.unwrap_or_else(fresh_token);
        let (expectation, arrival) = self.listener.expect(token, id, Arc::clone(&output));
        Invited {
            id,
            output,
            expectation,
            arrival,
        }
    }

    /// Starts a process and waits for its hello.
    pub(super) async fn spawn_guest(
        &self,
        deadline: StartDeadline,
    ) -> Result<ConnectedProcess, WorkerError> {
        self.launch_guest(self.invite(None), deadline).await
    }

    /// Has the launcher see to it that an invited process comes, and waits for its hello.
    pub(super) async fn launch_guest(
        &self,
        invited: Invited,
        deadline: StartDeadline,
    ) -> Result<ConnectedProcess, WorkerError> {
        let invitation = Invitation {
            endpoint: self.listener.endpoint().clone(),
            token: invited.expectation.token().to_owned(),
            until: deadline.at,
        };
        let launched = self.launcher.launch(invitation).await.inspect_err(|error| {
            if let WorkerError::CodeChanged(_) = error {
                // No other process would run the code that the run began with.
                self.close(&error.to_string());
                self.stop.cancel();
            }
        });
        let held = match launched?.0 {
            Launched::Elsewhere => {
                invited.give_to_anybody();
                None
            }
            Launched::Here(started) => {
                let process = self.processes.admit(invited.id, started.pid, started.guard);
                invited.give_to(process.pid(), started.parent);
                for pipe in started.output {
                    invited.output.follow(pipe, BytesMut::new());
                }
                Some((process, started.exit))
            }
        };
        self.receive_guest(invited, held, deadline).await
    }

    /// Has the template fork a process and waits for its hello.
    pub(super) async fn fork_guest(
        &self,
        template: &Template,
        deadline: StartDeadline,
    ) -> Result<ConnectedProcess, WorkerError> {
        let invited = self.invite(None);
        let forked = template.fork(invited.expectation.token().to_owned());
        let (pid, exit) = tokio::select! {
            forked = forked => forked.map_err(|detail| WorkerError::DiedAtStart {
                detail,
                output: Vec::new(),
                killed: false,
            })?,
            () = deadline.passed() => return Err(self.not_ready(&invited.output, deadline).await),
        };
        let guard = template.guard();
        if let Some(guard) = &guard {
            self.tasks
                .spawn(self.unless_abandoned(sweep_after(exit.clone(), Arc::clone(guard))));
        }
        let process = self.processes.admit(invited.id, pid, guard);
        invited.give_to(process.pid(), template.pid());
        self.receive_guest(invited, Some((process, exit)), deadline)
            .await
    }

    /// Waits for the hello of an invited process. One that is ours is `held`, and may end before.
    async fn receive_guest(
        &self,
        invited: Invited,
        mut held: Option<(ProcessHandle, Exit)>,
        deadline: StartDeadline,
    ) -> Result<ConnectedProcess, WorkerError> {
        let Invited {
            id,
            output,
            expectation,
            arrival,
        } = invited;
        let ended = async {
            let Some((_, exit)) = &mut held else {
                return std::future::pending().await;
            };
            match exit.wait().await {
                ExitNews::Ended(departure) => (departure.to_string(), departure.may_be_anybodys()),
                // It goes with its parent. Where the kernel doesn't see to that, it has a moment to come.
                ExitNews::ParentEnded(parent) => {
                    tokio::time::sleep(ORPHAN_LIMIT).await;
                    (format!("was forked from a process that {parent}"), true)
                }
            }
        };
        let arrived = tokio::select! {
            biased;
            arrived = arrival => arrived,
            (detail, killed) = ended => {
                return Err(WorkerError::DiedAtStart {
                    detail,
                    output: output.last_lines(LAST_LINES_LIMIT).await,
                    killed,
                });
            }
            () = deadline.passed() => {
                if let Some((process, _)) = &held {
                    process.kill();
                }
                return Err(self.not_ready(&output, deadline).await);
            }
        };
        let caller = match arrived {
            Ok(Arrival::Welcome(caller)) => caller,
            Ok(Arrival::WrongProtocol { found }) => {
                return Err(WorkerError::Protocol {
                    found,
                    expected: PROTOCOL_VERSION,
                });
            }
            Err(_) => {
                return Err(WorkerError::Socket {
                    message: "the worker socket was closed".to_owned(),
                });
            }
        };
        let Caller {
            pid,
            hello,
            reader,
            writer,
        } = *caller;
        let (process, exit) = held.unwrap_or_else(|| {
            // Nobody tells how it ends: it is not our child.
            let (_, exit) = Exit::channel();
            (self.processes.know(id, pid), exit)
        });
        let (outgoing, queue) = mpsc::channel(2 * self.options.in_flight_per_worker + 8);
        self.tasks
            .spawn(self.unless_abandoned(write_frames(writer.0, queue)));
        Ok(ConnectedProcess {
            id,
            process,
            pid,
            lifeline: Lifeline::new(reader, exit),
            outgoing,
            expectation,
            features: hello.features,
            output,
        })
    }

    /// Starts a process that has imported the entrypoint.
    pub(super) async fn loaded_guest(
        &self,
        deadline: StartDeadline,
    ) -> Result<(ConnectedProcess, Manifest), WorkerError> {
        let mut connected = self.spawn_guest(deadline).await?;
        let manifest = self.load_guest(&mut connected, deadline).await?;
        Ok((connected, manifest))
    }

    /// Has a spawned process import the entrypoint.
    pub(super) async fn load_guest(
        &self,
        connected: &mut ConnectedProcess,
        deadline: StartDeadline,
    ) -> Result<Manifest, WorkerError> {
        let frame = frame_bytes(&ToWorker::Load(self.load.clone())).map_err(|error| {
            WorkerError::Socket {
                message: error.to_string(),
            }
        })?;
        // Cannot wait: the queue of a fresh connected is empty. A closed one is noticed below.
        drop(connected.outgoing.send(frame).await);
        loop {
            let said = tokio::select! {
                said = connected.lifeline.next() => said,
                () = deadline.passed() => {
                    connected.process.kill();
                    return Err(self.not_ready(&connected.output, deadline).await);
                }
            };
            let (detail, killed) = match said {
                Ok(FromWorker::Loaded { manifest }) => {
                    if let Some(guard) = connected.process.guard() {
                        guard.order(Order::Keep);
                    }
                    return Ok(manifest);
                }
                Ok(FromWorker::LoadFailed { problems }) => {
                    return Err(WorkerError::LoadFailed {
                        entrypoint: self.load.entrypoint.clone(),
                        problems,
                    });
                }
                Ok(FromWorker::LoopBlocked { .. } | FromWorker::LoopUnblocked {}) => continue,
                Ok(_) => {
                    let detail = "broke the protocol: it did not answer `load`".to_owned();
                    (detail, false)
                }
                Err(ending) => {
                    let departure = ending.departure();
                    (departure.to_string(), departure.may_be_anybodys())
                }
            };
            connected.process.kill();
            return Err(WorkerError::DiedAtStart {
                detail,
                output: connected.output.last_lines(LAST_LINES_LIMIT).await,
                killed,
            });
        }
    }

    async fn not_ready(&self, output: &OutputSink, deadline: StartDeadline) -> WorkerError {
        WorkerError::NotReady {
            limit: deadline.limit,
            output: output.last_lines(LAST_LINES_LIMIT).await,
        }
    }
}

/// What a forked process leaves behind is ended once it is gone. When nobody will tell, its template has gone too, and
/// the guard ends everything.
async fn sweep_after(mut exit: Exit, guard: Arc<GuardHandle>) {
    if matches!(exit.wait().await, ExitNews::Ended(_)) {
        guard.order(Order::Sweep);
    }
}
