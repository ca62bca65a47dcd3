//! The life of a run, the same for every kind: prepare, pin, preflight, open, drive, settle, report, close.
//!
//! Nothing of a new run is written before its preflight has passed: no folder, no record. One that is gone on
//! with is opened first, because only it can say whether anything is left to do.
//!
//! What is different between kinds is a [`Work`]. What is the same is here, above all the end. A run may end
//! because its work is done, by an error, by a signal or by a budget: it always passes [`live`]'s last part,
//! in this order. Workers, gateways and samplers go down; the observer gets the last events; the status is
//! set; the run's files are written; trackers get the last numbers; the store is closed.

mod parts;
mod settling;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use camino::Utf8Path;
use osmosis_core::config::LogLimits;
use osmosis_core::{OutcomeKind, Redactor, RunName};
use osmosis_store::{RunKind, RunStatus, Store};
use serde::Serialize;
use serde_json::Value;

pub use parts::{Part, RunningParts, SHUTDOWN_GRACE, Stage};

use self::settling::{Unsettled, leave_files, look_again, settle};

use crate::checked_dataset::CheckedDataset;
use crate::events::{EventSink, Observer};
use crate::notices::{Notice, Notices};
use crate::run_folder::RunFolder;
use crate::run_log::RunLog;
use crate::runs::{Opened, Pinned, RunToOpen};
use crate::settings::Trackers;
use crate::stop_signals::StopSignals;
use crate::tracking::{self, TrackedRun, Tracking};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// How long the files of a run that failed may take to be written: its error is what matters.
const LAST_FILES: Duration = Duration::from_mins(1);

/// Which run it is.
#[derive(Debug)]
pub struct RunIdentity<'a> {
    pub kind: RunKind,
    pub name: &'a RunName,
    pub folder: &'a RunFolder,
    pub workspace: &'a Workspace,
    /// The name of the project whose code it runs.
    pub project: &'a str,
    pub config_text: &'a str,
    pub log_limits: LogLimits,
    /// Kinds of result that a resume puts back into the queue.
    pub run_again: Vec<OutcomeKind>,
    /// What its rows come from, when they can be read again.
    pub dataset: Option<&'a CheckedDataset>,
}

/// What whoever starts a run brings along.
pub struct FrontEnd<'a, E> {
    pub stop: &'a StopSignals,
    pub notices: Arc<dyn Notices>,
    /// Gets the events of the run once it is open.
    pub observer: Box<dyn Observer<E>>,
    /// How a person goes on with the run after it has failed.
    pub resume: Option<String>,
    /// A run of that name is archived, once the new one can begin.
    pub fresh: bool,
}

impl<E> std::fmt::Debug for FrontEnd<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrontEnd")
            .field("stop", self.stop)
            .field("resume", &self.resume)
            .finish_non_exhaustive()
    }
}

/// What a run has at hand from its first moment.
#[derive(Debug)]
pub struct Surroundings<'a, E> {
    pub stop: &'a StopSignals,
    pub notices: &'a Arc<dyn Notices>,
    pub events: &'a EventSink<E>,
    /// Everything that is started is registered here.
    pub parts: &'a RunningParts,
    /// A run of that name is there, and is gone on with.
    pub resumes: bool,
}

/// A run that this process holds.
#[derive(Debug)]
pub struct OpenRun {
    pub store: Arc<dyn Store>,
    /// Another process began it.
    pub resumed: bool,
    /// It was finished before, and nothing of it is run again.
    pub was_finished: bool,
    /// As the run has it.
    pub pinned: Pinned,
    /// When this process opened it.
    pub began: Instant,
}

/// What one kind of run does in each phase. What it starts it registers with [`Surroundings::parts`], and
/// never brings down itself.
#[async_trait]
pub trait Work: Send + Sync {
    /// What is observed while it is driven.
    type Event: Send + 'static;
    /// What was prepared: an environment, a connection to a server.
    type Ready: Send + Sync;
    /// How driving it ended.
    type End: Send + Sync;
    /// Its numbers, which are `metrics.json`; `()` for a kind that has none.
    type Report: Serialize + Send + Sync;

    fn identity(&self) -> RunIdentity<'_>;

    /// Texts that must never be written down.
    fn redactor(&self) -> Redactor;

    /// Where else its numbers are kept.
    fn trackers(&self) -> Trackers {
        Trackers::default()
    }

    /// The Python of the project, which trackers may use.
    fn interpreter<'r>(&self, _ready: &'r Self::Ready) -> Option<&'r Utf8Path> {
        None
    }

    /// Makes what the run is pinned to and worked with. A signal ends it at once.
    async fn prepare(
        &self,
        around: &Surroundings<'_, Self::Event>,
    ) -> Result<Self::Ready, RunError>;

    /// What a resume must find as it is now.
    fn pin(&self, ready: &Self::Ready) -> Result<Pinned, RunError>;

    /// Tries out what rollouts need, and keeps what it starts: user code is imported, servers are asked. A
    /// signal ends it at once. A run with nothing left to do is spared it.
    async fn preflight(
        &self,
        ready: &mut Self::Ready,
        around: &Surroundings<'_, Self::Event>,
    ) -> Result<(), RunError>;

    /// How the run ended, when an earlier process left nothing to do.
    async fn ended_before(&self, _run: &OpenRun) -> Result<Option<Self::End>, RunError> {
        Ok(None)
    }

    /// The run is this process's now: fills its queue, and checks what depends on what is in it.
    async fn opened(
        &self,
        ready: &Self::Ready,
        run: &OpenRun,
        around: &Surroundings<'_, Self::Event>,
    ) -> Result<(), RunError>;

    /// Does the work.
    async fn drive(
        &self,
        ready: Self::Ready,
        run: &OpenRun,
        around: &Surroundings<'_, Self::Event>,
    ) -> Result<Self::End, RunError>;

    /// What the run is marked as.
    fn status(&self, end: &Self::End) -> RunStatus;

    /// Leaves in the store that an error ended the run, before its numbers so far are read from it.
    async fn record_failure(&self, _run: &OpenRun, _error: &RunError) -> Result<(), RunError> {
        Ok(())
    }

    /// The numbers of the run so far.
    async fn report(&self, run: &OpenRun) -> Result<Self::Report, RunError>;

    /// Files of this kind alone, beside `index.jsonl` and `metrics.json`, and what they add to the numbers.
    async fn write_files(
        &self,
        _run: &OpenRun,
        report: Self::Report,
    ) -> Result<Self::Report, RunError> {
        Ok(report)
    }
}

/// A run that has come to its end, which is not always its aim.
pub struct Lived<W: Work> {
    pub end: W::End,
    pub report: W::Report,
    /// It was complete before: nothing was run, and none of its files was written.
    pub already_complete: bool,
}

impl<W: Work<End: Debug, Report: Debug>> Debug for Lived<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lived")
            .field("end", &self.end)
            .field("report", &self.report)
            .field("already_complete", &self.already_complete)
            .finish()
    }
}

/// Has a run done from its beginning, or from where it stands, to its end.
pub async fn live<W: Work>(work: &W, front: FrontEnd<'_, W::Event>) -> Result<Lived<W>, RunError> {
    let FrontEnd {
        stop,
        notices,
        observer,
        resume,
        fresh,
    } = front;
    let resumes = !fresh && work.identity().folder.holds_run().await?;
    let parts = RunningParts::default();
    let mut events = EventSink::start();
    let around = Surroundings {
        stop,
        notices: &notices,
        events: &events,
        parts: &parts,
        resumes,
    };
    osmosis_worker::end_leftovers().await;
    let begun = begin(work, fresh, &around).await;
    let (mut ready, trackers, mut run) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            notices.notice(Notice::StepsDone);
            parts.shut_down().await?;
            return Err(error);
        }
    };
    let opening = open(work, &mut ready, trackers, &run, observer, &around).await;
    notices.notice(Notice::StepsDone);
    let (driven, tracking) = match opening {
        Ok(Opening::Ready(tracking)) => {
            run.was_finished = false;
            let stopping = || {
                stop.stop.drain.cancel();
                stop.stop.now.cancel();
            };
            let driving = work.drive(ready, &run, &around);
            let driven = parts.unless_intruded(driving, stopping).await;
            let hinted = driven.map_err(|error| with_resume_hint(error, resume.as_deref()));
            (hinted, Some(tracking))
        }
        Ok(Opening::NothingLeft(end)) => {
            drop(ready);
            (Ok(end), None)
        }
        Err(error) => {
            drop(ready);
            (Err(error), None)
        }
    };
    // The same for every way out from here on.
    // Whatever else went wrong: results may be of other code.
    let driven = parts.shut_down().await.and(driven);
    events.finish().await;
    let settled = match driven {
        Ok(end) if run.was_finished => look_again(work, &run, end).await,
        Ok(end) => settle(work, &run, end).await,
        Err(error) => {
            let leaving = leave_files(work, &run, &error);
            let metrics = tokio::time::timeout(LAST_FILES, leaving).await;
            Err(Unsettled {
                error,
                metrics: metrics.ok().flatten(),
            })
        }
    };
    if let Some(tracking) = tracking {
        let (metrics, complete) = match &settled {
            Ok(settled) => (&settled.metrics, settled.complete),
            Err(unsettled) => (&unsettled.metrics, false),
        };
        let metrics = metrics.as_ref().unwrap_or(&Value::Null);
        tracking.finish(metrics, complete).await;
    }
    let closed = run.store.close().await;
    match settled {
        Ok(settled) => {
            closed?;
            Ok(settled.lived)
        }
        // Closing makes what was recorded whole; the first error is the one that matters.
        Err(unsettled) => Err(unsettled.error),
    }
}

/// Does something that starts parts of a run without there being one, and brings them down whatever comes
/// of it.
pub async fn rehearse<E: Send + 'static, T>(
    stop: &StopSignals,
    notices: &Arc<dyn Notices>,
    part: impl AsyncFnOnce(&Surroundings<'_, E>) -> Result<T, RunError>,
) -> Result<T, RunError> {
    let parts = RunningParts::default();
    let events = EventSink::start();
    let around = Surroundings {
        stop,
        notices,
        events: &events,
        parts: &parts,
        resumes: false,
    };
    let done = stop.unless_stopped(part(&around)).await;
    notices.notice(Notice::StepsDone);
    parts.shut_down().await?;
    done
}

/// Everything up to the moment when this process holds the run.
async fn begin<W: Work>(
    work: &W,
    fresh: bool,
    around: &Surroundings<'_, W::Event>,
) -> Result<(W::Ready, tracking::Ready, OpenRun), RunError> {
    let preparing = async {
        let mut ready = work.prepare(around).await?;
        let wanted = work.trackers();
        let trackers = tracking::Ready::check(&wanted, work.interpreter(&ready)).await?;
        if !around.resumes {
            work.preflight(&mut ready, around).await?;
        }
        Ok((ready, trackers))
    };
    let (ready, trackers) = around.stop.unless_stopped(preparing).await?;
    let pinned = work.pin(&ready)?;
    let identity = work.identity();
    if fresh && let Some(archived) = identity.folder.archive().await? {
        let (name, path) = (identity.name, archived.path);
        let text = format!("The earlier run `{name}` is now at {path}");
        around.notices.note(text);
    }
    let Opened {
        store,
        resumed,
        was_finished,
        pinned,
    } = RunToOpen {
        folder: identity.folder,
        name: identity.name,
        kind: identity.kind,
        config_text: identity.config_text,
        pinned: &pinned,
        run_again: &identity.run_again,
        dataset: identity.dataset,
    }
    .open()
    .await?;
    let run = OpenRun {
        store,
        resumed,
        was_finished,
        pinned,
        began: Instant::now(),
    };
    Ok((ready, trackers, run))
}

/// What is to be done with a run that is held.
enum Opening<E> {
    Ready(Tracking),
    NothingLeft(E),
}

/// The run is held; everything is made ready for its work.
async fn open<W: Work>(
    work: &W,
    ready: &mut W::Ready,
    trackers: tracking::Ready,
    run: &OpenRun,
    mut observer: Box<dyn Observer<W::Event>>,
    around: &Surroundings<'_, W::Event>,
) -> Result<Opening<W::End>, RunError> {
    let identity = work.identity();
    if run.resumed {
        if let Some(end) = work.ended_before(run).await? {
            return Ok(Opening::NothingLeft(end));
        }
        run.store.set_status(RunStatus::Running).await?;
        let trying = work.preflight(ready, around);
        around.stop.unless_stopped(trying).await?;
    }
    work.opened(ready, run, around).await?;
    observer.opened(&run.store).await?;
    let log = RunLog::open(
        &identity.folder.logs(),
        work.redactor(),
        identity.log_limits,
    )?;
    around.events.open(log, observer);
    let mut facts = run.pinned.facts();
    // One parameter for each file would be no parameter of the run.
    facts.shift_remove(Pinned::SOURCE_FILES);
    let tracked = TrackedRun {
        name: identity.name.as_str(),
        kind: identity.kind,
        folder: &identity.folder.path,
        shared_folder: identity.workspace.root.join(".osmosis"),
        project: identity.project,
        facts,
    };
    let tracking = trackers.begin(&tracked, &run.store, around.notices);
    Ok(Opening::Ready(tracking.await))
}

/// The error, with how a person goes on with the run.
fn with_resume_hint(error: RunError, resume: Option<&str>) -> RunError {
    let Some(resume) = resume else {
        return error;
    };
    // Mending this changes what the run is pinned to.
    if error.kind() == RunErrorKind::ToolsIgnored {
        let hint = error.hint_text().unwrap_or_default();
        let hint =
            format!("{hint}. Then start the run again: with `--fresh` if it has the same `--name`");
        return error.hint(hint);
    }
    let resume = format!("resume with `{resume}`");
    let hint = match error.hint_text() {
        Some(hint) => {
            let first = hint.trim_end_matches(", then resume the run");
            format!("{first}, then {resume}")
        }
        None => resume,
    };
    error.hint(hint)
}
