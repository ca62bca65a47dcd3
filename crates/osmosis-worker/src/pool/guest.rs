//! Bringing a process up: spawned or forked, until it has said hello and loaded the entrypoint.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use osmosis_core::frame::{FromWorker, Manifest, PROTOCOL_VERSION, ToWorker};
use tokio::sync::{mpsc, oneshot};

use super::Inner;
use super::connection::{frame_bytes, write_frames};
use super::door::{Arrival, Caller, Expectation};
use super::exit::{Exit, ExitNews};
use super::guarded::{GuardHandle, StartedProcess};
use super::lifeline::Lifeline;
use super::output::OutputSink;
use super::process::Leash;
use super::template::Template;
use crate::WorkerError;
use crate::guard::Order;

/// How long the last lines of a process that failed may take to arrive.
const LAST_LINES_LIMIT: Duration = Duration::from_secs(1);

/// How long a forked process whose parent is gone may take to dial in.
const ORPHAN_LIMIT: Duration = Duration::from_secs(2);

/// A process that has said hello and has no task in the pool yet. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) id: u64,
    pub(super) leash: Leash,
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

impl Inner {
    /// Starts a process and waits for its hello.
    pub(super) async fn spawn_guest(&self, deadline: StartDeadline) -> Result<Guest, WorkerError> {
        let id = self.next_worker_id();
        let output = self.output_sink(id);
        let (expectation, arrival) = self.door.expect(id, Arc::clone(&output));

        let Some(starter) = &self.starter else {
            return Err(WorkerError::Socket {
                message: "an attached process can't be replaced".to_owned(),
            });
        };
        let StartedProcess {
            pid,
            exit,
            guard,
            stdout,
            stderr,
        } = self
            .start_process(starter, expectation.token(), deadline)
            .await?;
        let leash = self.kennel.admit(id, pid, guard);
        if let Some(pipe) = stdout {
            output.follow(pipe, BytesMut::new());
        }
        if let Some(pipe) = stderr {
            output.follow(pipe, BytesMut::new());
        }
        self.receive_guest(id, leash, exit, output, expectation, arrival, deadline)
            .await
    }

    /// Has the template fork a process and waits for its hello.
    pub(super) async fn fork_guest(
        &self,
        template: &Template,
        deadline: StartDeadline,
    ) -> Result<Guest, WorkerError> {
        let id = self.next_worker_id();
        let output = self.output_sink(id);
        let (expectation, arrival) = self.door.expect(id, Arc::clone(&output));
        let forked = template.fork(expectation.token().to_owned());
        let (pid, exit) = tokio::select! {
            forked = forked => forked.map_err(|detail| WorkerError::DiedAtStart {
                detail,
                output: Vec::new(),
            })?,
            () = deadline.passed() => return Err(self.not_ready(&output, deadline).await),
        };
        let guard = template.guard();
        if let Some(guard) = &guard {
            self.tasks
                .spawn(self.unless_abandoned(sweep_after(exit.clone(), Arc::clone(guard))));
        }
        let leash = self.kennel.admit(id, pid, guard);
        self.receive_guest(id, leash, exit, output, expectation, arrival, deadline)
            .await
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of a guest, which exists only when its caller has arrived"
    )]
    async fn receive_guest(
        &self,
        id: u64,
        leash: Leash,
        mut exit: Exit,
        output: Arc<OutputSink>,
        expectation: Expectation,
        arrival: oneshot::Receiver<Arrival>,
        deadline: StartDeadline,
    ) -> Result<Guest, WorkerError> {
        let ended = async {
            match exit.wait().await {
                ExitNews::Ended(departure) => departure.to_string(),
                // It goes with its parent. Where the kernel doesn't see to that, it has a moment to come.
                ExitNews::ParentEnded(parent) => {
                    tokio::time::sleep(ORPHAN_LIMIT).await;
                    format!("was forked from a process that {parent}")
                }
            }
        };
        let arrived = tokio::select! {
            biased;
            arrived = arrival => arrived,
            detail = ended => {
                return Err(WorkerError::DiedAtStart {
                    detail,
                    output: output.last_lines(LAST_LINES_LIMIT).await,
                });
            }
            () = deadline.passed() => {
                leash.kill();
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
            hello,
            reader,
            writer,
        } = *caller;
        let (outgoing, queue) = mpsc::channel(2 * self.options.in_flight_per_worker + 8);
        self.tasks
            .spawn(self.unless_abandoned(write_frames(writer.0, queue)));
        Ok(Guest {
            id,
            leash,
            lifeline: Lifeline::new(reader, exit),
            outgoing,
            expectation,
            features: hello.features,
            output,
        })
    }

    /// Has a spawned process import the entrypoint.
    pub(super) async fn load_guest(
        &self,
        guest: &mut Guest,
        deadline: StartDeadline,
    ) -> Result<Manifest, WorkerError> {
        let frame = frame_bytes(&ToWorker::Load(self.load.clone())).map_err(|error| {
            WorkerError::Socket {
                message: error.to_string(),
            }
        })?;
        // Cannot wait: the queue of a fresh guest is empty. A closed one is noticed below.
        drop(guest.outgoing.send(frame).await);
        loop {
            let said = tokio::select! {
                said = guest.lifeline.next() => said,
                () = deadline.passed() => {
                    guest.leash.kill();
                    return Err(self.not_ready(&guest.output, deadline).await);
                }
            };
            let detail = match said {
                Ok(FromWorker::Loaded { manifest }) => {
                    if let Some(guard) = guest.leash.guard() {
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
                Ok(_) => "broke the protocol: it did not answer `load`".to_owned(),
                Err(ending) => ending.departure().to_string(),
            };
            guest.leash.kill();
            return Err(WorkerError::DiedAtStart {
                detail,
                output: guest.output.last_lines(LAST_LINES_LIMIT).await,
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
