//! `--log tensorboard,mlflow,wandb`: the numbers of a run in other people's tools, while it runs.
//!
//! TensorBoard's files are written here. MLflow and Weights & Biases are fed through their own packages
//! in a small Python process: their formats are theirs to change. A tracker that fails is told and left
//! behind; the run goes on.

mod numbers;
mod process;

use std::sync::Arc;
use std::time::Duration;

use crate::RunError;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{JsonText, PolicyVersion};
use osmosis_store::{RunKind, StepRecord, Store};
use osmosis_train::tensorboard::EventFile;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::numbers::{Point, Source};
use self::process::Process;
use crate::notices::Notices;
use crate::settings::Trackers;

/// How often the numbers so far are looked at.
const INTERVAL: Duration = Duration::from_secs(5);

/// Where numbers can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackerKind {
    /// Event files in the run's folder
    Tensorboard,
    /// MLFLOW_TRACKING_URI, or a store in the workspace's `.osmosis`
    Mlflow,
    /// Offline in the run's folder, unless WANDB_MODE says otherwise
    Wandb,
}

impl TrackerKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Tensorboard => "tensorboard",
            Self::Mlflow => "mlflow",
            Self::Wandb => "wandb",
        }
    }
}

/// A run as trackers know it.
#[derive(Debug)]
pub struct TrackedRun<'a> {
    pub name: &'a str,
    pub kind: RunKind,
    pub folder: &'a Utf8Path,
    /// The workspace's `.osmosis`.
    pub shared_folder: Utf8PathBuf,
    /// The name of the rollout: runs of one are looked at together.
    pub project: &'a str,
    /// What the run is pinned to.
    pub facts: Map<String, Value>,
}

/// Trackers that were found able to work. Nothing has been written yet.
#[derive(Debug)]
pub struct Ready {
    tensorboard: bool,
    processes: Vec<Process>,
}

impl Ready {
    /// Checks every tracker that is asked for, before anything is run.
    pub async fn check(
        wanted: &Trackers,
        interpreter: Option<&Utf8Path>,
    ) -> Result<Self, RunError> {
        let mut processes = Vec::new();
        let mut kinds = wanted.kinds.clone();
        kinds.dedup();
        for kind in &kinds {
            if *kind == TrackerKind::Tensorboard {
                continue;
            }
            let python = wanted
                .python
                .as_deref()
                .or(interpreter)
                .unwrap_or_else(|| Utf8Path::new("python3"));
            processes.push(Process::start(kind.as_str(), python).await?);
        }
        Ok(Self {
            tensorboard: kinds.contains(&TrackerKind::Tensorboard),
            processes,
        })
    }

    /// Begins to track. What can't begin is told.
    pub async fn begin(
        self,
        run: &TrackedRun<'_>,
        store: &Arc<dyn Store>,
        notices: &Arc<dyn Notices>,
    ) -> Tracking {
        let mut trackers = Vec::new();
        if self.tensorboard {
            match EventFile::rewrite(run.folder, &[]) {
                Ok(file) => trackers.push(Tracker::Tensorboard(Box::new(file))),
                Err(error) => give_up("tensorboard", &error.to_string(), &**notices),
            }
        }
        for mut process in self.processes {
            match process.begin(run).await {
                Ok(place) => {
                    notices.note(format_args!("Tracked by {} at {place}", process.name));
                    trackers.push(Tracker::Process(Box::new(process)));
                }
                Err(error) => give_up(process.name, &error, &**notices),
            }
        }
        let (finish, finished) = oneshot::channel();
        let mut task = JoinSet::new();
        if !trackers.is_empty() {
            let worker = Worker {
                trackers,
                source: Source::new(run.kind, Arc::clone(store)),
                notices: Arc::clone(notices),
            };
            task.spawn(worker.run(finished));
        }
        Tracking { finish, task }
    }
}

/// Trackers at work.
#[derive(Debug)]
pub struct Tracking {
    finish: oneshot::Sender<Last>,
    task: JoinSet<()>,
}

/// The end of a run.
#[derive(Debug)]
struct Last {
    metrics: Value,
    finished: bool,
}

impl Tracking {
    /// Writes the last numbers, those of `metrics.json`, and ends.
    pub async fn finish(mut self, report: &impl Serialize, finished: bool) {
        let last = Last {
            metrics: serde_json::to_value(report).unwrap_or_default(),
            finished,
        };
        // When nothing is tracked, nobody listens.
        let _ = self.finish.send(last);
        while self.task.join_next().await.is_some() {}
    }
}

#[derive(Debug)]
enum Tracker {
    Tensorboard(Box<EventFile>),
    Process(Box<Process>),
}

impl Tracker {
    fn name(&self) -> &'static str {
        match self {
            Self::Tensorboard(_) => TrackerKind::Tensorboard.as_str(),
            Self::Process(process) => process.name,
        }
    }

    async fn log(&mut self, point: &Point) -> Result<(), String> {
        match self {
            Self::Tensorboard(file) => {
                let metrics = JsonText::of(&point.numbers).map_err(|error| error.to_string())?;
                let step = StepRecord {
                    step: point.step,
                    version: PolicyVersion(0),
                    metrics,
                    finished_at_ms: point.at_ms,
                };
                file.append(&step).map_err(|error| error.to_string())
            }
            Self::Process(process) => process.log(point).await,
        }
    }

    async fn end(self, finished: bool) -> Result<(), String> {
        match self {
            Self::Tensorboard(_) => Ok(()),
            Self::Process(mut process) => process.end(finished).await,
        }
    }
}

/// Looks at the store now and then.
struct Worker {
    trackers: Vec<Tracker>,
    source: Source,
    notices: Arc<dyn Notices>,
}

impl Worker {
    async fn run(mut self, mut finished: oneshot::Receiver<Last>) {
        let mut ticks = tokio::time::interval(INTERVAL);
        let last = loop {
            tokio::select! {
                last = &mut finished => break last.ok(),
                _ = ticks.tick() => {
                    // A store that can't be read stops the run itself.
                    let points = self.source.new_points().await.unwrap_or_default();
                    self.log(points).await;
                }
            }
        };
        let complete = last.as_ref().is_some_and(|last| last.finished);
        if let Some(last) = last {
            let points = self.source.last_points(&last.metrics).await;
            self.log(points.unwrap_or_default()).await;
        }
        for tracker in self.trackers {
            let name = tracker.name();
            if let Err(error) = tracker.end(complete).await {
                give_up(name, &error, &*self.notices);
            }
        }
    }

    async fn log(&mut self, points: Vec<Point>) {
        for point in points {
            let mut place = 0;
            while let Some(tracker) = self.trackers.get_mut(place) {
                match tracker.log(&point).await {
                    Ok(()) => place += 1,
                    Err(error) => {
                        give_up(tracker.name(), &error, &*self.notices);
                        self.trackers.remove(place);
                    }
                }
            }
        }
    }
}

fn give_up(name: &str, error: &str, notices: &dyn Notices) {
    notices.warn(format_args!(
        "`--log {name}` failed and is left out from here on: {error}"
    ));
}
