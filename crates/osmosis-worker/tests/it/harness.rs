//! A pool of scripted guests (`guest.py`), and the log of what it said.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::execution::{Isolation, LossCause, RunJob, TaskReport, TaskResult};
use osmosis_core::frame::Load;
use osmosis_core::{JsonText, RolloutId};
use osmosis_testkit::left_processes::is_alive;
use osmosis_testkit::waiting::until;
use osmosis_worker::guard::GuardProgram;
use osmosis_worker::user::WorkerIdentity;
use osmosis_worker::{
    Launch, Listen, LocalLauncher, PoolOptions, WorkerError, WorkerEvent, WorkerPool,
};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Longer than anything here takes; only a test that fails waits this long.
pub(crate) const LONG: Duration = Duration::from_mins(1);

pub(crate) struct Setup {
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) options: PoolOptions,
    pub(crate) listen: Listen,
    pub(crate) user: Option<WorkerIdentity>,
    pub(crate) python: Utf8PathBuf,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self {
            environment: Vec::new(),
            options: PoolOptions {
                agent_workers: 1,
                grader_workers: 1,
                in_flight_per_worker: 8,
                start_limit: LONG,
                cancel_grace: LONG,
                limits: osmosis_worker::Limits::default(),
                isolation: osmosis_core::config::WorkerIsolation::Shared,
            },
            listen: Listen::default(),
            user: None,
            python: "python3".into(),
        }
    }

    pub(crate) fn starting(start: &str) -> Self {
        Self::new().with("GUEST_START", start)
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn options(mut self, change: impl FnOnce(&mut PoolOptions)) -> Self {
        change(&mut self.options);
        self
    }

    pub(crate) async fn start(self) -> Result<Fixture, WorkerError> {
        let folder = TempDir::new().unwrap();
        let working_directory = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        let mut script = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/guest.py");
        if self.user.is_some() {
            // Where the checkout is may be closed to that user.
            std::fs::set_permissions(&working_directory, Permissions::from_mode(0o755)).unwrap();
            let copy = working_directory.join("guest.py");
            std::fs::write(&copy, std::fs::read(&script).unwrap()).unwrap();
            std::fs::set_permissions(&copy, Permissions::from_mode(0o644)).unwrap();
            script = copy;
        }
        let launch = Launch {
            program: self.python,
            arguments: vec![script.into_string()],
            working_directory: working_directory.clone(),
            environment: self.environment,
            guard: guard(),
            seal: None,
            needed: Vec::new(),
            user: self.user,
        };
        let load = Load {
            project_path: working_directory.to_string(),
            entrypoint: "main.py".to_owned(),
            workflow: JsonText::parse("{}").unwrap(),
            grader: JsonText::parse("{}").unwrap(),
        };
        let (events, log) = mpsc::channel(1024);
        let launcher = Arc::new(LocalLauncher::new(launch, self.options.limits)?);
        let starting = WorkerPool::start_with(launcher, self.listen, load, self.options, events);
        let pool = starting.await?;
        Ok(Fixture {
            pool,
            log,
            folder: working_directory,
            _folder: folder,
        })
    }
}

/// The guard of this crate's own.
pub(crate) fn guard() -> Option<GuardProgram> {
    GuardProgram::at(env!("CARGO_BIN_EXE_osmosis-worker-guard"))
}

pub(crate) struct Fixture {
    pub(crate) pool: WorkerPool,
    pub(crate) log: mpsc::Receiver<WorkerEvent>,
    pub(crate) folder: Utf8PathBuf,
    pub(crate) _folder: TempDir,
}

impl Fixture {
    pub(crate) async fn run(&self, prompt: &str) -> TaskReport {
        self.run_as(0, prompt, Isolation::Shared, LONG).await
    }

    pub(crate) async fn run_as(
        &self,
        row: u64,
        prompt: &str,
        isolation: Isolation,
        limit: Duration,
    ) -> TaskReport {
        let cancel = CancellationToken::new();
        self.pool
            .run(job(row, prompt), isolation, limit, &cancel)
            .await
    }

    /// The next event that `pick` picks.
    pub(crate) async fn event<T>(&mut self, pick: impl Fn(&WorkerEvent) -> Option<T>) -> T {
        let picked = async {
            loop {
                let event = self.log.recv().await.expect("the log goes on");
                if let Some(picked) = pick(&event) {
                    return picked;
                }
            }
        };
        tokio::time::timeout(LONG, picked)
            .await
            .expect("the event comes")
    }

    /// The next line that rollout `row` prints, beginning with `start`; the rest of it.
    pub(crate) async fn line_of(&mut self, row: u64, start: &str) -> String {
        self.event(|event| match event {
            WorkerEvent::Output {
                rollout_id: Some(id),
                line,
                ..
            } if *id == RolloutId::of(row, 0) => line.strip_prefix(start).map(str::to_owned),
            _ => None,
        })
        .await
    }
}

pub(crate) fn job(row: u64, prompt: &str) -> RunJob {
    RunJob {
        rollout_id: RolloutId::of(row, 0),
        prompt: JsonText::parse(prompt).unwrap(),
        label: None,
        metadata: None,
        chat_completions_url: "http://127.0.0.1:1/v1".to_owned(),
        api_key: "key".to_owned(),
        artifacts_dir: None,
        row: None,
        is_eval: false,
        clock: None,
        other_api_key: None,
    }
}

/// The messages of the one sample of a task that is done.
pub(crate) fn messages(report: &TaskReport) -> String {
    match &report.result {
        TaskResult::Done { samples, .. } => samples[0].messages.as_str().to_owned(),
        other => panic!("not done: {other:?}"),
    }
}

/// Why the worker was lost, and whether that was certainly the task's own doing.
pub(crate) fn loss(report: &TaskReport) -> (&str, bool) {
    match &report.result {
        TaskResult::WorkerLost { detail, cause } => (detail, *cause == LossCause::Own),
        other => panic!("not lost: {other:?}"),
    }
}

/// Why no worker could be had.
pub(crate) fn refusal(report: &TaskReport) -> &str {
    match &report.result {
        TaskResult::NoWorker { detail } => detail,
        other => panic!("not refused: {other:?}"),
    }
}

/// Waits until a process is gone.
pub(crate) async fn gone(pid: u32) {
    until("the process ends", LONG, || !is_alive(pid)).await;
}
