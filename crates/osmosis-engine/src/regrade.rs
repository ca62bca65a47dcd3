//! The way of a rollout whose samples are there already: grade, record. No workflow runs, and the policy is
//! never asked.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::execution::{Isolation, Terms};
use osmosis_store::{Claim, Store};
use tokio_util::sync::CancellationToken;

use crate::EngineError;
use crate::decision::without_grade;
use crate::driver::Parts;
use crate::rollout::{
    AttemptRecord, Graded, Grading, clean_artifacts_dir, finish, give_back, grade, try_again,
};

/// The run whose samples are graded. It is only read.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub store: Arc<dyn Store>,
    /// Where its rollouts left their files; a grader gets copies.
    pub artifacts_root: Utf8PathBuf,
}

pub(crate) async fn execute(
    parts: &Parts,
    recorded: &Recorded,
    claim: Claim,
    cancel: &CancellationToken,
) -> Result<(), EngineError> {
    let mut attempt = AttemptRecord::begun_now();
    let (record, samples) = tokio::try_join!(
        recorded.store.rollout(&claim.id),
        recorded.store.samples(&claim.id)
    )?;
    let not_recorded = || EngineError::NotRecorded {
        id: claim.id.clone(),
    };
    let record = record.ok_or_else(not_recorded)?;
    attempt.metrics = record.metrics;
    if samples.is_empty() {
        // It never came to a grade, so that no grader can change its outcome.
        let outcome = record.outcome.ok_or_else(not_recorded)?;
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
    };
    let samples = samples.into_iter().map(without_grade).collect();
    match grade(parts, &claim, &grading, samples, &mut attempt, cancel).await {
        Graded::Finished { outcome, samples } => {
            finish(parts, &claim, attempt, outcome, samples).await
        }
        Graded::Again(again) => try_again(parts, &claim, again, attempt, cancel).await,
        Graded::Stopped { samples } => give_back(parts, &claim, attempt, samples).await,
    }
}

/// A grader may read what the workflow left, and may write there; the run it comes from stays as it is.
async fn copy_artifacts(
    recorded: &Recorded,
    claim: &Claim,
    to: &Utf8Path,
) -> Result<(), EngineError> {
    let from = recorded.artifacts_root.join(claim.id.as_str());
    let target = to.to_owned();
    let copying = tokio::task::spawn_blocking(move || {
        match fs::symlink_metadata(&from) {
            // User code may have put a link in place of its folder; that leads nowhere from here.
            Ok(metadata) if metadata.is_dir() => {
                copy_tree(from.as_std_path(), target.as_std_path())
            }
            Ok(_) | Err(_) => Ok(()),
        }
    });
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
