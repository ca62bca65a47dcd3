//! Keeps the workers coming: starts them, attends them until they end, replaces them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::connected_process::{ConnectedProcess, StartDeadline};
use super::lifeline::{Ending, Lifeline};
use super::template::{FORK_FEATURE, Template};
use super::worker::{Remark, Worker};
use super::{Inner, Source};
use crate::exit::Departure;
use crate::{Role, WorkerError, WorkerEvent};

/// So many processes in a row that end before they are of use, and there is no point in another.
const MAX_EARLY_DEATHS: u32 = 5;

/// A process that ends this soon, and without having started a task, died at start.
const EARLY: Duration = Duration::from_secs(10);

/// So many forks in a row that come to nothing, and workers are spawned instead.
const MAX_FORK_FAILURES: u32 = 2;

/// More of a stack than this helps nobody.
const MAX_STACK_BYTES: usize = 16 * 1024;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Inner {
    /// Fills one place in the pool, again and again, until the pool stops.
    pub(super) fn employ(self: &Arc<Self>, role: Role, first: Option<ConnectedProcess>) {
        let inner = Arc::clone(self);
        self.tasks.spawn(async move {
            let mut next = first;
            while !inner.stop.is_cancelled() {
                let connected = match next.take() {
                    Some(connected) => Ok(connected),
                    None => match inner.stop.run_until_cancelled(inner.start_guest()).await {
                        Some(started) => started,
                        None => return,
                    },
                };
                match connected {
                    Ok(connected) => {
                        let (worker, lifeline) = inner.register(role, connected);
                        inner.seat(role, &worker);
                        inner.attend(&worker, lifeline).await;
                    }
                    Err(error) => inner.note_early_death(&describe(&error)),
                }
                inner
                    .stop
                    .run_until_cancelled(tokio::time::sleep(inner.pause()))
                    .await;
            }
        });
    }

    /// A loaded process, from the template when there is one.
    pub(super) async fn start_guest(&self) -> Result<ConnectedProcess, WorkerError> {
        let deadline = StartDeadline::after(self.options.start_limit);
        while let Some(template) = self.living_template(deadline).await? {
            match self.fork_guest(&template, deadline).await {
                Ok(connected) => {
                    self.note_fork(true);
                    return Ok(connected);
                }
                // Many may be forking when it ends. Its end is counted once, by whoever starts the next.
                Err(_) if template.has_ended() => {}
                Err(error) if self.note_fork(false) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "forking keeps failing; workers are spawned from now on");
                }
            }
        }
        let (connected, _) = self.loaded_guest(deadline).await?;
        Ok(connected)
    }

    /// Notes how a fork went; `false` when it is time to give forking up.
    fn note_fork(&self, worked: bool) -> bool {
        let mut source = self.source.lock();
        match &mut *source {
            Source::Fork { failures, .. } if worked => {
                *failures = 0;
                true
            }
            Source::Fork { failures, .. } => {
                *failures += 1;
                if *failures < MAX_FORK_FAILURES {
                    return true;
                }
                *source = Source::Spawn;
                false
            }
            Source::Spawn => false,
        }
    }

    /// The template, a new one when the last has ended; `None` when workers are spawned.
    async fn living_template(
        &self,
        deadline: StartDeadline,
    ) -> Result<Option<Arc<Template>>, WorkerError> {
        let Ok(_only_one_at_a_time) = self.template_start.acquire().await else {
            return Ok(None);
        };
        let is_new = match &*self.source.lock() {
            Source::Spawn => return Ok(None),
            Source::Fork { template, .. } if !template.has_ended() => {
                return Ok(Some(Arc::clone(template)));
            }
            Source::Fork { template, .. } => template.count_end(),
        };
        if is_new {
            self.note_early_death("because the template process ended");
        }
        let (connected, manifest) = self.loaded_guest(deadline).await?;
        let can_fork = connected
            .features
            .iter()
            .any(|feature| feature == FORK_FEATURE);
        if !can_fork || manifest.not_forkable.is_some() {
            *self.source.lock() = Source::Spawn;
            return Ok(None);
        }
        let template = Template::install(self, connected);
        *self.source.lock() = Source::Fork {
            template: Arc::clone(&template),
            failures: 0,
        };
        Ok(Some(template))
    }

    /// Makes a worker of a loaded process.
    pub(super) fn register(
        &self,
        role: Role,
        connected: ConnectedProcess,
    ) -> (Arc<Worker>, Lifeline) {
        let ConnectedProcess {
            id,
            process,
            lifeline,
            outgoing,
            expectation,
            ..
        } = connected;
        let worker = Arc::new(Worker::new(id, role, process, outgoing, expectation));
        self.workers.lock().insert(id, Arc::clone(&worker));
        self.announce(WorkerEvent::Started {
            worker: id,
            role,
            pid: worker.pid(),
        });
        (worker, lifeline)
    }

    pub(super) fn seat(self: &Arc<Self>, role: Role, worker: &Arc<Worker>) {
        self.rosters
            .lock()
            .of(role)
            .add_worker(worker.id, Arc::clone(worker));
        self.dispatch();
    }

    /// Listens to a worker until it has ended, then tells everybody concerned.
    pub(super) async fn attend(self: &Arc<Self>, worker: &Arc<Worker>, mut lifeline: Lifeline) {
        let since = Instant::now();
        let mut orphaned = false;
        let departure = loop {
            let said = tokio::select! {
                biased;
                // First: what it still says must not count.
                () = worker.kill_switch.cancelled() => break Departure::Killed { reason: None },
                said = lifeline.next() => said,
                () = self.abandon.cancelled() => break Departure::Abandoned,
            };
            if self.listener.intrusion().is_some() {
                // Told before the intruder was, so that nothing sent after it counts.
                break Departure::Killed { reason: None };
            }
            match said.map(|frame| worker.hear(frame)) {
                Ok(Ok(remark)) => self.take_remark(worker, remark),
                Ok(Err(what)) => break Departure::BrokeProtocol(what),
                Err(ending) => {
                    orphaned = matches!(ending, Ending::Orphaned(_));
                    break ending.departure();
                }
            }
        };
        self.rosters.lock().of(worker.role).remove_worker(worker.id);
        let end = worker.bury(departure, self.stop.is_cancelled());
        self.workers.lock().remove(&worker.id);
        worker.ended.cancel();
        if worker.is_parting() || self.stop.is_cancelled() {
            return;
        }
        if !worker.has_worked.load(Ordering::Relaxed) && since.elapsed() < EARLY && !orphaned {
            // When forked workers go because their parent did, they say nothing about themselves.
            self.note_early_death(&end.detail);
        }
        self.announce(match end.kill_reason {
            Some(reason) => WorkerEvent::Killed {
                worker: worker.id,
                role: worker.role,
                reason,
            },
            None => WorkerEvent::Died {
                worker: worker.id,
                role: worker.role,
                detail: end.detail,
                held: end.rollouts,
            },
        });
    }

    fn take_remark(self: &Arc<Self>, worker: &Arc<Worker>, remark: Remark) {
        match remark {
            Remark::Nothing => {}
            Remark::TaskStarted => self.early_deaths.store(0, Ordering::Relaxed),
            Remark::LoopBlocked {
                blocked_ms,
                mut stack,
            } => {
                stack.truncate(stack.floor_char_boundary(MAX_STACK_BYTES));
                self.rosters
                    .lock()
                    .of(worker.role)
                    .set_blocked(worker.id, true);
                self.announce(WorkerEvent::LoopBlocked {
                    worker: worker.id,
                    blocked_ms,
                    stack,
                });
            }
            Remark::LoopUnblocked => {
                self.rosters
                    .lock()
                    .of(worker.role)
                    .set_blocked(worker.id, false);
                self.dispatch();
            }
        }
    }

    pub(super) fn note_early_death(&self, detail: &str) {
        let deaths = self.early_deaths.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!(deaths, detail, "a worker ended before it was of use");
        if deaths >= MAX_EARLY_DEATHS {
            self.close(&format!(
                "workers can't be kept alive: {deaths} in a row ended right at start, the last one {detail}"
            ));
            self.stop.cancel();
        }
    }

    /// None after useful work; longer with every process that was of no use.
    pub(super) fn pause(&self) -> Duration {
        match self.early_deaths.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            deaths => FIRST_PAUSE
                .saturating_mul(1 << (deaths - 1).min(10))
                .min(LONGEST_PAUSE),
        }
    }
}

pub(super) fn describe(error: &WorkerError) -> String {
    let last_line = match error {
        WorkerError::DiedAtStart { output, .. } | WorkerError::NotReady { output, .. } => {
            output.last()
        }
        WorkerError::LoadFailed { problems, .. } => {
            problems.first().map(|problem| &problem.message)
        }
        WorkerError::Spawn { .. }
        | WorkerError::Protocol { .. }
        | WorkerError::User(_)
        | WorkerError::CodeChanged(_)
        | WorkerError::Socket { .. }
        | WorkerError::Intrusion(_) => None,
    };
    match last_line {
        Some(line) => format!("could not be started ({error}; {line})"),
        None => format!("could not be started ({error})"),
    }
}
