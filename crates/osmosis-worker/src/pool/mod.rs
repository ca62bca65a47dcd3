//! The worker processes of one run.
//!
//! One task attends each process (`keeper`), one supervises each dispatched job (`supervision`);
//! `roster` decides who runs what. All of them are tracked, and end when the pool does.

mod artifacts;
mod attached;
mod connected_process;
mod connection;
mod intrusion;
mod keeper;
mod lifeline;
mod listener;
mod output;
mod peer;
mod process;
mod roster;
mod rosters;
mod socket_folder;
mod supervision;
mod template;
mod worker;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use osmosis_core::config::WorkerIsolation;
use osmosis_core::execution::{GradeJob, Isolation, RunJob, TaskReport, TaskResult};
use osmosis_core::frame::{GradeTask, Load, Manifest, RunTask, ToWorker};
use osmosis_core::{ErrorCategory, Failure, TaskClock};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::artifacts::{ArtifactsExchange, Content};
use self::attached::Attached;
use self::connected_process::StartDeadline;
use self::listener::Listener;
use self::output::OutputSink;
use self::process::ProcessTable;
use self::roster::Limits;
use self::rosters::Rosters;
use self::supervision::Assignment;
use self::template::{FORK_FEATURE, Template};
use self::worker::Worker;
use crate::{
    Launch, Launcher, Listen, LocalLauncher, PoolOptions, Role, WorkerError, WorkerEvent, guard,
};

pub use self::attached::Attachment;
pub use self::intrusion::Intrusion;
#[cfg(target_os = "linux")]
pub(crate) use self::socket_folder::remove_abandoned_folder;
pub(crate) use self::socket_folder::{HOME, TEMPORARY};

/// How long the last output and the last tasks may take once all processes have ended.
const WINDING_UP: Duration = Duration::from_secs(2);

/// How long guards may take to end what workers left behind. They go on without us.
const CLEANING_UP: Duration = Duration::from_secs(10);

/// The worker processes of one run. Dropping it kills them; `shut_down` asks first.
pub struct WorkerPool {
    inner: Owner,
    manifest: Manifest,
}

/// The tasks of the pool share the inside; this one handle ends them all.
struct Owner(Arc<Inner>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.end_now();
    }
}

impl std::ops::Deref for Owner {
    type Target = Arc<Inner>;

    fn deref(&self) -> &Arc<Inner> {
        &self.0
    }
}

struct Inner {
    launcher: Arc<dyn Launcher>,
    /// Set when the one worker is a process from outside.
    attached: Option<Attached>,
    load: Load,
    options: PoolOptions,
    events: mpsc::Sender<WorkerEvent>,
    listener: Arc<Listener>,
    /// Set when workers have a user of their own, who can't enter the folders of the run.
    exchange: Option<ArtifactsExchange>,
    processes: Arc<ProcessTable>,
    rosters: Mutex<Rosters>,
    /// All that have not ended, those that run one task alone included.
    workers: Mutex<HashMap<u64, Arc<Worker>>>,
    source: Mutex<Source>,
    /// Told when a task wants to run solo.
    solo_arrived: Notify,
    /// Held by whoever starts a template, so that only one is.
    template_start: Semaphore,
    next_worker: AtomicU64,
    next_task: AtomicU64,
    /// Processes in a row that ended before they were of any use.
    early_deaths: AtomicU32,
    /// Nothing new is started.
    stop: CancellationToken,
    /// Everything ends now.
    abandon: CancellationToken,
    tasks: TaskTracker,
    readers: TaskTracker,
}

/// Where workers come from.
#[derive(Debug)]
enum Source {
    Fork {
        template: Arc<Template>,
        /// Forks in a row that came to nothing.
        failures: u32,
    },
    Spawn,
}

impl WorkerPool {
    /// Starts a process, loads the entrypoint and reports what was found. Workers beyond the first
    /// are forked from it when that is sound, spawned otherwise.
    pub async fn start(
        launch: Launch,
        load: Load,
        options: PoolOptions,
        events: mpsc::Sender<WorkerEvent>,
    ) -> Result<Self, WorkerError> {
        let launcher = LocalLauncher::new(launch, options.limits)?;
        Self::start_with(Arc::new(launcher), Listen::default(), load, options, events).await
    }

    /// Like `start`, with a choice of who starts workers and where they dial in.
    pub async fn start_with(
        launcher: Arc<dyn Launcher>,
        listen: Listen,
        load: Load,
        options: PoolOptions,
        events: mpsc::Sender<WorkerEvent>,
    ) -> Result<Self, WorkerError> {
        let inner = Inner::open(listen, launcher, load, options, events).await?;
        let manifest = inner.open_for_business().await.map_err(|error| {
            // Then we ended the process ourselves.
            inner
                .listener
                .intrusion()
                .map_or(error, WorkerError::Intrusion)
        })?;
        Ok(Self { inner, manifest })
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Runs the workflow. Waits for a free slot; the deadline starts when user code does. Dropping
    /// the future cancels the task.
    pub async fn run(
        &self,
        job: RunJob,
        isolation: Isolation,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> TaskReport {
        let rollout_id = job.rollout_id.clone();
        let assignment = Assignment {
            role: Role::Agent,
            rollout_id: rollout_id.clone(),
            isolation,
            limit,
            clock: clock_of(job.clock.clone(), limit),
        };
        let own_artifacts = job.artifacts_dir.clone();
        let lent = self.inner.lend(job.artifacts_dir, Content::Nothing).await;
        let artifacts_dir = match lent {
            Ok(lent) => self.inner.worker_path(lent.as_deref()),
            Err(report) => return report,
        };
        let frame = move |task| {
            ToWorker::Run(RunTask {
                task,
                rollout_id: job.rollout_id,
                prompt: job.prompt,
                metadata: job.metadata,
                chat_completions_url: job.chat_completions_url,
                api_key: job.api_key,
                artifacts_dir,
                row: job.row,
                is_eval: job.is_eval,
                other_api_key: job.other_api_key,
            })
        };
        let task = self.inner.next_task_id();
        let report = self.inner.execute(task, assignment, frame, cancel).await;
        let report = self.inner.take_back(own_artifacts, report).await;
        if let (Some(attached), TaskResult::Done { .. }) = (&self.inner.attached, &report.result) {
            attached.ran(rollout_id, task);
        }
        report
    }

    /// Runs the grader, in a worker that runs no agents. Dropping the future cancels the task.
    pub async fn grade(
        &self,
        job: GradeJob,
        isolation: Isolation,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> TaskReport {
        let rollout_id = job.rollout_id.clone();
        let report = self.try_grade(job, isolation, limit, cancel).await;
        if let Some(attached) = &self.inner.attached
            && let Some(run) = attached.grades(&rollout_id)
            && !matches!(report.result, TaskResult::Done { .. })
        {
            let limit = self.inner.options.cancel_grace;
            attached.drop_run(run, limit).await;
        }
        report
    }

    async fn try_grade(
        &self,
        job: GradeJob,
        isolation: Isolation,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> TaskReport {
        if self.manifest.grader.is_none() {
            return TaskReport::undispatched(TaskResult::Failed {
                failure: Failure::new(
                    ErrorCategory::ValidationError,
                    "no_grader",
                    "the entrypoint has no grader",
                ),
            });
        }
        let assignment = Assignment {
            role: Role::Grader,
            rollout_id: job.rollout_id.clone(),
            isolation,
            limit,
            clock: clock_of(job.clock.clone(), limit),
        };
        let project_path = self.inner.load.project_path.clone();
        let own_artifacts = job.artifacts_dir.clone();
        let lent = self.inner.lend(job.artifacts_dir, Content::OfRollout).await;
        let artifacts_dir = match lent {
            Ok(lent) => self.inner.worker_path(lent.as_deref()),
            Err(report) => return report,
        };
        let frame = move |task| {
            ToWorker::Grade(GradeTask {
                task,
                rollout_id: job.rollout_id,
                label: job.label,
                samples: job.samples,
                metadata: job.metadata,
                artifacts_dir,
                project_path,
                judge: job.judge,
                turns: job.turns,
            })
        };
        let task = self.inner.next_task_id();
        let report = self.inner.execute(task, assignment, frame, cancel).await;
        self.inner.take_back(own_artifacts, report).await
    }

    /// Returns when no task is taken any more, and says why: workers can't be kept alive, the attached
    /// process has gone, or the pool was shut down.
    pub async fn closed(&self) -> String {
        self.inner.stop.cancelled().await;
        let closed = self.inner.rosters.lock().closed.clone();
        closed.unwrap_or_else(|| "the worker pool has ended".to_owned())
    }

    /// Tells all workers to leave, kills those that have not after `grace`. Tasks that are waiting
    /// or running are lost.
    pub async fn shut_down(&self, grace: Duration) {
        self.inner.shut_down(grace).await;
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPool")
            .field("launcher", &self.inner.launcher)
            .field("options", &self.inner.options)
            .field("manifest", &self.manifest)
            .finish_non_exhaustive()
    }
}

impl Inner {
    async fn open(
        listen: Listen,
        launcher: Arc<dyn Launcher>,
        mut load: Load,
        options: PoolOptions,
        events: mpsc::Sender<WorkerEvent>,
    ) -> Result<Owner, WorkerError> {
        let socket_error = |error: std::io::Error| WorkerError::Socket {
            message: format!("the worker socket could not be opened: {error}"),
        };
        end_leftovers().await;
        load.project_path = launcher
            .worker_path(Utf8Path::new(&load.project_path))
            .into_string();
        let tasks = TaskTracker::new();
        let abandon = CancellationToken::new();
        let user = launcher.user();
        let listener = Listener::open(listen, user, &tasks, abandon.clone())
            .await
            .map_err(socket_error)?;
        let exchange = user.and_then(|user| ArtifactsExchange::new(listener.endpoint(), user));
        let limits = || Limits {
            in_flight_per_worker: options.in_flight_per_worker.max(1),
            own_workers: options.own_workers(),
            max_concurrent: None,
        };
        // Whatever is started from here on ends when this is dropped.
        let inner = Owner(Arc::new(Inner {
            rosters: Mutex::new(Rosters::new(limits)),
            attached: (!launcher.replaces()).then(Attached::default),
            launcher,
            load,
            options,
            events,
            listener,
            exchange,
            processes: Arc::default(),
            workers: Mutex::default(),
            source: Mutex::new(Source::Spawn),
            solo_arrived: Notify::new(),
            template_start: Semaphore::new(1),
            next_worker: AtomicU64::new(1),
            next_task: AtomicU64::new(1),
            early_deaths: AtomicU32::new(0),
            stop: CancellationToken::new(),
            abandon,
            tasks,
            readers: TaskTracker::new(),
        }));
        inner.watch_for_intruders();
        Ok(inner)
    }

    async fn open_for_business(self: &Arc<Self>) -> Result<Manifest, WorkerError> {
        let deadline = StartDeadline::after(self.options.start_limit);
        let (first, manifest) = match self.loaded_guest(deadline).await {
            // Somebody may have sent the signal, or memory was short for a moment: that says nothing of the code.
            Err(WorkerError::DiedAtStart {
                detail,
                killed: true,
                ..
            }) if self.listener.intrusion().is_none() => {
                tracing::warn!(detail, "the first worker process is started again");
                self.loaded_guest(deadline).await?
            }
            other => other?,
        };

        let can_fork = first.features.iter().any(|feature| feature == FORK_FEATURE);
        let mut first_worker = None;
        if can_fork && manifest.not_forkable.is_none() {
            *self.source.lock() = Source::Fork {
                template: Template::install(self, first),
                failures: 0,
            };
        } else {
            first_worker = Some(first);
        }

        let graders = if manifest.grader.is_some() {
            self.options.grader_workers.max(1)
        } else {
            0
        };
        self.limit_concurrency(&manifest);
        if self.options.isolation == WorkerIsolation::Process {
            // Every task has a process of its own, which is started for it.
            return Ok(manifest);
        }
        for _ in 0..self.options.agent_workers.max(1) {
            self.employ(Role::Agent, first_worker.take());
        }
        for _ in 0..graders {
            self.employ(Role::Grader, None);
        }
        Ok(manifest)
    }

    async fn shut_down(&self, grace: Duration) {
        let began = Instant::now();
        self.close("the worker pool was shut down");
        self.stop.cancel();
        let workers: Vec<Arc<Worker>> = self.workers.lock().values().cloned().collect();
        futures_util::future::join_all(workers.iter().map(|worker| worker.retire(grace))).await;
        // Last, because it is the one that can tell how the others ended.
        let template = match &*self.source.lock() {
            Source::Fork { template, .. } => Some(Arc::clone(template)),
            Source::Spawn => None,
        };
        if let Some(template) = template {
            let left = grace.saturating_sub(began.elapsed());
            template.retire(left.max(Duration::from_millis(200))).await;
        }
        self.processes.kill_all();
        // Before the output ends: what was left behind may hold it open.
        drop(tokio::time::timeout(CLEANING_UP, self.launcher.all_gone()).await);
        self.readers.close();
        drop(tokio::time::timeout(WINDING_UP, self.readers.wait()).await);
        self.abandon.cancel();
        self.tasks.close();
        if tokio::time::timeout(WINDING_UP, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("some tasks of the worker pool did not end");
        }
        self.listener.remove_folder();
    }

    fn end_now(&self) {
        self.close("the worker pool was dropped");
        self.stop.cancel();
        self.abandon.cancel();
        self.processes.kill_all();
        self.listener.remove_folder();
    }

    /// Takes no more tasks, and sends home those that wait.
    fn close(&self, detail: &str) {
        let waiting = {
            let mut rosters = self.rosters.lock();
            if rosters.closed.is_some() {
                return;
            }
            rosters.closed = Some(detail.to_owned());
            rosters.clear()
        };
        for waiter in waiting {
            waiter.send_home(detail.to_owned());
        }
    }

    /// Tells an event without ever waiting for whoever takes it.
    fn announce(&self, event: WorkerEvent) {
        if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event) {
            // A worker can say this as often as it likes, so it must not pile up.
            if let WorkerEvent::LoopBlocked { .. } = event {
                return;
            }
            let events = self.events.clone();
            self.tasks.spawn(self.unless_abandoned(async move {
                drop(events.send(event).await);
            }));
        }
    }

    fn unless_abandoned(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let abandon = self.abandon.clone();
        async move {
            abandon.run_until_cancelled(work).await;
        }
    }

    /// A path of the engine's, as the workers see it.
    fn worker_path(&self, path: Option<&Utf8Path>) -> Option<String> {
        path.map(|path| self.launcher.worker_path(path).into_string())
    }

    fn next_task_id(&self) -> u64 {
        self.next_task.fetch_add(1, Ordering::Relaxed)
    }

    fn next_worker_id(&self) -> u64 {
        self.next_worker.fetch_add(1, Ordering::Relaxed)
    }

    fn output_sink(&self, worker: u64) -> Arc<OutputSink> {
        OutputSink::new(
            worker,
            self.events.clone(),
            self.abandon.clone(),
            self.readers.clone(),
        )
    }
}

/// Ends the processes and removes the folders of engines that are gone. A pool does it when it starts; a run that
/// has nothing left to do starts none.
pub async fn end_leftovers() {
    let ended = tokio::task::spawn_blocking(|| {
        (
            guard::end_abandoned(),
            socket_folder::remove_abandoned_folders(),
        )
    });
    if let Ok((processes @ 1.., folders) | (processes, folders @ 1..)) = ended.await {
        tracing::info!(processes, folders, "ended what a killed engine left behind");
    }
}

fn clock_of(clock: Option<Arc<TaskClock>>, limit: Duration) -> Arc<TaskClock> {
    clock.unwrap_or_else(|| Arc::new(TaskClock::new(limit)))
}
