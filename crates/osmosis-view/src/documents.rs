//! The documents about the runs of a workspace, as the API sends and the export writes them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use camino::Utf8PathBuf;
use osmosis_core::JsonText;
use osmosis_core::config::ModelPath;
use osmosis_run::reports::{
    Comparison, RolloutCommands, RolloutDetails, RolloutGrid, RolloutLine, RolloutTokens,
    RolloutTranscript, RowGroup, RunOverview, RunPage, StepRollouts, TrainingSteps, Wanted,
};
use osmosis_run::runs::{FoundRun, Pinned, ReadRun, kind_word};
use osmosis_run::transcript_search::{self, TranscriptMatches, TranscriptSearch};
use osmosis_run::workspace::Workspace;
use osmosis_run::{RunError, RunErrorKind, policy};
use osmosis_store::{RolloutQuery, RolloutRecord, RunKind, RunRecord, Store};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::api::ApiError;
use crate::listing::ListQuery;
use crate::response::{self, ListEnvelope};
use crate::run_cache::{Fingerprint, RunCache};

/// Documents that look at every rollout are made one or two at a time.
const LARGE_AT_ONCE: usize = 2;
/// Characters of a row in a list.
const ROW_TEXT: usize = 300;
/// Rows that one request may name.
const MOST_ROWS: usize = 1000;

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

/// One rollout: its details, and what to type to go on with it.
#[derive(Debug, Serialize)]
struct RolloutDocument {
    #[serde(flatten)]
    details: RolloutDetails,
    commands: RolloutCommands,
    /// Milliseconds since 1970, as is the next.
    started_at_ms: Option<i64>,
    finished_at_ms: Option<i64>,
    /// What the workflow measured.
    metrics: Option<JsonText>,
}

/// A dataset row in a list.
#[derive(Debug, Serialize)]
pub(crate) struct RowText {
    row_index: u64,
    text: String,
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
        let record = read.record(name).await?;
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

    pub(crate) async fn rollouts(
        &self,
        name: &str,
        query: &ListQuery,
    ) -> Result<ListEnvelope<RolloutLine>, ApiError> {
        let run = self.open(name).await?;
        let grid = self.grid_of(&run).await?;
        let mut matching: Option<HashSet<(u64, u32)>> = None;
        for matches in self.matches(&run, query, &grid).await? {
            let found: HashSet<(u64, u32)> = matches.rollouts.into_iter().collect();
            matching = Some(match matching {
                None => found,
                Some(before) => before.intersection(&found).copied().collect(),
            });
        }
        let listed = query.list(&grid, matching.as_ref())?;
        let mut items = vec![];
        for place in listed.places {
            let (row, index) = (grid.row_index[place], grid.run_index[place]);
            if let Some(rollout) = rollout_at(&*run.read.store, row, index).await? {
                items.push(RolloutLine::of(&rollout));
            }
        }
        Ok(ListEnvelope::page(items, listed.total_count, listed.next))
    }

    /// What each of the query's texts is found in.
    pub(crate) async fn matches(
        &self,
        run: &OpenRun,
        query: &ListQuery,
        grid: &RolloutGrid,
    ) -> Result<Vec<TranscriptMatches>, ApiError> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let mut all = vec![];
        if let Some(text) = given(&query.q) {
            let search = self.search(run)?;
            all.push(search.find(transcript_search::Wanted::Text(text)).await?);
        }
        if let Some(name) = given(&query.tool) {
            let search = self.search(run)?;
            all.push(search.find(transcript_search::Wanted::Tool(name)).await?);
        }
        if let Some(text) = given(&query.row) {
            all.push(rows_with(run, &text, grid).await?);
        }
        Ok(all)
    }

    fn search(&self, run: &OpenRun) -> Result<Arc<TranscriptSearch>, ApiError> {
        let path = run.read.folder.path.clone();
        let mut searches = self.searches.lock();
        if let Some(search) = searches.get(&path) {
            return Ok(Arc::clone(search));
        }
        // A run of somebody else's, or on a medium that can't be written to.
        let elsewhere = Utf8PathBuf::from_path_buf(std::env::temp_dir())
            .ok()
            .map(|folder| {
                let unique = format!("osmosis-view-{}-{}", std::process::id(), searches.len());
                folder.join(unique)
            });
        let mut folders = vec![path.clone()];
        if let Some(folder) = elsewhere
            && rustix::fs::access(path.as_std_path(), rustix::fs::Access::WRITE_OK).is_err()
            && std::fs::create_dir(&folder).is_ok()
        {
            folders.push(folder);
        }
        let search = TranscriptSearch::open(
            Arc::clone(&run.read.store),
            Arc::clone(&run.calls),
            &folders,
        )?;
        let search = Arc::new(search);
        searches.insert(path, Arc::clone(&search));
        Ok(search)
    }

    pub(crate) async fn rollout(&self, name: &str, rollout: &str) -> Result<Vec<u8>, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        let wanted = Wanted {
            ground_truth: true,
            logs: true,
            // The transcript is a document of its own.
            without_conversations: true,
            ..Wanted::default()
        };
        let (store, folder) = (&*run.read.store, &run.read.folder);
        let details = RolloutDetails::of(store, folder, &found.id, wanted).await?;
        let (row, index) = (found.row_index, found.run_index);
        let commands = RolloutCommands::of(&run.record, row, index, &self.workspace)?;
        response::data(&RolloutDocument {
            details,
            commands,
            started_at_ms: found.started_at_ms,
            finished_at_ms: found.finished_at_ms,
            metrics: found.metrics,
        })
    }

    pub(crate) async fn transcript(&self, name: &str, rollout: &str) -> Result<Vec<u8>, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        let tokenizer = async { policy::tokenizer(&run.model()?, &self.workspace).await };
        let (store, calls) = (&*run.read.store, &*run.calls);
        let transcript = RolloutTranscript::of(store, calls, &found, tokenizer).await?;
        response::data(&transcript)
    }

    pub(crate) async fn tokens(&self, name: &str, rollout: &str) -> Result<Vec<u8>, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        let tokenizer = async { policy::tokenizer(&run.model()?, &self.workspace).await };
        let (store, calls) = (&*run.read.store, &*run.calls);
        let tokens = RolloutTokens::of(store, calls, &run.record, &found, tokenizer).await?;
        response::data(&tokens)
    }

    /// The exact bytes of a call of this rollout.
    pub(crate) async fn call_body(
        &self,
        name: &str,
        rollout: &str,
        call_id: u64,
    ) -> Result<osmosis_store::CallBody, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        for store in [&run.read.store, &run.calls] {
            let query = osmosis_store::CallQuery {
                rollout_id: found.id.clone(),
                attempt: None,
            };
            let calls = store.calls(query).await?;
            if calls.iter().any(|call| call.call_id == call_id)
                && let Some(body) = store.call_body(call_id).await?
            {
                return Ok(body);
            }
        }
        Err(RunError::failed(
            RunErrorKind::RolloutNotFound,
            format!("rollout `{rollout}` has no call {call_id}"),
        )
        .into())
    }

    /// The calls of a rollout, its own and those it was graded from.
    pub(crate) async fn call_ids(&self, name: &str, rollout: &str) -> Result<Vec<u64>, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        let query = osmosis_store::CallQuery {
            rollout_id: found.id.clone(),
            attempt: None,
        };
        let calls = run.read.store.calls(query).await?;
        Ok(calls.iter().map(|call| call.call_id).collect())
    }

    pub(crate) async fn artifact_folder(
        &self,
        name: &str,
        rollout: &str,
    ) -> Result<Utf8PathBuf, ApiError> {
        let run = self.open(name).await?;
        let found = run.rollout(rollout).await?;
        Ok(run.read.folder.artifacts().join(found.id.as_str()))
    }

    pub(crate) async fn row(&self, name: &str, row_index: u64) -> Result<Vec<u8>, ApiError> {
        let run = self.open(name).await?;
        let (store, calls) = (&*run.read.store, &*run.calls);
        response::data(&RowGroup::of(store, calls, &run.record, row_index).await?)
    }

    /// How these rows begin.
    pub(crate) async fn row_texts(
        &self,
        name: &str,
        indices: &[u64],
    ) -> Result<ListEnvelope<RowText>, ApiError> {
        let run = self.open(name).await?;
        let indices = &indices[..indices.len().min(MOST_ROWS)];
        let rows = run.read.store.rows(indices).await?;
        let items = rows.iter().map(|row| RowText {
            row_index: row.row_index,
            text: row_text(&row.body).chars().take(ROW_TEXT).collect(),
        });
        Ok(ListEnvelope::whole(items.collect()))
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

impl OpenRun {
    /// The rollout `ROW.RUN_INDEX`, or that of an id.
    async fn rollout(&self, text: &str) -> Result<RolloutRecord, ApiError> {
        let store = &*self.read.store;
        let place = text
            .split_once('.')
            .and_then(|(row, run)| Some((row.parse().ok()?, run.parse().ok()?)));
        let found = match (place, osmosis_core::RolloutId::new(text)) {
            (Some((row, run)), _) => rollout_at(store, row, run).await?,
            (None, Ok(id)) => store.rollout(&id).await?,
            (None, Err(_)) => None,
        };
        found.ok_or_else(|| {
            RunError::failed(
                RunErrorKind::RolloutNotFound,
                format!("run `{}` has no rollout `{text}`", self.name),
            )
            .hint("rollouts are named ROW.RUN_INDEX, both from 0")
            .into()
        })
    }

    fn model(&self) -> Option<ModelPath> {
        let pinned = Pinned::read(&self.record.pinned).ok()?;
        pinned.model_path()?.parse().ok()
    }
}

async fn rollout_at(
    store: &dyn Store,
    row_index: u64,
    run_index: u32,
) -> Result<Option<RolloutRecord>, RunError> {
    let query = RolloutQuery {
        row_index: Some(row_index),
        after: run_index.checked_sub(1).map(|before| (row_index, before)),
        limit: 1,
        ..RolloutQuery::default()
    };
    let page = store.rollouts(query).await?;
    let first = page.items.into_iter().next();
    Ok(first.filter(|rollout| rollout.run_index == run_index))
}

/// The rollouts of rows that hold a text, whatever its case.
async fn rows_with(
    run: &OpenRun,
    text: &str,
    grid: &RolloutGrid,
) -> Result<TranscriptMatches, ApiError> {
    let wanted = text.to_lowercase();
    let mut indices: Vec<u64> = grid.row_index.clone();
    indices.dedup();
    let mut found = HashSet::new();
    for some in indices.chunks(MOST_ROWS) {
        for row in run.read.store.rows(some).await? {
            if row.body.as_str().to_lowercase().contains(&wanted)
                || row_text(&row.body).to_lowercase().contains(&wanted)
            {
                found.insert(row.row_index);
            }
        }
    }
    let places = grid
        .row_index
        .iter()
        .copied()
        .zip(grid.run_index.iter().copied());
    Ok(TranscriptMatches {
        rollouts: places.filter(|(row, _)| found.contains(row)).collect(),
        searched: grid.len() as u64,
        finished: grid.len() as u64,
    })
}

/// What a row asks: its prompt, or else the whole of it.
fn row_text(body: &JsonText) -> String {
    let Ok(serde_json::Value::Object(row)) = body.read::<serde_json::Value>() else {
        return body.as_str().to_owned();
    };
    for column in [
        "user_prompt",
        "prompt",
        "question",
        "problem",
        "input",
        "messages",
    ] {
        match row.get(column) {
            Some(serde_json::Value::String(text)) => return text.clone(),
            Some(serde_json::Value::Array(messages)) => {
                let mut texts = messages
                    .iter()
                    .filter_map(|message| message.get("content")?.as_str());
                if let Some(last) = texts.next_back() {
                    return last.to_owned();
                }
            }
            Some(_) | None => {}
        }
    }
    body.as_str().to_owned()
}
