//! One task from the queue to its report: the slot, the deadlines, the cancelling and the killing.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use osmosis_core::config::WorkerIsolation;
use osmosis_core::execution::{Isolation, LossCause, TaskReport, TaskResult};
use osmosis_core::frame::ToWorker;
use osmosis_core::{ErrorCategory, Failure, RolloutId, TaskClock};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Inner;
use super::connected_process::ConnectedProcess;
use super::connection::frame_bytes;
use super::keeper::describe;
use super::roster::{Place, Waiting};
use super::rosters::Next;
use super::worker::{Answer, LoopHolder, Reply, TaskNews, Worker};
use crate::Role;

/// Beyond the cancel grace: how long a worker may take to start a task it was given.
const UNSTARTED_LIMIT: Duration = Duration::from_secs(30);

/// Longer than the engine waits before it tries a lost rollout again.
const SOLO_HOLD: Duration = Duration::from_secs(2);

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
        self.inner.rosters.lock().leave(self.role, &self.place);
        self.inner.dispatch();
    }
}

impl Inner {
    /// Gives waiting tasks the places that are free.
    pub(super) fn dispatch(self: &Arc<Self>) {
        loop {
            // One at a time and told outside the lock: a waiter that has just left drops its slot,
            // which takes the lock again.
            let next = self.rosters.lock().next();
            let Some(Next {
                role,
                waiter,
                place,
            }) = next
            else {
                return;
            };
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
        } else if self.options.isolation == WorkerIsolation::Process
            && assignment.isolation == Isolation::Shared
        {
            assignment.isolation = Isolation::Alone;
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
                cause: LossCause::Unknown,
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
        if isolation == Isolation::Solo {
            self.solo_arrived.notify_waiters();
        }
        self.dispatch();
        slot.await
            .unwrap_or_else(|_| Err("the worker pool has ended".to_owned()))
    }

    /// Tries until it succeeds or there is no point any more; the error says why.
    async fn start_own_worker(&self) -> Result<ConnectedProcess, String> {
        loop {
            match self.stop.run_until_cancelled(self.start_guest()).await {
                Some(Ok(connected)) => return Ok(connected),
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
        let connected = match started {
            Ok(connected) => connected,
            Err(detail) => return TaskReport::undispatched(TaskResult::NoWorker { detail }),
        };
        let (worker, lifeline) = self.register(slot.role, connected);
        self.tasks.spawn({
            let inner = Arc::clone(&self);
            let worker = Arc::clone(&worker);
            async move { inner.attend(&worker, lifeline).await }
        });
        let report = dispatch.carry_out(&worker, frame, cancel).await;
        let grace = self.options.cancel_grace;
        let comes_again = dispatch.assignment.isolation == Isolation::Solo
            && matches!(report.result, TaskResult::WorkerLost { .. });
        let inner = Arc::clone(&self);
        self.tasks.spawn(async move {
            worker.retire(grace).await;
            if comes_again {
                inner.hold_for_next_solo().await;
            }
            drop(slot);
        });
        report
    }

    /// A rollout that was lost while it ran solo will do so again soon. Until then nothing begins, which it
    /// would have to wait for.
    async fn hold_for_next_solo(&self) {
        let arrived = self.solo_arrived.notified();
        if !self.rosters.lock().solo_waits() {
            let held = tokio::time::timeout(SOLO_HOLD, arrived);
            self.stop.run_until_cancelled(held).await;
        }
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

/// Whose doing it is that a task passed its deadline.
#[derive(Debug, Clone, Copy)]
enum Late {
    ByItself,
    BecauseOfAnother,
    Unknown,
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
                    cause: LossCause::Unknown,
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
        let holder = worker.loop_holder(self.task);
        let turns = worker.turns();
        let cancelling = async {
            if let Ok(frame) = frame_bytes(&ToWorker::Cancel { task: self.task }) {
                worker.send(frame).await;
            }
            (&mut news.answer).await
        };
        let late = match tokio::time::timeout(self.grace, cancelling).await {
            Ok(Ok(answer)) => {
                clock.answered = Some(answer.at);
                match answer.reply {
                    // It stops when it is told to, so it was late by itself unless another had the loop.
                    Reply::Result(_) => self.blame(worker, holder, Late::ByItself),
                    Reply::Lost { .. } => {
                        self.blame(worker, worker.loop_holder(self.task), Late::Unknown)
                    }
                }
            }
            Ok(Err(_)) => self.blame(worker, worker.loop_holder(self.task), Late::Unknown),
            Err(_) => {
                // A loop that turned after the cancel gave the task its chance to stop.
                let unheard = if worker.turns() > turns || !worker.holds_others(self.task) {
                    Late::ByItself
                } else {
                    Late::Unknown
                };
                let late = self.blame(worker, worker.loop_holder(self.task), unheard);
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
                late
            }
        };
        clock.report(match (verdict, late) {
            (Verdict::Cancelled, _) => TaskResult::Cancelled,
            (Verdict::TimedOut, Late::ByItself) => TaskResult::TimedOut,
            // Alone it may be well in time.
            (Verdict::TimedOut, Late::BecauseOfAnother) => TaskResult::WorkerLost {
                detail:
                    "had its event loop held by another rollout when this one's deadline passed"
                        .to_owned(),
                cause: LossCause::Unknown,
            },
            (Verdict::TimedOut, Late::Unknown) => TaskResult::WorkerLost {
                detail: "was shared, and did not tell whose code held it when the deadline passed"
                    .to_owned(),
                cause: LossCause::Unknown,
            },
        })
    }

    /// Why the task is late: by the latest report of who holds the loop, or as `unheard` says without one.
    fn blame(&self, worker: &Worker, holder: LoopHolder, unheard: Late) -> Late {
        let late = match holder {
            LoopHolder::ThisTask => Late::ByItself,
            LoopHolder::AnotherTask => Late::BecauseOfAnother,
            LoopHolder::SomeTask => Late::Unknown,
            LoopHolder::Nobody => unheard,
        };
        match (self.assignment.isolation, late) {
            (Isolation::Shared, Late::Unknown) if !worker.replaceable => Late::ByItself,
            (Isolation::Shared, late) => late,
            // There is nobody else.
            (Isolation::Alone | Isolation::Solo, _) => Late::ByItself,
        }
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
                    Reply::Lost { departure, by_us } => TaskResult::WorkerLost {
                        cause: match self.assignment.isolation {
                            Isolation::Alone | Isolation::Solo if !by_us => {
                                if departure.may_be_anybodys() {
                                    LossCause::Signalled
                                } else {
                                    LossCause::Own
                                }
                            }
                            Isolation::Shared | Isolation::Alone | Isolation::Solo => {
                                LossCause::Unknown
                            }
                        },
                        detail: departure.to_string(),
                    },
                }
            }
            Err(_) => TaskResult::WorkerLost {
                detail: "was lost".to_owned(),
                cause: LossCause::Unknown,
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
