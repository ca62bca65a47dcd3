//! Deleting old runs, by rules that never touch what somebody may still want.

use std::collections::HashMap;

use jiff::SignedDuration;
use osmosis_core::clock::now_ms;
use osmosis_store::{Catalogue, RunKey, RunKind, RunPlace};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{RunToRemove, RunUses, reference_of};
use crate::RunError;
use crate::runs::stores::catalogue;
use crate::workspace::Workspace;

/// Which runs are old.
#[derive(Debug, Clone, Default)]
pub struct PruneRules {
    pub kinds: Vec<RunKind>,
    /// So many of the newest of each kind stay.
    pub keep: Option<usize>,
    /// What is younger stays.
    pub older_than: Option<SignedDuration>,
}

/// Why a run stays that is old by the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeepReason {
    /// A process writes to it.
    Held,
    /// It has a tag.
    Tagged,
    /// A run that stays was regraded from it, or has one of its checkpoints as its model.
    Needed,
    /// It can't be read, so that nobody knows how old it is.
    Unreadable,
}

/// What pruning comes to, before anything is deleted.
#[derive(Debug, Clone, Default)]
pub struct Pruning {
    pub remove: Vec<RunToRemove>,
    /// Old by the rules, and not removed.
    pub kept: Vec<(RunKey, KeepReason)>,
}

/// A run, as far as pruning looks at it.
#[derive(Debug, Clone)]
struct Candidate {
    run: RunKey,
    keep: Option<KeepReason>,
}

pub async fn prune(workspace: &Workspace, rules: &PruneRules) -> Result<Pruning, RunError> {
    let catalogue = catalogue(workspace)?;
    let uses = RunUses::of(workspace, &*catalogue).await?;
    let mut old: Vec<Candidate> = vec![];
    for kind in &rules.kinds {
        let runs = catalogue.list(*kind).await?;
        for entry in runs.into_iter().skip(rules.keep.unwrap_or(0)) {
            if let Some(candidate) = candidate(&*catalogue, entry.key, rules).await? {
                old.push(candidate);
            }
        }
    }
    keep_what_is_needed(&mut old, &uses);
    let mut pruning = Pruning::default();
    for Candidate { run, keep } in old {
        if let Some(reason) = keep {
            pruning.kept.push((run, reason));
        } else {
            let place = RunPlace::Listed(run.clone());
            let removal = RunToRemove::of(&*catalogue, &uses, run, place).await?;
            pruning.remove.push(removal);
        }
    }
    Ok(pruning)
}

/// `None` when the run is young.
async fn candidate(
    catalogue: &dyn Catalogue,
    run: RunKey,
    rules: &PruneRules,
) -> Result<Option<Candidate>, RunError> {
    let kept = |keep| {
        Ok(Some(Candidate {
            run: run.clone(),
            keep,
        }))
    };
    if catalogue.holder(&run).await?.is_some() {
        return kept(Some(KeepReason::Held));
    }
    let record = match catalogue.open_read_only(&run).await {
        Ok(store) => store.run().await.ok().flatten(),
        Err(_) => None,
    };
    let Some(record) = record else {
        return kept(Some(KeepReason::Unreadable));
    };
    if let Some(age) = rules.older_than {
        let old_enough = now_ms().saturating_sub(record.created_at_ms);
        if i128::from(old_enough) < age.as_millis() {
            return Ok(None);
        }
    }
    match catalogue.labels(&run).await {
        Ok(labels) if labels.tags.is_empty() => kept(None),
        Ok(_) => kept(Some(KeepReason::Tagged)),
        Err(_) => kept(Some(KeepReason::Unreadable)),
    }
}

/// A run stays when one that stays needs it, and so on.
fn keep_what_is_needed(old: &mut [Candidate], uses: &RunUses) {
    loop {
        let stays: HashMap<String, bool> = old
            .iter()
            .map(|one| (reference_of(&one.run), one.keep.is_some()))
            .collect();
        let needed = |candidate: &Candidate| {
            candidate.keep.is_none()
                && uses
                    .runs_using(&candidate.run)
                    .any(|by| stays.get(&reference_of(by)).copied().unwrap_or(true))
        };
        let Some(found) = old.iter_mut().find(|one| needed(one)) else {
            return;
        };
        found.keep = Some(KeepReason::Needed);
    }
}
