//! One worker process, seen from here: what it holds, what it answers, how it is ended.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use osmosis_core::execution::TaskResult;
use osmosis_core::frame::{FromWorker, ToWorker, TurnRewards};
use osmosis_core::{ErrorCategory, Failure, RolloutId};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::connection::frame_bytes;
use super::listener::Expectation;
use super::process::ProcessHandle;
use crate::Role;
use crate::exit::Departure;

/// A worker whose loop stands still reports every second who holds it. Who holds the interpreter's lock
/// stops even that: then an older report names the wrong one.
const FRESH: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) id: u64,
    pub(super) role: Role,
    /// Ours to end, so that what it holds can run elsewhere.
    pub(super) replaceable: bool,
    process: ProcessHandle,
    outgoing: mpsc::Sender<Bytes>,
    held: Mutex<Held>,
    /// Cancelled when we decide that it must end now.
    pub(super) kill_switch: CancellationToken,
    /// Cancelled when it has ended and everything it held knows.
    pub(super) ended: CancellationToken,
    /// It was asked to leave, so its end is no news.
    parting: AtomicBool,
    /// It started a task once, so it is not one of those that die at start.
    pub(super) has_worked: AtomicBool,
    _expectation: Expectation,
}

#[derive(Debug, Default)]
struct Held {
    tasks: HashMap<u64, HeldTask>,
    loop_blocked: Option<Blockage>,
    /// Frames that the event loop itself sent: it turns while this grows.
    turns: u64,
    kill_reason: Option<String>,
    /// Tasks of a process that can't be killed: what it still says of them is not heard.
    given_up: HashSet<u64>,
    /// Why nothing can be given to it any more.
    lost: Option<String>,
}

/// A loop that does not turn, and whose code is to blame when that is known.
#[derive(Debug)]
struct Blockage {
    task: Option<u64>,
    /// More than one task was there to be blamed.
    shared: bool,
    reported: Instant,
}

/// Whose code runs while the loop does not turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopHolder {
    /// The loop turns, or nothing was heard of it.
    Nobody,
    ThisTask,
    AnotherTask,
    /// One of several, and nobody knows which.
    SomeTask,
}

#[derive(Debug)]
struct HeldTask {
    rollout_id: RolloutId,
    role: Role,
    started: Option<oneshot::Sender<Instant>>,
    answer: oneshot::Sender<Answer>,
}

/// What came back, and when.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) at: Instant,
}

#[derive(Debug)]
pub(super) enum Reply {
    Result(TaskResult),
    /// The worker is gone. `by_us` when the pool ended it, for no fault of the task.
    Lost {
        departure: Departure,
        by_us: bool,
    },
}

/// News of a task that a worker was given.
#[derive(Debug)]
pub(super) struct TaskNews {
    pub(super) started: oneshot::Receiver<Instant>,
    pub(super) answer: oneshot::Receiver<Answer>,
}

/// What else a worker may say.
#[derive(Debug)]
pub(super) enum Remark {
    Nothing,
    TaskStarted,
    LoopBlocked { blocked_ms: u64, stack: String },
    LoopUnblocked,
}

impl Worker {
    pub(super) fn new(
        id: u64,
        role: Role,
        process: ProcessHandle,
        outgoing: mpsc::Sender<Bytes>,
        expectation: Expectation,
    ) -> Self {
        Self {
            id,
            role,
            replaceable: process.holds(),
            process,
            outgoing,
            held: Mutex::default(),
            kill_switch: CancellationToken::new(),
            ended: CancellationToken::new(),
            parting: AtomicBool::new(false),
            has_worked: AtomicBool::new(false),
            _expectation: expectation,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Notes that the worker is about to be given a task; the error says why it can't be.
    pub(super) fn hold(
        &self,
        task: u64,
        role: Role,
        rollout_id: RolloutId,
    ) -> Result<TaskNews, String> {
        let mut held = self.held.lock();
        if let Some(detail) = &held.lost {
            return Err(detail.clone());
        }
        let (started, started_news) = oneshot::channel();
        let (answer, answer_news) = oneshot::channel();
        held.tasks.insert(
            task,
            HeldTask {
                rollout_id,
                role,
                started: Some(started),
                answer,
            },
        );
        Ok(TaskNews {
            started: started_news,
            answer: answer_news,
        })
    }

    /// Forgets a task that the worker never heard of.
    pub(super) fn release(&self, task: u64) {
        self.held.lock().tasks.remove(&task);
    }

    /// Whether a blocked loop, rather than a dead one, explains that `task` does not start: what
    /// blocks it has a deadline of its own.
    pub(super) fn is_blocked_by_another(&self, task: u64) -> bool {
        let held = self.held.lock();
        held.loop_blocked.is_some()
            && held
                .tasks
                .iter()
                .any(|(other, state)| *other != task && state.started.is_none())
    }

    /// How often the loop has turned, as far as was heard.
    pub(super) fn turns(&self) -> u64 {
        self.held.lock().turns
    }

    /// Who keeps the loop from turning, by the latest report.
    pub(super) fn loop_holder(&self, task: u64) -> LoopHolder {
        match &self.held.lock().loop_blocked {
            None => LoopHolder::Nobody,
            Some(blockage) if !blockage.shared => LoopHolder::ThisTask,
            Some(blockage) if blockage.reported.elapsed() > FRESH => LoopHolder::SomeTask,
            Some(Blockage { task: None, .. }) => LoopHolder::SomeTask,
            Some(Blockage {
                task: Some(holder), ..
            }) => {
                if *holder == task {
                    LoopHolder::ThisTask
                } else {
                    LoopHolder::AnotherTask
                }
            }
        }
    }

    /// Whether other tasks are here that may keep `task` from stopping.
    pub(super) fn holds_others(&self, task: u64) -> bool {
        self.held.lock().tasks.keys().any(|other| *other != task)
    }

    /// Queues a frame; waits when the worker does not read. A worker that is gone has told so in
    /// another way.
    pub(super) async fn send(&self, frame: Bytes) {
        drop(self.outgoing.send(frame).await);
    }

    /// Gets rid of a task that does not let go: with the process, when that is ours.
    pub(super) fn give_up(&self, task: u64, reason: String) {
        if self.process.holds() {
            return self.kill(reason);
        }
        tracing::warn!(worker = self.id, reason, "a task is given up");
        let mut held = self.held.lock();
        if held.tasks.remove(&task).is_some() {
            held.given_up.insert(task);
        }
    }

    /// Ends the process now. What it holds is told `reason`.
    pub(super) fn kill(&self, reason: String) {
        self.held.lock().kill_reason.get_or_insert(reason);
        self.process.kill();
        self.kill_switch.cancel();
    }

    /// Asks it to leave, and ends it when it has not after `grace`.
    pub(super) async fn retire(&self, grace: Duration) {
        self.parting.store(true, Ordering::Relaxed);
        let leaving = async {
            if let Ok(frame) = frame_bytes(&ToWorker::Shutdown {}) {
                self.send(frame).await;
            }
            self.ended.cancelled().await;
        };
        if tokio::time::timeout(grace, leaving).await.is_err() {
            self.process.kill();
            self.kill_switch.cancel();
            self.ended.cancelled().await;
        }
    }

    pub(super) fn is_parting(&self) -> bool {
        self.parting.load(Ordering::Relaxed)
    }

    /// Takes a frame; the error says how it breaks the protocol.
    pub(super) fn hear(&self, frame: FromWorker) -> Result<Remark, String> {
        if !matches!(frame, FromWorker::LoopBlocked { .. }) {
            self.held.lock().turns += 1;
        }
        let result = match frame {
            FromWorker::Started { task } => return self.note_started(task),
            FromWorker::LoopBlocked {
                blocked_ms,
                stack,
                task,
            } => {
                let mut held = self.held.lock();
                let shared = held.tasks.len() > 1;
                let before = held.loop_blocked.replace(Blockage {
                    task,
                    shared,
                    reported: Instant::now(),
                });
                drop(held);
                return Ok(match before {
                    None => Remark::LoopBlocked { blocked_ms, stack },
                    // Another has it now. One line in the log is enough.
                    Some(_) => Remark::Nothing,
                });
            }
            FromWorker::LoopUnblocked {} => {
                self.held.lock().loop_blocked = None;
                return Ok(Remark::LoopUnblocked);
            }
            FromWorker::RunDone {
                task,
                samples,
                metrics,
                interactions,
            } => {
                let done = TaskResult::Done {
                    samples,
                    metrics,
                    interactions,
                    turn_rewards: TurnRewards::new(),
                };
                self.answer(task, Some(Role::Agent), done)
            }
            FromWorker::GradeDone {
                task,
                samples,
                turn_rewards,
            } => {
                let done = TaskResult::Done {
                    samples,
                    metrics: None,
                    interactions: Vec::new(),
                    turn_rewards,
                };
                self.answer(task, Some(Role::Grader), done)
            }
            FromWorker::Rejected { task, reason } => {
                self.answer(task, Some(Role::Agent), TaskResult::Rejected { reason })
            }
            FromWorker::TaskFailed { task, failure } => {
                self.answer(task, None, TaskResult::Failed { failure })
            }
            FromWorker::TaskCancelled { task } => {
                // Whoever asked for this ignores the failure; when nobody did, it is one.
                let failure = Failure::new(
                    ErrorCategory::AgentError,
                    "CancelledError",
                    "the task was cancelled from inside",
                );
                self.answer(task, None, TaskResult::Failed { failure })
            }
            FromWorker::Hello(_) => Err("said `hello` twice".to_owned()),
            FromWorker::Loaded { .. }
            | FromWorker::LoadFailed { .. }
            | FromWorker::Forked { .. }
            | FromWorker::ForkFailed { .. }
            | FromWorker::ChildExited { .. } => {
                Err("said something that nobody asked for".to_owned())
            }
        };
        result.map(|()| Remark::Nothing)
    }

    fn note_started(&self, task: u64) -> Result<Remark, String> {
        let started = {
            let mut held = self.held.lock();
            let given_up = held.given_up.contains(&task);
            let Some(state) = held.tasks.get_mut(&task) else {
                if given_up {
                    return Ok(Remark::Nothing);
                }
                return Err(format!("started task {task}, which it does not have"));
            };
            state.started.take()
        };
        let Some(started) = started else {
            return Err(format!("started task {task} twice"));
        };
        self.has_worked.store(true, Ordering::Relaxed);
        // Nobody listens when the task is being cancelled.
        let _ = started.send(Instant::now());
        Ok(Remark::TaskStarted)
    }

    fn answer(&self, task: u64, role: Option<Role>, result: TaskResult) -> Result<(), String> {
        let (state, given_up) = {
            let mut held = self.held.lock();
            (held.tasks.remove(&task), held.given_up.remove(&task))
        };
        let Some(state) = state else {
            if given_up {
                return Ok(());
            }
            return Err(format!(
                "answered task {task}, which it does not have or has answered before"
            ));
        };
        if role.is_some_and(|role| role != state.role) {
            let detail = format!("answered task {task} with the wrong kind of answer");
            drop(state.answer.send(Answer {
                reply: Reply::Lost {
                    departure: Departure::BrokeProtocol(detail.clone()),
                    by_us: false,
                },
                at: Instant::now(),
            }));
            return Err(detail);
        }
        drop(state.answer.send(Answer {
            reply: Reply::Result(result),
            at: Instant::now(),
        }));
        Ok(())
    }

    /// It has ended: tells everything it held, and lets go of the process.
    /// `pool_stops` when that is why.
    pub(super) fn bury(&self, departure: Departure, pool_stops: bool) -> WorkerEnd {
        let by_us = pool_stops || self.is_parting();
        self.process.finish();
        let (tasks, kill_reason, departure) = {
            let mut held = self.held.lock();
            let kill_reason = held.kill_reason.clone();
            let departure = match &kill_reason {
                Some(reason) => Departure::Killed {
                    reason: Some(reason.clone()),
                },
                None if self.is_parting() => Departure::AskedToLeave,
                None => departure,
            };
            held.lost = Some(departure.to_string());
            (std::mem::take(&mut held.tasks), kill_reason, departure)
        };
        let at = Instant::now();
        let mut rollouts: Vec<RolloutId> = Vec::with_capacity(tasks.len());
        for state in tasks.into_values() {
            rollouts.push(state.rollout_id);
            drop(state.answer.send(Answer {
                reply: Reply::Lost {
                    departure: departure.clone(),
                    by_us,
                },
                at,
            }));
        }
        rollouts.sort();
        WorkerEnd {
            detail: departure.to_string(),
            kill_reason,
            rollouts,
        }
    }
}

/// What is left to say about a worker that has ended.
#[derive(Debug)]
pub(super) struct WorkerEnd {
    pub(super) detail: String,
    /// Set when we ended it.
    pub(super) kill_reason: Option<String>,
    pub(super) rollouts: Vec<RolloutId>,
}
