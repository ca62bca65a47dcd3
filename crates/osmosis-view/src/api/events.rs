//! Server-sent events: what to look at again.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::IntoResponse as _;
use axum::response::Response;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;
use osmosis_run::runs::ReadRun;
use osmosis_store::{Changes, RunKind};
use serde::Serialize;

use super::{Api, ApiError};
use crate::documents::Documents;
use crate::ending::{Ended, OpenStream, ViewerEnd};

/// Changes of one run are reported this often at most.
const AT_MOST_EVERY: Duration = Duration::from_millis(500);
/// How soon a new run, and one that ended, is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How a run stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct RunProgress {
    done: u64,
    total: u64,
    active: u64,
    /// Whether a process writes to it.
    live: bool,
    /// The last step of a training run.
    step: Option<u64>,
    /// Calls that were recorded: a rollout under way has changed when this has.
    #[serde(skip)]
    changes: u64,
}

/// The last event of a stream.
#[derive(Debug, Serialize)]
struct StreamEnd {
    /// The page can read its documents once more; the viewer waits for it to close the stream.
    last_look: bool,
}

impl StreamEnd {
    fn event(ended: Ended) -> Option<Event> {
        let data = Self {
            last_look: ended == Ended::LastLook,
        };
        Event::default().event("end").json_data(&data).ok()
    }
}

/// `runs/{run}/events`: `progress` now and whenever the run has changed.
pub(super) async fn of_run(
    State(api): State<Api>,
    Path(run): Path<String>,
) -> Result<Response, ApiError> {
    let opened = api.documents.open(&run).await?.read;
    let watching = Watching {
        changes: Some(opened.store.changes()),
        documents: api.documents,
        opened,
        run,
        _open: api.end.open_stream(),
        end: api.end,
        last: None,
        count: 0,
        ended: false,
    };
    Ok(stream(unfold(watching, Watching::next)))
}

struct Watching {
    documents: Arc<Documents>,
    run: String,
    opened: ReadRun,
    /// `None` when the store reports no more.
    changes: Option<Changes>,
    _open: OpenStream,
    end: ViewerEnd,
    last: Option<RunProgress>,
    count: u64,
    ended: bool,
}

impl Watching {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.ended {
            // Until the page closes the stream, or all is over.
            self.end.stop.cancelled().await;
            return None;
        }
        loop {
            if self.last.is_some()
                && let Some(ended) = self.wait().await
            {
                self.ended = true;
                return Some((Ok(StreamEnd::event(ended)?), self));
            }
            // Also whether it is held may have changed.
            if let Ok(opened) = self.documents.open(&self.run).await {
                self.opened.held = opened.read.held;
            }
            let progress = progress(&self.opened, self.count).await?;
            if self.last.as_ref() == Some(&progress) {
                continue;
            }
            let event = Event::default()
                .event("progress")
                .json_data(&progress)
                .ok()?;
            self.last = Some(progress);
            return Some((Ok(event), self));
        }
    }

    /// Until the run may have changed, or the viewer ends.
    async fn wait(&mut self) -> Option<Ended> {
        tokio::select! {
            ended = self.end.ended() => return Some(ended),
            () = tokio::time::sleep(AT_MOST_EVERY) => {}
        }
        let changed = async {
            match &mut self.changes {
                Some(changes) => changes.wait().await.is_ok(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = self.end.ended() => return Some(ended),
            () = tokio::time::sleep(LOOK_EVERY) => {}
            changed = changed => {
                if changed {
                    self.count += 1;
                } else {
                    self.changes = None;
                }
            }
        }
        None
    }
}

async fn progress(read: &ReadRun, changes: u64) -> Option<RunProgress> {
    let counts = read.store.counts().await.ok()?;
    let record = read.store.run().await.ok()??;
    let step = match record.kind {
        RunKind::Training => {
            let steps = read.store.steps().await.ok()?;
            Some(steps.last().map_or(0, |step| step.step))
        }
        RunKind::Evaluation | RunKind::Serving => None,
    };
    Some(RunProgress {
        done: counts.done,
        total: counts.total(),
        active: counts.leased,
        live: read.held,
        step,
        changes,
    })
}

/// `events`: `runs` now and whenever a run is new, is gone, begins, ends or has more results.
pub(super) async fn of_all(State(api): State<Api>) -> Response {
    let beginning = Listening {
        documents: api.documents,
        _open: api.end.open_stream(),
        end: api.end,
        last: None,
        known: HashMap::new(),
        ended: false,
    };
    stream(unfold(beginning, Listening::next))
}

struct Listening {
    documents: Arc<Documents>,
    _open: OpenStream,
    end: ViewerEnd,
    ended: bool,
    last: Option<Vec<RunSign>>,
    /// Runs that nobody wrote to, with their files as they were then: hundreds of them are not opened each time.
    known: HashMap<String, (Files, RunSign)>,
}

/// When the files of a run were last written to.
type Files = [Option<std::time::SystemTime>; 2];

/// What is another one when the list shows another thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct RunSign {
    run: String,
    live: bool,
    done: u64,
    total: u64,
}

impl Listening {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.ended {
            self.end.stop.cancelled().await;
            return None;
        }
        loop {
            if self.last.is_some() {
                tokio::select! {
                    ended = self.end.ended() => {
                        self.ended = true;
                        return Some((Ok(StreamEnd::event(ended)?), self));
                    }
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
            }
            let signs = self.signs().await;
            if self.last.as_ref() == Some(&signs) {
                continue;
            }
            let event = Event::default().event("runs").json_data(&signs).ok()?;
            self.last = Some(signs);
            return Some((Ok(event), self));
        }
    }

    async fn signs(&mut self) -> Vec<RunSign> {
        let mut signs = vec![];
        for (kind, name) in self.documents.names().await.unwrap_or_default() {
            let run = format!("{}/{name}", osmosis_run::runs::kind_word(kind));
            let folder = self.documents.workspace.runs_dir(kind).join(&name);
            let files = ["run.db", "run.db-wal"].map(|file| {
                let metadata = folder.join(file).metadata().ok()?;
                metadata.modified().ok()
            });
            // A store elsewhere has no files here: it is asked each time.
            if let Some((before, sign)) = self.known.get(&run)
                && files[0].is_some()
                && *before == files
                && !sign.live
            {
                signs.push(sign.clone());
                continue;
            }
            let Ok(opened) = self.documents.open(&run).await else {
                continue;
            };
            let counts = opened.read.store.counts().await.unwrap_or_default();
            let sign = RunSign {
                run: run.clone(),
                live: opened.read.held,
                done: counts.done,
                total: counts.total(),
            };
            self.known.insert(run, (files, sign.clone()));
            signs.push(sign);
        }
        signs
    }
}

fn stream(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response()
}
