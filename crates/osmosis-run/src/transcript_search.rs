//! Search in the transcripts of a run, by an index that is made when it is first needed.
//!
//! Reading every transcript of a large run takes minutes, so the index grows in the background: a search answers with
//! what is indexed so far, and says how much that is.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::{RolloutId, Sample};
use osmosis_data::export::SampleTalk;
use osmosis_store::{RolloutPages, RolloutRecord, Store};
use osmosis_store_sqlite::{IndexedRollout, SearchedText, TextIndex};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::transcripts::{self, Telling};
use crate::{RunError, RunErrorKind};

/// Rollouts that are read and indexed together.
const CHUNK: usize = 64;

/// How long a search waits for an index that is being made.
const PATIENCE: Duration = Duration::from_millis(1500);

/// What was searched, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TranscriptMatches {
    /// Row and run index of those that match, in order.
    pub rollouts: Vec<(u64, u32)>,
    /// Rollouts that were searched.
    pub searched: u64,
    /// Rollouts that have a result. More than `searched` while the index is made: then ask again.
    pub finished: u64,
}

/// What to look for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Words that follow each other, anywhere in what was said.
    Text(String),
    /// A tool that was called.
    Tool(String),
}

/// The search of one run.
#[derive(Debug)]
pub struct TranscriptSearch {
    store: Arc<dyn Store>,
    /// Where the calls are.
    calls: Arc<dyn Store>,
    index: Arc<Mutex<TextIndex>>,
    growing: tokio::sync::Mutex<JoinSet<Result<(), RunError>>>,
}

impl TranscriptSearch {
    /// `folders` are where the index may be kept, the first that can be written to.
    pub fn open(
        store: Arc<dyn Store>,
        calls: Arc<dyn Store>,
        folders: &[Utf8PathBuf],
    ) -> Result<Self, RunError> {
        let mut problem = None;
        for folder in folders {
            match TextIndex::open(&folder.join("transcripts.index.db")) {
                Ok(index) => {
                    return Ok(Self {
                        store,
                        calls,
                        index: Arc::new(Mutex::new(index)),
                        growing: tokio::sync::Mutex::new(JoinSet::new()),
                    });
                }
                Err(error) => problem = Some(error),
            }
        }
        Err(problem.map_or_else(
            || RunError::failed(RunErrorKind::Io, "there is no folder for the index"),
            RunError::from,
        ))
    }

    /// What matches in the rollouts that are indexed so far.
    pub async fn find(&self, wanted: Wanted) -> Result<TranscriptMatches, RunError> {
        let finished = self.store.counts().await?.done;
        self.grow(finished).await?;
        let index = Arc::clone(&self.index);
        let (rollouts, searched) = blocking(move || {
            let index = index.lock();
            let (text, searched) = match &wanted {
                Wanted::Text(text) => (text, SearchedText::Everything),
                Wanted::Tool(name) => (name, SearchedText::ToolNames),
            };
            Ok((index.search(text, searched)?, index.count()?))
        })
        .await?;
        Ok(TranscriptMatches {
            rollouts,
            searched,
            finished,
        })
    }

    /// Goes on indexing in the background, and waits a moment for it.
    async fn grow(&self, finished: u64) -> Result<(), RunError> {
        let index = Arc::clone(&self.index);
        let indexed = blocking(move || Ok(index.lock().count()?)).await?;
        let mut growing = self.growing.lock().await;
        if indexed >= finished && growing.is_empty() {
            return Ok(());
        }
        if growing.is_empty() {
            growing.spawn(fill(
                Arc::clone(&self.store),
                Arc::clone(&self.calls),
                Arc::clone(&self.index),
            ));
        }
        match tokio::time::timeout(PATIENCE, growing.join_next()).await {
            Ok(Some(Ok(done))) => done,
            Ok(Some(Err(error))) => Err(RunError::failed(
                RunErrorKind::Internal,
                format!("the transcripts could not be indexed: {error}"),
            )),
            Ok(None) | Err(_) => Ok(()),
        }
    }
}

/// Indexes every finished rollout that is not indexed yet.
async fn fill(
    store: Arc<dyn Store>,
    calls: Arc<dyn Store>,
    index: Arc<Mutex<TextIndex>>,
) -> Result<(), RunError> {
    let mut pages = RolloutPages::finished(&*store);
    while let Some(page) = pages.next().await? {
        let known = Arc::clone(&index);
        let missing = blocking(move || {
            let index = known.lock();
            let mut missing = vec![];
            for rollout in page {
                let finished_at_ms = rollout.finished_at_ms.unwrap_or_default();
                if !index.has(rollout.row_index, rollout.run_index, finished_at_ms)? {
                    missing.push(rollout);
                }
            }
            Ok(missing)
        })
        .await?;
        for chunk in missing.chunks(CHUNK) {
            let indexed = read(&*store, &*calls, chunk).await?;
            let index = Arc::clone(&index);
            blocking(move || Ok(index.lock().add(&indexed)?)).await?;
        }
    }
    Ok(())
}

async fn read(
    store: &dyn Store,
    calls: &dyn Store,
    rollouts: &[RolloutRecord],
) -> Result<Vec<IndexedRollout>, RunError> {
    let ids: Vec<RolloutId> = rollouts.iter().map(|rollout| rollout.id.clone()).collect();
    let samples = store.samples_of(&ids).await?;
    let each = samples.iter().map(|samples: &Vec<Sample>| &samples[..]);
    let talks = transcripts::of_each(calls, &ids, each, &Telling::default()).await?;
    Ok(rollouts
        .iter()
        .zip(talks)
        .map(|(rollout, talks)| {
            let (mut text, mut tools) = (String::new(), String::new());
            for talk in &talks {
                say(talk, &mut text, &mut tools);
            }
            if let Some(error) = rollout
                .outcome
                .as_ref()
                .and_then(osmosis_core::Outcome::explanation)
            {
                push(&mut text, &error);
            }
            IndexedRollout {
                row_index: rollout.row_index,
                run_index: rollout.run_index,
                finished_at_ms: rollout.finished_at_ms.unwrap_or_default(),
                text,
                tools,
            }
        })
        .collect())
}

/// All that can be found of a sample.
fn say(talk: &SampleTalk, text: &mut String, tools: &mut String) {
    for conversation in &talk.conversations {
        for turn in &conversation.turns {
            push(text, &turn.text());
            push(text, turn.reasoning.as_deref().unwrap_or_default());
            for call in &turn.tool_calls {
                push(text, &call.name);
                push(text, &call.arguments);
                push(tools, &call.name);
            }
        }
    }
}

fn push(to: &mut String, text: &str) {
    to.push_str(text);
    to.push('\n');
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RunError> + Send + 'static,
) -> Result<T, RunError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?
}
