//! The documents about the runs of a workspace, as the API sends and the export writes them.

mod rollout;
mod rollouts;
mod rows;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use camino::Utf8PathBuf;
use osmosis_run::reports::{
    Comparison, RolloutGrid, RunOverview, RunPage, StepRollouts, TrainingSteps,
};
use osmosis_run::runs::{FoundRun, Pinned, ReadRun, kind_word};
use osmosis_run::transcript_search::TranscriptSearch;
use osmosis_run::workspace::Workspace;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{RunKind, RunRecord, Store};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub(crate) use self::rollout::CallPlace;
use crate::api::ApiError;
use crate::response;
use crate::run_cache::{Fingerprint, RunCache};

/// Documents that look at every rollout are made one or two at a time.
const LARGE_AT_ONCE: usize = 2;

const KINDS: [RunKind; 3] = [RunKind::Evaluation, RunKind::Training, RunKind::Serving];

#[derive(Debug)]
pub(crate) struct Documents {
    pub(crate) workspace: Workspace,
    cache: RunCache,
    large: Semaphore,
    searches: Mutex<HashMap<Utf8PathBuf, Arc<TranscriptSearch>>>,
}

/// A run that was found and opened.
#[derive(Debug)]
pub(crate) struct OpenRun {
    /// How it is named in addresses.
    pub(crate) name: String,
    pub(crate) read: ReadRun,
    pub(crate) record: RunRecord,
    /// Where its calls are: another run when it only grades, `None` when that one is gone.
    calls: Arc<dyn Store>,
}

impl Documents {
    pub(crate) fn new(workspace: Workspace) -> Self {
        Self {
            workspace,
            cache: RunCache::default(),
            large: Semaphore::new(LARGE_AT_ONCE),
            searches: Mutex::default(),
        }
    }

    /// Every run of the workspace, newest first.
    pub(crate) async fn names(&self) -> Result<Vec<(RunKind, String)>, ApiError> {
        let mut names = vec![];
        for kind in KINDS {
            let runs = FoundRun::all(&self.workspace, &[kind]).await?.into_iter();
            names.extend(runs.map(|run| (kind, run.name.to_string())));
        }
        Ok(names)
    }

    pub(crate) async fn open(&self, name: &str) -> Result<OpenRun, ApiError> {
        let found = FoundRun::of_any_kind(&self.workspace, name).await?;
        self.open_found(found, name).await
    }

    async fn open_found(&self, found: FoundRun, name: &str) -> Result<OpenRun, ApiError> {
        let read = ReadRun::open(found.folder).await?;
        let Some(record) = read.store.run().await? else {
            // The engine makes the folder, then the record. Pages wait for both.
            return Err(RunError::failed(
                RunErrorKind::RunNotFound,
                format!("run `{name}` has not begun yet"),
            )
            .into());
        };
        let pinned = Pinned::read(&record.pinned)?;
        let elsewhere = match &pinned.regraded_from {
            Some(from) => from.open_calls(&self.workspace).await,
            None => None,
        };
        Ok(OpenRun {
            name: name.to_owned(),
            calls: elsewhere.unwrap_or_else(|| Arc::clone(&read.store)),
            read,
            record,
        })
    }

    pub(crate) async fn runs(&self) -> Result<Vec<Arc<RunOverview>>, ApiError> {
        let names = self.names().await?;
        let mut overviews = vec![];
        for (kind, name) in &names {
            let shared = names.iter().filter(|(_, other)| other == name).count() > 1;
            let address = if shared {
                format!("{}/{name}", kind_word(*kind))
            } else {
                name.clone()
            };
            // One run that can't be read must not hide the others.
            match self.overview(&address).await {
                Ok(overview) => overviews.push(overview),
                Err(error) => {
                    tracing::warn!(
                        run = address,
                        error = error.message(),
                        "a run can't be shown"
                    );
                }
            }
        }
        overviews.sort_by_key(|overview| std::cmp::Reverse(overview.created_at_ms));
        Ok(overviews)
    }

    pub(crate) async fn overview(&self, name: &str) -> Result<Arc<RunOverview>, ApiError> {
        let run = self.open(name).await?;
        let fingerprint = Fingerprint::of(&run.read, &run.record).await?;
        if let Some(known) = self.cache.get(&run.read, &fingerprint).overview {
            // The name in addresses changes when a run of another kind gets the same one.
            if known.run == name {
                return Ok(known);
            }
        }
        let _turn = self.large.acquire().await;
        let made = Arc::new(RunOverview::of(&run.read, &run.record, name).await?);
        self.cache.put(&run.read, fingerprint, |kept| {
            kept.overview = Some(Arc::clone(&made));
        });
        Ok(made)
    }

    pub(crate) async fn run(&self, name: &str) -> Result<Bytes, ApiError> {
        let run = self.open(name).await?;
        let fingerprint = Fingerprint::of(&run.read, &run.record).await?;
        if let Some(known) = self.cache.get(&run.read, &fingerprint).page {
            return Ok(known);
        }
        let _turn = self.large.acquire().await;
        let page = RunPage::of(&run.read, &run.record, name).await?;
        let page = Bytes::from(response::data(&page)?);
        self.cache.put(&run.read, fingerprint, |kept| {
            kept.page = Some(page.clone());
        });
        Ok(page)
    }

    pub(crate) async fn grid(&self, name: &str) -> Result<Arc<RolloutGrid>, ApiError> {
        let run = self.open(name).await?;
        self.grid_of(&run).await
    }

    async fn grid_of(&self, run: &OpenRun) -> Result<Arc<RolloutGrid>, ApiError> {
        let fingerprint = Fingerprint::of(&run.read, &run.record).await?;
        if let Some(known) = self.cache.get(&run.read, &fingerprint).grid {
            return Ok(known);
        }
        let _turn = self.large.acquire().await;
        let grid = Arc::new(RolloutGrid::of(&*run.read.store, &run.record).await?);
        self.cache.put(&run.read, fingerprint, |kept| {
            kept.grid = Some(Arc::clone(&grid));
        });
        Ok(grid)
    }

    pub(crate) async fn steps(&self, name: &str) -> Result<TrainingSteps, ApiError> {
        let run = self.open(name).await?;
        Ok(TrainingSteps::of(&*run.read.store).await?)
    }

    pub(crate) async fn step(&self, name: &str, step: u64) -> Result<Vec<u8>, ApiError> {
        let run = self.open(name).await?;
        response::data(&StepRollouts::of(&*run.read.store, &run.record, step).await?)
    }

    pub(crate) async fn compare(&self, names: &[&str]) -> Result<Comparison, ApiError> {
        let mut runs = vec![];
        for (place, name) in names.iter().enumerate() {
            if names[..place].contains(name) {
                return Err(ApiError::usage(&format!("run `{name}` is given twice"))
                    .hint("a run does not differ from itself; name two different runs"));
            }
            runs.push(self.open(name).await?.read);
        }
        if runs.len() < 2 {
            return Err(
                ApiError::usage("a comparison needs two runs").hint("write `compare?runs=A,B`")
            );
        }
        let _turn = self.large.acquire().await;
        // The page shows what differs in the datasets; to refuse them helps nobody who looks.
        Ok(Comparison::of(runs, true, &self.workspace).await?)
    }
}
