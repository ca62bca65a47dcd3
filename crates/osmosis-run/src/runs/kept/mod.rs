//! What people do with runs that are over: rename, tag, archive, restore, remove, and look how much room they take.

mod archive;
mod former_names;
mod prune;
mod removal;
mod rename;
mod uses;

use osmosis_core::RunTag;
use osmosis_store::{Catalogue, RunKey, RunKind, RunPlace, RunSize, StoreError, StoreErrorKind};

pub use archive::{archive, archived_runs, restore};
pub use former_names::{renamed_from, runs_once_called};
pub use prune::{KeepReason, PruneRules, Pruning, prune};
pub use removal::{RunToRemove, to_remove};
pub use rename::{Renamed, rename};
pub use uses::{RunUse, RunUses, UseKind};

use super::FoundRun;
use super::reference::kind_word;
use super::stores::catalogue;
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

/// All kinds of runs, in the order they are listed.
pub const KINDS: [RunKind; 3] = [RunKind::Evaluation, RunKind::Training, RunKind::Serving];

/// How a run of a catalogue is named where kinds are mixed.
pub fn reference_of(run: &RunKey) -> String {
    format!("{}/{}", kind_word(run.kind), run.name)
}

impl FoundRun {
    pub fn key(&self) -> RunKey {
        RunKey {
            kind: self.kind,
            name: self.name.clone(),
        }
    }
}

/// A run with the room that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizedRun {
    pub run: RunKey,
    pub place: RunPlace,
    pub size: RunSize,
    pub tags: Vec<RunTag>,
}

impl SizedRun {
    async fn of(catalogue: &dyn Catalogue, run: &RunKey) -> Result<Self, RunError> {
        let place = RunPlace::Listed(run.clone());
        // Labels that can't be read are no reason not to show the run.
        let labels = catalogue.labels(run).await.unwrap_or_default();
        Ok(Self {
            run: run.clone(),
            size: catalogue.size(&place).await?,
            place,
            tags: labels.tags.into_iter().collect(),
        })
    }

    pub fn is_archived(&self) -> bool {
        matches!(self.place, RunPlace::Archived(_))
    }
}

/// How much room these runs take, or all runs of the workspace with the archived ones; the largest first.
pub async fn sizes(workspace: &Workspace, runs: &[String]) -> Result<Vec<SizedRun>, RunError> {
    let catalogue = catalogue(workspace)?;
    let mut found = vec![];
    for run in runs {
        let run = FoundRun::of_any_kind(workspace, run).await?.key();
        found.push(SizedRun::of(&*catalogue, &run).await?);
    }
    if runs.is_empty() {
        for kind in KINDS {
            for entry in catalogue.list(kind).await? {
                found.push(SizedRun::of(&*catalogue, &entry.key).await?);
            }
            for archived in catalogue.archived(kind).await? {
                let place = RunPlace::Archived(archived.id);
                found.push(SizedRun {
                    run: archived.key,
                    size: catalogue.size(&place).await?,
                    place,
                    tags: archived.labels.tags.into_iter().collect(),
                });
            }
        }
    }
    found.sort_by_key(|sized| std::cmp::Reverse(sized.size.bytes));
    Ok(found)
}

/// Adds tags to a run and takes others away; returns the run and the tags it has then.
pub async fn tag(
    workspace: &Workspace,
    run: &str,
    add: &[RunTag],
    remove: &[RunTag],
) -> Result<(FoundRun, Vec<RunTag>), RunError> {
    let run = FoundRun::of_any_kind(workspace, run).await?;
    let catalogue = catalogue(workspace)?;
    let labels = if add.is_empty() && remove.is_empty() {
        catalogue.labels(&run.key()).await?
    } else {
        catalogue.tag(&run.key(), add, remove).await?
    };
    Ok((run, labels.tags.into_iter().collect()))
}

/// The error of a catalogue, as it is told of a run that a person named.
fn told(error: StoreError, run: &RunKey) -> RunError {
    let name = reference_of(run);
    match error.kind() {
        StoreErrorKind::Held => RunError::failed(
            RunErrorKind::RunHeld,
            match &error {
                StoreError::Held { holder, .. } => format!("run `{name}` is held by {holder}"),
                other => other.to_string(),
            },
        )
        .hint(match run.kind {
            RunKind::Evaluation | RunKind::Training => {
                format!(
                    "`osmosis {} stop {}` stops it",
                    kind_word(run.kind),
                    run.name
                )
            }
            RunKind::Serving => "stop that process first".to_owned(),
        }),
        StoreErrorKind::AlreadyExists => {
            RunError::failed(RunErrorKind::FileExists, error.to_string())
                .hint("choose another name")
        }
        StoreErrorKind::NotFound => RunError::failed(RunErrorKind::RunNotFound, error.to_string()),
        StoreErrorKind::InvalidUrl
        | StoreErrorKind::Closed
        | StoreErrorKind::DiskFull
        | StoreErrorKind::Denied
        | StoreErrorKind::Unreachable
        | StoreErrorKind::Unreadable
        | StoreErrorKind::Altered => error.into(),
    }
}
