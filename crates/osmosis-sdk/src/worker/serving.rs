//! Serves tasks: each in a future of its own, which a cancel drops.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, Location};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use osmosis_core::RolloutId;
use osmosis_core::frame::{FromWorker, GradeTask, Load, Problem, RunTask, ToWorker};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{Stream, frame_bytes, write_frames};
use super::loading::{Loaded, load};
use super::process::{Exit, give_up};
use crate::failure::failure_of;
use crate::output::CURRENT_ROLLOUT;
use crate::sample::metrics_text;
use crate::{AgentWorkflow, Error, Grader, GraderContext, SdkError, WorkflowContext, panics};

/// Answers that wait to be written; more wait in their tasks.
const OUTGOING_FRAMES: usize = 256;

/// How long tasks may take to let go of what they hold when the engine is done with us.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct Server<W: AgentWorkflow, G: Grader> {
    workflow: Arc<W>,
    grader: Arc<G>,
    called_from: &'static Location<'static>,
    loaded: Option<Loaded<W, G>>,
    runtime: Handle,
    tasks: TaskTracker,
    running: Arc<Running>,
}

/// Why serving ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Shutdown,
    Disconnected,
}

/// The tasks that are under way.
#[derive(Debug, Default)]
struct Running {
    tasks: Mutex<HashMap<u64, CancellationToken>>,
    /// Nothing is answered any more: what is under way is lost, not failed.
    leaving: AtomicBool,
}

impl Running {
    fn tasks(&self) -> MutexGuard<'_, HashMap<u64, CancellationToken>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        for cancel in self.tasks().values() {
            cancel.cancel();
        }
    }
}

type Outgoing = mpsc::Sender<Vec<u8>>;

impl<W: AgentWorkflow, G: Grader> Server<W, G> {
    pub(super) fn new(
        workflow: W,
        grader: G,
        called_from: &'static Location<'static>,
        runtime: Handle,
    ) -> Self {
        Self {
            workflow: Arc::new(workflow),
            grader: Arc::new(grader),
            called_from,
            loaded: None,
            runtime,
            tasks: TaskTracker::new(),
            running: Arc::default(),
        }
    }

    /// Serves until told to leave, or until the engine is gone.
    pub(super) fn serve(mut self, control: Stream) -> End {
        let (mut frames, writer) = match control.split() {
            Ok(directions) => directions,
            Err(error) => give_up(&format!("no second socket: {error}"), Exit::Broken),
        };
        let (outgoing, queue) = mpsc::channel(OUTGOING_FRAMES);
        let writing = std::thread::Builder::new()
            .name("osmosis-answers".to_owned())
            .spawn(move || write_frames(writer, queue));
        if let Err(error) = writing {
            give_up(&format!("no thread can be started: {error}"), Exit::Broken);
        }
        loop {
            // Garbage from the engine is as good as no engine.
            let Ok(frame) = frames.next() else {
                return End::Disconnected;
            };
            match frame {
                ToWorker::Run(task) => self.run(task, outgoing.clone()),
                ToWorker::Grade(task) => self.grade(task, outgoing.clone()),
                ToWorker::Cancel { task } => {
                    // One that is over has answered already.
                    if let Some(cancel) = self.running.tasks().get(&task) {
                        cancel.cancel();
                        self.show_life(outgoing.clone());
                    }
                }
                ToWorker::Load(load) => answer_now(&outgoing, &self.load(load)),
                ToWorker::Fork { token } => answer_now(
                    &outgoing,
                    &FromWorker::ForkFailed {
                        token,
                        message: "a Rust worker can't be forked".to_owned(),
                    },
                ),
                ToWorker::Welcome { .. } | ToWorker::Refused { .. } => return End::Disconnected,
                ToWorker::Shutdown {} => {
                    self.leave();
                    return End::Shutdown;
                }
            }
        }
    }

    /// Lets the engine tell a task that does not stop from a runtime whose threads are all taken: only the
    /// former lets this through.
    fn show_life(&self, outgoing: Outgoing) {
        self.tasks.spawn_on(
            async move {
                send(&outgoing, &FromWorker::LoopUnblocked {}).await;
            },
            &self.runtime,
        );
    }

    fn load(&mut self, wanted: Load) -> FromWorker {
        if let Some(loaded) = &self.loaded {
            if loaded.load == wanted {
                return loaded.answer.clone();
            }
            return FromWorker::LoadFailed {
                problems: vec![Problem {
                    code: "already_loaded".to_owned(),
                    message: "this process has loaded another config already".to_owned(),
                    hint: None,
                    traceback: None,
                }],
            };
        }
        match load(wanted, &*self.workflow, &*self.grader, self.called_from) {
            Ok(loaded) => self.loaded.insert(loaded).answer.clone(),
            Err(problems) => FromWorker::LoadFailed { problems },
        }
    }

    fn run(&self, task: RunTask, outgoing: Outgoing) {
        let number = task.task;
        let rollout = task.rollout_id.clone();
        let config = self
            .loaded
            .as_ref()
            .map(|loaded| Arc::clone(&loaded.workflow_config));
        let workflow = Arc::clone(&self.workflow);
        self.start(number, rollout, outgoing, async move {
            let ctx = WorkflowContext::new(task, config.ok_or(NotLoaded)?)?;
            let returned = workflow.run(&ctx).await?;
            if let Some(reason) = returned.rejected {
                return Ok(FromWorker::Rejected {
                    task: number,
                    reason,
                });
            }
            Ok(FromWorker::RunDone {
                task: number,
                samples: ctx.finish(&returned.messages)?,
                metrics: metrics_text(&returned.metrics)?,
                interactions: Vec::new(),
            })
        });
    }

    fn grade(&self, task: GradeTask, outgoing: Outgoing) {
        let number = task.task;
        let rollout = task.rollout_id.clone();
        let config = self
            .loaded
            .as_ref()
            .map(|loaded| Arc::clone(&loaded.grader_config));
        let grader = Arc::clone(&self.grader);
        self.start(number, rollout, outgoing, async move {
            let ctx = GraderContext::new(task, config.ok_or(NotLoaded)?)?;
            grader.grade(&ctx).await?;
            let (samples, turn_rewards) = ctx.finish()?;
            Ok(FromWorker::GradeDone {
                task: number,
                samples,
                turn_rewards,
            })
        });
    }

    /// Runs user code to one answer, whatever it does.
    fn start(
        &self,
        number: u64,
        rollout: RolloutId,
        outgoing: Outgoing,
        work: impl Future<Output = Result<FromWorker, Error>> + Send + 'static,
    ) {
        let cancel = CancellationToken::new();
        self.running.tasks().insert(number, cancel.clone());
        let running = Arc::clone(&self.running);
        let task = async move {
            send(&outgoing, &FromWorker::Started { task: number }).await;
            // Dropping the work is in here too: destructors are user code as well.
            let guarded = AssertUnwindSafe(async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => None,
                    done = work => Some(done),
                }
            })
            .catch_unwind();
            let ended = CURRENT_ROLLOUT.scope(rollout.clone(), guarded).await;
            let answer = match ended {
                // Whatever it came to: the engine wants no other answer any more.
                _ if cancel.is_cancelled() => FromWorker::TaskCancelled { task: number },
                Ok(None) => FromWorker::TaskCancelled { task: number },
                Ok(Some(Ok(answer))) => answer,
                Ok(Some(Err(error))) => FromWorker::TaskFailed {
                    task: number,
                    failure: failure_of(&*error),
                },
                Err(panic) => FromWorker::TaskFailed {
                    task: number,
                    failure: panics::failure_of(&rollout, &*panic),
                },
            };
            running.tasks().remove(&number);
            if running.leaving.load(Ordering::Acquire) {
                return;
            }
            send_answer(&outgoing, number, &answer).await;
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Lets go of all tasks, so that what they hold is dropped in order, if that is quick.
    fn leave(&self) {
        self.running.leave();
        self.tasks.close();
        let tasks = self.tasks.clone();
        let (told, ended) = std::sync::mpsc::sync_channel(1);
        let waiting = self.runtime.spawn(async move {
            tasks.wait().await;
            let _ = told.send(());
        });
        let _ = ended.recv_timeout(LEAVE_LIMIT);
        waiting.abort();
    }
}

/// The engine asked for a task before it asked to load.
#[derive(Debug, thiserror::Error)]
#[error("the engine has not loaded this worker")]
struct NotLoaded;

async fn send_answer(outgoing: &Outgoing, task: u64, answer: &FromWorker) {
    match frame_bytes(answer) {
        // Nobody is there to be told when this fails; the reader notices too.
        Ok(bytes) => drop(outgoing.send(bytes).await),
        Err(error) => {
            let error = SdkError::ResultTooLarge {
                reason: error.to_string(),
            };
            let failure = failure_of(&error);
            send(outgoing, &FromWorker::TaskFailed { task, failure }).await;
        }
    }
}

async fn send(outgoing: &Outgoing, frame: &FromWorker) {
    if let Ok(bytes) = frame_bytes(frame) {
        drop(outgoing.send(bytes).await);
    }
}

fn answer_now(outgoing: &Outgoing, frame: &FromWorker) {
    if let Ok(bytes) = frame_bytes(frame) {
        drop(outgoing.blocking_send(bytes));
    }
}
