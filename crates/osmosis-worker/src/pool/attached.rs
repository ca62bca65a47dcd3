//! A pool of one process that is not ours: it dials in, runs and grades, and is never killed. When it
//! goes, the pool ends.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use osmosis_core::frame::{Load, Manifest, ToWorker};
use osmosis_core::{JsonText, RolloutId};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::connected_process::{ConnectedProcess, Invited, StartDeadline};
use super::connection::frame_bytes;
use super::lifeline::{Ending, Lifeline};
use super::worker::Worker;
use super::{Inner, Owner, WorkerPool};
use crate::exit::Departure;
use crate::{JoinedProcess, Listen, PoolOptions, Role, WorkerError, WorkerEvent};

/// A place where one process from outside may dial in. Dropping it closes the place.
pub struct Attachment {
    inner: Owner,
    invited: Invited,
    address: String,
}

/// What there is to remember about an attached process.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// Runs that were answered and wait for their grade, by the number of their task.
    ungraded: Mutex<HashMap<RolloutId, u64>>,
    worker: Mutex<Option<Arc<Worker>>>,
}

impl Attachment {
    /// Opens a socket for the process that will bring `token`. Of the options, the numbers of workers
    /// and the limits mean nothing here.
    pub async fn open(
        token: String,
        options: PoolOptions,
        events: mpsc::Sender<WorkerEvent>,
    ) -> Result<Self, WorkerError> {
        let nothing = || {
            JsonText::parse("{}").map_err(|error| WorkerError::Socket {
                message: error.to_string(),
            })
        };
        let load = Load {
            // Where the process is, whatever that means there.
            project_path: ".".to_owned(),
            entrypoint: String::new(),
            workflow: nothing()?,
            grader: nothing()?,
        };
        let joined = Arc::new(JoinedProcess::default());
        let inner = Inner::open(Listen::default(), joined, load, options, events).await?;
        let invited = inner.invite(Some(token));
        // It is not ours, and may come before it is waited for.
        invited.give_to_anybody();
        let address = inner.listener.endpoint().to_string();
        Ok(Self {
            inner,
            invited,
            address,
        })
    }

    /// Where to dial in, as the process is told: `unix:PATH`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits for the process, for as long as a worker may take to start.
    pub async fn admit(self) -> Result<WorkerPool, WorkerError> {
        let Self { inner, invited, .. } = self;
        let deadline = StartDeadline::after(inner.options.start_limit);
        let mut connected = inner.launch_guest(invited, deadline).await?;
        let manifest = inner.load_guest(&mut connected, deadline).await?;
        inner.limit_concurrency(&manifest);
        inner.employ_attached(connected);
        Ok(WorkerPool { inner, manifest })
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Gives the process a seat in both rosters, and ends the pool when it goes.
    fn employ_attached(self: &Arc<Self>, connected: ConnectedProcess) {
        let (worker, lifeline) = self.register(Role::Agent, connected);
        if let Some(attached) = &self.attached {
            *attached.worker.lock() = Some(Arc::clone(&worker));
        }
        for role in [Role::Agent, Role::Grader] {
            self.seat(role, &worker);
        }
        let inner = Arc::clone(self);
        self.tasks.spawn(async move {
            inner.attend_attached(&worker, lifeline).await;
        });
    }

    async fn attend_attached(self: &Arc<Self>, worker: &Arc<Worker>, mut lifeline: Lifeline) {
        let departure = loop {
            let said = tokio::select! {
                said = lifeline.next() => said,
                () = worker.kill_switch.cancelled() => break Departure::LetGo,
                () = self.abandon.cancelled() => break Departure::Abandoned,
            };
            match said.map(|frame| worker.hear(frame)) {
                Ok(Ok(_)) => {}
                Ok(Err(what)) | Err(Ending::BrokeProtocol(what)) => {
                    break Departure::BrokeProtocol(what);
                }
                Err(Ending::Left(_) | Ending::Orphaned(_)) => {
                    break Departure::ClosedConnection;
                }
            }
        };
        // First, so that nobody who is told looks for another worker.
        self.close(&format!("the attached process {departure}"));
        for role in [Role::Agent, Role::Grader] {
            self.rosters.lock().of(role).remove_worker(worker.id);
        }
        let end = worker.bury(departure, true);
        self.workers.lock().remove(&worker.id);
        worker.ended.cancel();
        if !worker.is_parting() && !self.stop.is_cancelled() {
            self.announce(WorkerEvent::Died {
                worker: worker.id,
                role: worker.role,
                detail: end.detail,
                held: end.rollouts,
            });
        }
        self.stop.cancel();
    }
}

impl Attached {
    /// The process keeps what it ran until it is asked for the grade.
    pub(super) fn ran(&self, rollout: RolloutId, task: u64) {
        self.ungraded.lock().insert(rollout, task);
    }

    /// Takes the number of the run that a grade belongs to.
    pub(super) fn grades(&self, rollout: &RolloutId) -> Option<u64> {
        self.ungraded.lock().remove(rollout)
    }

    /// Tells the process that nobody will ask for the grade of a run.
    pub(super) async fn drop_run(&self, task: u64, limit: Duration) {
        let worker = self.worker.lock().clone();
        if let (Some(worker), Ok(frame)) = (worker, frame_bytes(&ToWorker::Cancel { task })) {
            // A process that does not read has other troubles.
            drop(tokio::time::timeout(limit, worker.send(frame)).await);
        }
    }
}

impl Inner {
    pub(super) fn limit_concurrency(&self, manifest: &Manifest) {
        let limit = |found: &osmosis_core::frame::Found| {
            found
                .max_concurrent
                .and_then(|limit| usize::try_from(limit.max(1)).ok())
        };
        let mut rosters = self.rosters.lock();
        rosters
            .of(Role::Agent)
            .limit_concurrency(limit(&manifest.workflow));
        rosters
            .of(Role::Grader)
            .limit_concurrency(manifest.grader.as_ref().and_then(limit));
    }
}
