//! What became of runs that people renamed, tagged, archived, restored, removed or measured.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use osmosis_core::RunTag;
use osmosis_store::{ArchivedRun, RunKey, RunPlace};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run_folder::RunFolder;
use crate::runs::FoundRun;
use crate::runs::kept::{
    KeepReason, Pruning, Renamed, RunToRemove, RunUse, SizedRun, reference_of,
};
use crate::workspace::Workspace;

/// An item of `run du --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunSizeReport {
    /// `KIND/NAME`, as commands take it.
    pub run: String,
    pub run_name: String,
    /// The id that `run restore` and `run rm --archived` take; left out for a run that is listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_id: Option<String>,
    /// The sizes of its files.
    pub bytes: u64,
    /// The same by what they are for: `database`, `calls`, `checkpoints`, `artifacts`, …
    pub parts: BTreeMap<String, u64>,
    pub tags: Vec<RunTag>,
}

impl RunSizeReport {
    pub fn of(sized: SizedRun) -> Self {
        Self {
            run: reference_of(&sized.run),
            run_name: sized.run.name.to_string(),
            archive_id: archive_id(&sized.place),
            bytes: sized.size.bytes,
            parts: sized.size.parts,
            tags: sized.tags,
        }
    }
}

/// A run that is removed, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedRun {
    /// `KIND/NAME`.
    pub run: String,
    pub run_name: String,
    /// Of a run that was archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_id: Option<String>,
    pub bytes: u64,
    /// Who named it.
    pub used_by: Vec<RunUse>,
}

/// A run that is old by the rules, and stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptRun {
    /// `KIND/NAME`.
    pub run: String,
    pub reason: KeepReason,
}

/// The `resource` of `run rm --json` and `run prune --json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovalReport {
    /// Nothing was touched.
    pub dry_run: bool,
    pub removed: Vec<RemovedRun>,
    /// Bytes that are free now, or would be.
    pub bytes: u64,
    /// Runs that pruning passed over, with why.
    pub kept: Vec<KeptRun>,
}

impl RemovalReport {
    pub fn of(removals: &[RunToRemove], dry_run: bool) -> Self {
        Self {
            dry_run,
            bytes: removals.iter().map(|one| one.size.bytes).sum(),
            removed: removals
                .iter()
                .map(|one| RemovedRun {
                    run: reference_of(&one.run),
                    run_name: one.run.name.to_string(),
                    archive_id: archive_id(&one.place),
                    bytes: one.size.bytes,
                    used_by: one.used_by.clone(),
                })
                .collect(),
            kept: vec![],
        }
    }

    pub fn of_pruning(pruning: &Pruning, dry_run: bool) -> Self {
        Self {
            kept: pruning
                .kept
                .iter()
                .map(|(run, reason)| KeptRun {
                    run: reference_of(run),
                    reason: *reason,
                })
                .collect(),
            ..Self::of(&pruning.remove, dry_run)
        }
    }
}

/// The `resource` of `run archive --json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArchivalReport {
    pub runs: Vec<MovedRun>,
}

/// A run that has another place or name now; the `resource` of `run restore` and `run rename` with `--json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MovedRun {
    /// `KIND/NAME`.
    pub run: String,
    pub run_name: String,
    /// What it was called before, after a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_name: Option<String>,
    /// What `run restore` takes, after an archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_id: Option<String>,
    /// Where it is now.
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
    /// Who names it as it was called before.
    pub used_by: Vec<RunUse>,
}

impl MovedRun {
    pub fn archived(run: &ArchivedRun, workspace: &Workspace) -> Self {
        Self {
            archive_id: Some(run.id.clone()),
            ..Self::at(&run.key, RunFolder::of_archived(workspace, run).path)
        }
    }

    pub fn restored(run: &RunKey, workspace: &Workspace) -> Self {
        Self::at(run, RunFolder::of(workspace, run.kind, &run.name).path)
    }

    pub fn renamed(renamed: &Renamed) -> Self {
        Self {
            former_name: Some(renamed.former_name.to_string()),
            used_by: renamed.used_by.clone(),
            ..Self::at(&renamed.run, renamed.folder.path.clone())
        }
    }

    fn at(run: &RunKey, output_path: Utf8PathBuf) -> Self {
        Self {
            run: reference_of(run),
            run_name: run.name.to_string(),
            former_name: None,
            archive_id: None,
            output_path,
            used_by: vec![],
        }
    }
}

/// The `resource` of `run tag --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaggedRun {
    /// `KIND/NAME`.
    pub run: String,
    pub run_name: String,
    /// All tags that it has now.
    pub tags: Vec<RunTag>,
}

impl TaggedRun {
    pub fn of(run: &FoundRun, tags: Vec<RunTag>) -> Self {
        Self {
            run: run.to_string(),
            run_name: run.name.to_string(),
            tags,
        }
    }
}

fn archive_id(place: &RunPlace) -> Option<String> {
    match place {
        RunPlace::Listed(_) => None,
        RunPlace::Archived(id) => Some(id.clone()),
    }
}
