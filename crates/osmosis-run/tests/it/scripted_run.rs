//! A run whose work is what a test says, with parts that note when they go down.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::LogLimits;
use osmosis_core::{JsonText, Redactor, RolloutId, RunName};
use osmosis_engine::{RunEvent, Stop};
use osmosis_run::events::Observer;
use osmosis_run::life::{
    FrontEnd, Lived, OpenRun, Part, RunIdentity, Stage, Surroundings, Work, live,
};
use osmosis_run::notices::NoNotices;
use osmosis_run::run_folder::RunFolder;
use osmosis_run::run_log::RunLog;
use osmosis_run::runs::Pinned;
use osmosis_run::settings::Trackers;
use osmosis_run::stop_signals::StopSignals;
use osmosis_run::tracking::TrackerKind;
use osmosis_run::workspace::Workspace;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{NewRollout, NewRow, RunKind, RunStatus, Store as _};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// What happened, in order.
pub(crate) type Journal = Arc<Mutex<Vec<&'static str>>>;

/// Where a run goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fails {
    Nowhere,
    /// After its workers have started.
    Preparing,
    /// When it is tried out.
    Preflight,
    /// After it is open.
    Filling,
    /// After everything has started.
    Driving,
    /// After it is driven.
    Reporting,
}

/// Answers like `tracker.py`, and writes down what it is told.
const TRACKER: &str =
    "#!/bin/sh\necho '{}'\nwhile read -r line; do\n  echo \"$line\" >> TOLD\n  echo '{}'\ndone\n";

#[derive(Debug)]
pub(crate) struct ScriptedRun {
    _folder: tempfile::TempDir,
    workspace: Workspace,
    name: RunName,
    run_folder: RunFolder,
    pub(crate) fails: Fails,
    /// Never says that it is prepared.
    pub(crate) prepares_for_ever: bool,
    /// Its work ends when it is asked to stop, which its observer does at the first event.
    pub(crate) is_stopped: bool,
    /// An existing run of its name is archived.
    pub(crate) fresh: bool,
    pub(crate) journal: Journal,
}

impl ScriptedRun {
    pub(crate) fn new(fails: Fails) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let workspace = Workspace::at(root);
        let name = RunName::new("t").unwrap();
        let tracker = workspace.root.join("tracker.sh");
        let told = workspace.root.join("told.jsonl");
        std::fs::write(&tracker, TRACKER.replace("TOLD", told.as_str())).unwrap();
        let executable = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&tracker, executable).unwrap();
        Self {
            run_folder: RunFolder::of(&workspace, RunKind::Evaluation, &name),
            _folder: folder,
            workspace,
            name,
            fails,
            prepares_for_ever: false,
            is_stopped: false,
            fresh: false,
            journal: Journal::default(),
        }
    }

    /// Lives the run from its beginning to its end.
    pub(crate) async fn live(&self, stop: &Stop) -> Result<Lived<Self>, RunError> {
        let front = FrontEnd {
            stop: &StopSignals::of(stop.clone()),
            notices: Arc::new(NoNotices),
            observer: Box::new(Watching {
                journal: Arc::clone(&self.journal),
                stop: self.is_stopped.then(|| stop.clone()),
            }),
            resume: Some("again t".to_owned()),
            fresh: self.fresh,
        };
        live(self, front).await
    }

    /// How it ended: what happened, without its beginning. Its only event comes before the observer's end.
    pub(crate) fn end(&self) -> Vec<&'static str> {
        let mut all = self.journal.lock().clone();
        let place = |what| all.iter().position(|noted| *noted == what);
        assert!(place("event") <= place("observed"), "{all:?}");
        all.retain(|what| !matches!(*what, "prepares" | "preflight" | "event"));
        all
    }

    fn note(&self, what: &'static str) {
        self.journal.lock().push(what);
    }

    fn failing(&self, here: Fails) -> Result<(), RunError> {
        if self.fails == here {
            return Err(RunError::failed(RunErrorKind::Engine, "as scripted"));
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Utf8Path {
        &self.run_folder.path
    }

    /// The status in the store, which nobody holds any more.
    pub(crate) async fn status_left(&self) -> RunStatus {
        assert_eq!(
            SqliteStore::holder(self.path()),
            None,
            "the store is closed"
        );
        let store = SqliteStore::open(self.path(), SqliteOptions::default()).unwrap();
        let status = store.run().await.unwrap().unwrap().status;
        store.close().await.unwrap();
        status
    }

    /// What the tracker was told last: whether the run finished.
    pub(crate) fn tracker_was_told(&self) -> Option<bool> {
        let told = std::fs::read_to_string(self.workspace.root.join("told.jsonl")).ok()?;
        let last: Value = serde_json::from_str(told.lines().last()?).unwrap();
        last["finished"].as_bool()
    }

    pub(crate) fn metrics(&self) -> Option<Value> {
        let text = std::fs::read_to_string(self.run_folder.metrics()).ok()?;
        Some(serde_json::from_str(&text).unwrap())
    }

    /// Runs that were put away.
    pub(crate) fn archived(&self) -> usize {
        let folder = self.workspace.root.join(".osmosis/archive");
        folder.read_dir_utf8().map_or(0, Iterator::count)
    }

    pub(crate) fn has_index(&self) -> bool {
        self.run_folder.index().exists()
    }
}

/// Notes when it goes down.
struct NotedPart(Journal, &'static str);

#[async_trait]
impl Part for NotedPart {
    async fn shut_down(&self) {
        self.0.lock().push(self.1);
    }
}

struct Watching {
    journal: Journal,
    stop: Option<Stop>,
}

impl Observer<RunEvent> for Watching {
    fn event(&mut self, _event: &RunEvent) {
        self.journal.lock().push("event");
        if let Some(stop) = &self.stop {
            stop.drain.cancel();
        }
    }

    fn log(&self, event: &RunEvent, log: &mut RunLog) {
        log.run_event(event);
    }

    fn tick(&mut self) {}

    fn finish(&mut self) {
        self.journal.lock().push("observed");
    }
}

#[async_trait]
impl Work for ScriptedRun {
    type Event = RunEvent;
    type Ready = ();
    type End = RunStatus;
    type Report = Value;

    fn identity(&self) -> RunIdentity<'_> {
        RunIdentity {
            kind: RunKind::Evaluation,
            name: &self.name,
            folder: &self.run_folder,
            workspace: &self.workspace,
            project: "p",
            config_text: "",
            log_limits: LogLimits::default(),
            run_again: vec![],
            dataset: None,
        }
    }

    fn redactor(&self) -> Redactor {
        Redactor::default()
    }

    fn trackers(&self) -> Trackers {
        Trackers {
            kinds: vec![TrackerKind::Wandb],
            python: Some(self.workspace.root.join("tracker.sh")),
        }
    }

    async fn prepare(&self, around: &Surroundings<'_, RunEvent>) -> Result<(), RunError> {
        self.note("prepares");
        let workers = NotedPart(Arc::clone(&self.journal), "workers");
        around.parts.add(Stage::Execution, workers);
        if self.prepares_for_ever {
            std::future::pending::<()>().await;
        }
        self.failing(Fails::Preparing)
    }

    async fn preflight(
        &self,
        _ready: &mut (),
        _around: &Surroundings<'_, RunEvent>,
    ) -> Result<(), RunError> {
        self.note("preflight");
        self.failing(Fails::Preflight)
    }

    async fn ended_before(&self, run: &OpenRun) -> Result<Option<RunStatus>, RunError> {
        Ok(run.was_finished.then_some(RunStatus::Finished))
    }

    fn pin(&self, _ready: &()) -> Result<Pinned, RunError> {
        Pinned::of_config(&json!({}))
    }

    async fn opened(
        &self,
        _ready: &(),
        run: &OpenRun,
        _around: &Surroundings<'_, RunEvent>,
    ) -> Result<(), RunError> {
        let row = NewRow {
            row_index: 0,
            line: 1,
            body: JsonText::parse("{}").unwrap(),
        };
        let rollout = NewRollout {
            id: RolloutId::of(0, 0),
            row_index: 0,
            run_index: 0,
        };
        run.store.enqueue(vec![row], vec![rollout]).await?;
        self.failing(Fails::Filling)
    }

    async fn drive(
        &self,
        (): (),
        _run: &OpenRun,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<RunStatus, RunError> {
        // Not in the order in which they go down.
        let sampler = NotedPart(Arc::clone(&self.journal), "sampler");
        around.parts.add(Stage::Policy, sampler);
        let gateway = NotedPart(Arc::clone(&self.journal), "gateway");
        around.parts.add(Stage::Gateway, gateway);
        let event = RunEvent::Began { total: 1, done: 0 };
        around.events.run_events().send(event).await.unwrap();
        self.failing(Fails::Driving)?;
        if !self.is_stopped {
            return Ok(RunStatus::Finished);
        }
        around.stop.stop.drain.cancelled().await;
        Ok(RunStatus::Interrupted)
    }

    fn status(&self, end: &RunStatus) -> RunStatus {
        self.note("status");
        *end
    }

    async fn report(&self, _run: &OpenRun) -> Result<Value, RunError> {
        self.failing(Fails::Reporting)?;
        Ok(json!({ "pass_rate": 0.5 }))
    }
}
