//! One task from the queue to its report: the slot, the deadlines, the cancelling and the killing.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use osmosis_core::frame::ToWorker;
use osmosis_core::{ErrorCategory, Failure, RolloutId, TaskClock};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::connection::frame_bytes;
use super::guest::Guest;
use super::keeper::describe;
use super::process::tells_sigkill;
use super::roster::{Place, Roster, Waiting};
use super::worker::{Answer, Reply, TaskNews, Worker};
use super::{Inner, Rosters};
use crate::{Isolation, Role, TaskReport, TaskResult};

/// Beyond the cancel grace: how long a worker may take to start a task it was given.
const UNSTARTED_LIMIT: Duration = Duration::from_secs(30);

/// What is to be done, apart from the frame that says so.
#[derive(Debug, Clone)]
pub(super) struct Assignment {
    pub(super) role: Role,
    pub(super) rollout_id: RolloutId,
    pub(super) isolation: Isolation,
    pub(super) limit: Duration,
    /// Keeps the deadline: the limit, from when user code starts, and what is given back of lost time.
    pub(super) clock: Arc<TaskClock>,
}

/// A task that waits for its slot.
pub(super) struct Waiter(oneshot::Sender<Result<Slot, String>>);

impl Waiting for Waiter {
    fn has_left(&self) -> bool {
        self.0.is_closed()
    }
}

impl Waiter {
    pub(super) fn send_home(self, detail: String) {
        drop(self.0.send(Err(detail)));
    }
}

/// The right to run one task; gives it back when dropped.
struct Slot {
    inner: Arc<Inner>,
    role: Role,
    place: Place<Arc<Worker>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut rosters = self.inner.rosters.lock();
            let roster = rosters.of(self.role);
            match &self.place {
                Place::Seat(worker) => roster.leave_seat(worker.id),
                Place::OwnWorker => roster.leave_own_worker(),
            }
        }
        self.inner.dispatch(self.role);
    }
}

impl Rosters {
    pub(super) fn of(&mut self, role: Role) -> &mut Roster<Arc<Worker>, Waiter> {
        match role {
            Role::Agent => &mut self.agents,
            Role::Grader => &mut self.graders,
        }
    }
}

impl Inner {
    /// Gives waiting tasks the places that are free.
    pub(super) fn dispatch(self: &Arc<Self>, role: Role) {
        loop {
            // One at a time and told outside the lock: a waiter that has just left drops its slot,
            // which takes the lock again.
            let next = {
                let mut rosters = self.rosters.lock();
                if rosters.closed.is_some() {
                    return;
                }
                rosters.of(role).next()
            };
            let Some((waiter, place)) = next else { return };
            let slot = Slot {
                inner: Arc::clone(self),
                role,
                place,
            };
            drop(waiter.0.send(Ok(slot)));
        }
    }

    pub(super) async fn execute(
        self: &Arc<Self>,
        task: u64,
        mut assignment: Assignment,
        frame: impl FnOnce(u64) -> ToWorker,
        cancel: &CancellationToken,
    ) -> TaskReport {
        if self.attached.is_some() {
            // There is nothing but the one process.
            assignment.isolation = Isolation::Shared;
        }
        let slot = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                return TaskReport::undispatched(TaskResult::Cancelled);
            }
            slot = self.wait_for_slot(assignment.role, assignment.isolation) => slot,
        };
        let slot = match slot {
            Ok(slot) => slot,
            Err(detail) => return TaskReport::undispatched(TaskResult::NoWorker { detail }),
        };
        let frame = match frame_bytes(&frame(task)) {
            Ok(frame) => frame,
            Err(error) => {
                return TaskReport::undispatched(TaskResult::Failed {
                    failure: Failure::new(
                        ErrorCategory::ValidationError,
                        "too_large",
                        error.to_string(),
                    ),
                });
            }
        };
        // The worker has the task even when our caller loses interest, so somebody has to stay with
        // it: a tracked task does, and is told to stop when this future is dropped.
        let cancel = cancel.child_token();
        let _cancel_when_dropped = cancel.clone().drop_guard();
        let inner = Arc::clone(self);
        let supervised = self.tasks.spawn(async move {
            inner
                .supervise(slot, task, assignment, frame, &cancel)
                .await
        });
        supervised.await.unwrap_or_else(|error| {
            TaskReport::undispatched(TaskResult::WorkerLost {
                detail: format!("was lost: {error}"),
                alone: false,
                killed_from_outside: false,
            })
        })
    }

    async fn wait_for_slot(
        self: &Arc<Self>,
        role: Role,
        isolation: Isolation,
    ) -> Result<Slot, String> {
        let (waiter, slot) = oneshot::channel();
        {
            let mut rosters = self.rosters.lock();
            if let Some(detail) = &rosters.closed {
                return Err(detail.clone());
            }
            rosters.of(role).enqueue(isolation, Waiter(waiter));
        }
        self.dispatch(role);
        slot.await
            .unwrap_or_else(|_| Err("the worker pool has ended".to_owned()))
    }

    /// Tries until it succeeds or there is no point any more; the error says why.
    async fn start_own_worker(&self) -> Result<Guest, String> {
        loop {
            match self.stop.run_until_cancelled(self.start_guest()).await {
                Some(Ok(guest)) => return Ok(guest),
                Some(Err(error)) => self.note_early_death(&describe(&error)),
                None => {}
            }
            if let Some(detail) = &self.rosters.lock().closed {
                return Err(detail.clone());
            }
            tokio::time::sleep(self.pause()).await;
        }
    }

    async fn supervise(
        self: Arc<Self>,
        slot: Slot,
        task: u64,
        assignment: Assignment,
        frame: Bytes,
        cancel: &CancellationToken,
    ) -> TaskReport {
        let dispatch = Dispatch {
            task,
            assignment,
            grace: self.options.cancel_grace,
        };
        if let Place::Seat(worker) = &slot.place {
            return dispatch.carry_out(worker, frame, cancel).await;
        }
        let started = tokio::select! {
            started = self.start_own_worker() => started,
            () = cancel.cancelled() => return TaskReport::undispatched(TaskResult::Cancelled),
        };
        let guest = match started {
            Ok(guest) => guest,
            Err(detail) => return TaskReport::undispatched(TaskResult::NoWorker { detail }),
        };
        let (worker, lifeline) = self.register(slot.role, guest);
        self.tasks.spawn({
            let inner = Arc::clone(&self);
            let worker = Arc::clone(&worker);
            async move { inner.attend(&worker, lifeline).await }
        });
        let report = dispatch.carry_out(&worker, frame, cancel).await;
        let grace = self.options.cancel_grace;
        self.tasks.spawn(async move {
            worker.retire(grace).await;
            drop(slot);
        });
        report
    }
}

/// A task on its way through one worker.
struct Dispatch {
    task: u64,
    assignment: Assignment,
    grace: Duration,
}

/// Why a task has to stop before it is done.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    TimedOut,
    Cancelled,
}

impl Dispatch {
    async fn carry_out(
        &self,
        worker: &Worker,
        frame: Bytes,
        cancel: &CancellationToken,
    ) -> TaskReport {
        let mut clock = Clock::start();
        let mut news = match worker.hold(
            self.task,
            self.assignment.role,
            self.assignment.rollout_id.clone(),
        ) {
            Ok(news) => news,
            Err(detail) => {
                return clock.report(TaskResult::WorkerLost {
                    detail,
                    alone: false,
                    killed_from_outside: false,
                });
            }
        };
        let mut sending = pin!(worker.send(frame));
        let mut sent = false;
        let mut answered_unstarted = false;
        let patience = self.grace + UNSTARTED_LIMIT;
        let mut unstarted = pin!(tokio::time::sleep(patience));
        loop {
            tokio::select! {
                biased;
                started = &mut news.started, if !answered_unstarted => match started {
                    Ok(at) => {
                        self.assignment.clock.start(at);
                        clock.started = Some(at);
                        break;
                    }
                    // Answered, or lost, without ever having started.
                    Err(_) => answered_unstarted = true,
                },
                answer = &mut news.answer => return self.conclude(&mut clock, answer),
                () = &mut sending, if !sent => sent = true,
                () = cancel.cancelled() => {
                    if !sent {
                        worker.release(self.task);
                        return clock.report(TaskResult::Cancelled);
                    }
                    return self.stop(worker, news, clock, Verdict::Cancelled).await;
                }
                () = &mut unstarted => {
                    if !worker.is_blocked_by_another(self.task) {
                        let reason = format!(
                            "it did not start rollout `{}` within {} s",
                            self.assignment.rollout_id,
                            patience.as_secs()
                        );
                        worker.give_up(self.task, reason);
                        let answer = (&mut news.answer).await;
                        return self.conclude(&mut clock, answer);
                    }
                    unstarted.set(tokio::time::sleep(patience));
                }
            }
        }
        let deadline = async {
            // It may have moved by the time it is reached.
            while let Some(at) = self.assignment.clock.deadline()
                && Instant::now() < at
            {
                tokio::time::sleep_until(at.into()).await;
            }
        };
        tokio::select! {
            biased;
            answer = &mut news.answer => self.conclude(&mut clock, answer),
            () = cancel.cancelled() => self.stop(worker, news, clock, Verdict::Cancelled).await,
            () = deadline => self.stop(worker, news, clock, Verdict::TimedOut).await,
        }
    }

    /// Cancels the task, and ends the worker when that brings no answer. What the answer says does
    /// not matter any more.
    async fn stop(
        &self,
        worker: &Worker,
        mut news: TaskNews,
        mut clock: Clock,
        verdict: Verdict,
    ) -> TaskReport {
        let cancelling = async {
            if let Ok(frame) = frame_bytes(&ToWorker::Cancel { task: self.task }) {
                worker.send(frame).await;
            }
            (&mut news.answer).await
        };
        let stopped = match tokio::time::timeout(self.grace, cancelling).await {
            Ok(Ok(answer)) => {
                clock.answered = Some(answer.at);
                matches!(answer.reply, Reply::Result(_))
            }
            Ok(Err(_)) => false,
            Err(_) => {
                let rollout = &self.assignment.rollout_id;
                let reason = match verdict {
                    Verdict::TimedOut => format!(
                        "rollout `{rollout}` passed its deadline of {} s and did not stop",
                        self.assignment.limit.as_secs_f64()
                    ),
                    Verdict::Cancelled => {
                        format!("rollout `{rollout}` was cancelled and did not stop")
                    }
                };
                worker.give_up(self.task, reason);
                false
            }
        };
        clock.report(match verdict {
            Verdict::Cancelled => TaskResult::Cancelled,
            // Its time ran out because somebody else held the loop; alone it may be well in time.
            Verdict::TimedOut if !stopped && worker.may_be_innocent(self.task) => {
                TaskResult::WorkerLost {
                    detail: "was killed because its event loop was blocked".to_owned(),
                    alone: false,
                    killed_from_outside: false,
                }
            }
            Verdict::TimedOut => TaskResult::TimedOut,
        })
    }

    fn conclude(
        &self,
        clock: &mut Clock,
        answer: Result<Answer, oneshot::error::RecvError>,
    ) -> TaskReport {
        let result = match answer {
            Ok(Answer { reply, at }) => {
                clock.answered = Some(at);
                match reply {
                    Reply::Result(result) => result,
                    Reply::Lost { detail, by_us } => TaskResult::WorkerLost {
                        killed_from_outside: tells_sigkill(&detail),
                        detail,
                        alone: !by_us && self.assignment.isolation == Isolation::Alone,
                    },
                }
            }
            Err(_) => TaskResult::WorkerLost {
                detail: "was lost".to_owned(),
                alone: false,
                killed_from_outside: false,
            },
        };
        clock.report(result)
    }
}

struct Clock {
    dispatched: Instant,
    started: Option<Instant>,
    answered: Option<Instant>,
}

impl Clock {
    fn start() -> Self {
        Self {
            dispatched: Instant::now(),
            started: None,
            answered: None,
        }
    }

    fn report(&self, result: TaskResult) -> TaskReport {
        let end = self.answered.unwrap_or_else(Instant::now);
        let began = self.started.unwrap_or(end);
        TaskReport {
            result,
            waited: began.saturating_duration_since(self.dispatched),
            took: end.saturating_duration_since(began),
        }
    }
}
