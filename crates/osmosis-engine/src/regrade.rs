//! The way of a rollout whose samples are there already: grade, record. No workflow runs, and the policy is
//! never asked.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::execution::{Isolation, Terms};
use osmosis_core::{RolloutId, Sample};
use osmosis_store::{CallPurpose, CallQuery, Claim, RolloutRecord, Store};
use osmosis_tokens::TokenRecord;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::decision::without_grade;
use crate::driver::{CLAIM_BATCH, Parts};
use crate::rollout::{
    AttemptRecord, Graded, Grading, clean_artifacts_dir, finish, give_back, grade, try_again,
};
use crate::sessions::GivenAnswer;
use crate::turns::Turns;
use crate::{EngineError, RunEvent};

/// The run whose samples are graded. It is only read.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub store: Arc<dyn Store>,
    /// Where its rollouts left their files; a grader gets copies.
    pub artifacts_root: Utf8PathBuf,
}

/// Grading what another run recorded.
#[derive(Debug)]
pub(crate) struct Regrade {
    recorded: Recorded,
    /// Samples in memory: those that are graded, and the next.
    loading: Semaphore,
    /// Graders at once.
    grading: Semaphore,
    max_in_flight: usize,
}

impl Regrade {
    pub(crate) fn new(recorded: Recorded, max_in_flight: usize) -> Self {
        Self {
            recorded,
            loading: Semaphore::new(max_in_flight + 2 * CLAIM_BATCH),
            grading: Semaphore::new(max_in_flight),
            max_in_flight,
        }
    }

    /// Rollouts that are with a grader.
    pub(crate) fn graded_now(&self) -> usize {
        self.max_in_flight - self.grading.available_permits()
    }
}

/// The samples of rollouts that were claimed together. They are read together, when the first is to be graded.
#[derive(Debug)]
pub(crate) struct SampleBatch {
    ids: Vec<RolloutId>,
    read: OnceCell<Mutex<HashMap<RolloutId, Found>>>,
}

type Found = (RolloutRecord, Vec<Sample>);

impl SampleBatch {
    pub(crate) fn of(ids: Vec<RolloutId>) -> Self {
        Self {
            ids,
            read: OnceCell::new(),
        }
    }

    /// What is recorded of one of them. Each is asked for once.
    async fn take(&self, recorded: &Recorded, id: &RolloutId) -> Result<Found, EngineError> {
        let found = self.read.get_or_try_init(async || {
            let (records, samples) = tokio::try_join!(
                recorded.store.rollouts_by_id(&self.ids),
                recorded.store.samples_of(&self.ids)
            )?;
            let mut samples: HashMap<&RolloutId, Vec<Sample>> =
                self.ids.iter().zip(samples).collect();
            let found = records.into_iter().map(|record| {
                let samples = samples.remove(&record.id).unwrap_or_default();
                (record.id.clone(), (record, samples))
            });
            Ok::<_, EngineError>(Mutex::new(found.collect()))
        });
        let taken = found.await?.lock().remove(id);
        taken.ok_or_else(|| EngineError::NotRecorded { id: id.clone() })
    }
}

/// Grades one rollout. Until its turn comes it is only claimed, and goes back when the run is asked to stop.
pub(crate) async fn execute(
    parts: &Parts,
    regrade: &Regrade,
    batch: &SampleBatch,
    claim: Claim,
    drain: &CancellationToken,
    cancel: &CancellationToken,
) -> Result<(), EngineError> {
    let mut attempt = AttemptRecord::begun_now();
    let recorded = &regrade.recorded;
    let Some(_loaded) = turn(&regrade.loading, drain, cancel).await else {
        return give_back(parts, &claim, attempt, vec![]).await;
    };
    let (record, samples) = batch.take(recorded, &claim.id).await?;
    let Some(slot) = turn(&regrade.grading, drain, cancel).await else {
        return give_back(parts, &claim, attempt, vec![]).await;
    };
    attempt.begins_now();
    parts
        .tell(RunEvent::Claimed {
            id: claim.id.clone(),
            attempt: claim.attempt,
        })
        .await;
    attempt.metrics = record.metrics;
    if samples.is_empty() {
        // It never came to a grade, so that no grader can change its outcome.
        let id = claim.id.clone();
        let outcome = record.outcome.ok_or(EngineError::NotRecorded { id })?;
        return finish(parts, &claim, attempt, outcome, vec![]).await;
    }
    let row = parts.reading.read(&claim)?;
    let rules = parts.rules_for(&row);
    let artifacts_dir = clean_artifacts_dir(parts, &claim).await?;
    if let Some(folder) = &artifacts_dir {
        copy_artifacts(recorded, &claim, folder).await?;
    }
    let grading = Grading {
        row: &row,
        artifacts_dir,
        terms: Terms {
            attempt: claim.attempt,
            isolation: Isolation::Shared,
            agent_limit: rules.agent_limit,
            grade_limit: rules.grade_limit,
        },
        rules,
        turns: recorded_turns(recorded, &claim.id).await?,
    };
    let samples = samples.into_iter().map(without_grade).collect();
    let graded = grade(parts, &claim, &grading, samples, &mut attempt, cancel).await;
    // The next may begin while this one is recorded.
    drop(slot);
    match graded {
        Graded::Finished { outcome, samples } => {
            finish(parts, &claim, attempt, outcome, samples).await
        }
        Graded::Again(again) => try_again(parts, &claim, again, attempt, cancel).await,
        Graded::Stopped { samples } => give_back(parts, &claim, attempt, samples).await,
    }
}

/// The turns of a rollout by its recorded calls; `None` when there are none, which are another run's then.
async fn recorded_turns(recorded: &Recorded, id: &RolloutId) -> Result<Option<Turns>, EngineError> {
    let query = CallQuery {
        rollout_id: id.clone(),
        attempt: None,
    };
    let mut calls = recorded.store.calls(query).await?;
    calls.retain(|call| call.purpose == CallPurpose::Policy);
    if calls.is_empty() {
        return Ok(None);
    }
    let tokens = if calls.iter().any(|call| call.token_records > 0) {
        recorded.store.token_records(id).await?
    } else {
        vec![]
    };
    // Both are in the order in which the calls finished.
    let mut tokens = tokens.into_iter();
    let mut answers = Vec::new();
    for call in calls {
        let own = tokens.by_ref().take(call.token_records as usize);
        let records: Vec<TokenRecord> = own
            .filter_map(|(_, bytes)| TokenRecord::decode(&bytes).ok())
            .collect();
        if call.error.is_none() && call.status < 400 {
            answers.push(GivenAnswer {
                id: None,
                sample: call.sample_id,
                calls: records.iter().map(|record| record.call).collect(),
                replaces: records
                    .into_iter()
                    .flat_map(|record| record.replaces)
                    .collect(),
            });
        }
    }
    Ok(Some(Turns::of(&answers)))
}

/// A place among those that may go on; `None` when the run is asked to stop first.
async fn turn<'a>(
    slots: &'a Semaphore,
    drain: &CancellationToken,
    cancel: &CancellationToken,
) -> Option<SemaphorePermit<'a>> {
    tokio::select! {
        biased;
        () = drain.cancelled() => None,
        () = cancel.cancelled() => None,
        slot = slots.acquire() => slot.ok(),
    }
}

/// A grader may read what the workflow left, and may write there; the run it comes from stays as it is.
async fn copy_artifacts(
    recorded: &Recorded,
    claim: &Claim,
    to: &Utf8Path,
) -> Result<(), EngineError> {
    let from = recorded.artifacts_root.join(claim.id.as_str());
    // One look is cheaper than another thread. User code may have put a link in place of its folder; that leads
    // nowhere from here.
    if !fs::symlink_metadata(&from).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    let target = to.to_owned();
    let copying =
        tokio::task::spawn_blocking(move || copy_tree(from.as_std_path(), target.as_std_path()));
    let copied = copying
        .await
        .map_err(|error| EngineError::Task(error.to_string()))?;
    copied.map_err(|error| EngineError::CopyArtifacts {
        id: claim.id.clone(),
        path: to.to_owned(),
        message: error.to_string(),
    })
}

/// Copies files and folders; links are made anew and never followed, and what is neither is left out.
fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    // A list and not recursion: folders may be nested deeper than the stack allows.
    let mut folders = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = folders.pop() {
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let target = to.join(entry.file_name());
            if kind.is_dir() {
                folders.push((entry.path(), target));
            } else if kind.is_file() {
                fs::copy(entry.path(), &target)?;
            } else if kind.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(entry.path())?, &target)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_copied_with_its_links_and_without_what_they_lead_to() {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (root.path().join("from"), root.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/b/file"), "text").unwrap();
        std::os::unix::fs::symlink("/", from.join("a/root")).unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a/b/file")).unwrap(), "text");
        assert_eq!(fs::read_link(to.join("a/root")).unwrap(), Path::new("/"));
        fs::write(to.join("a/b/file"), "changed").unwrap();
        assert_eq!(fs::read_to_string(from.join("a/b/file")).unwrap(), "text");
    }
}
