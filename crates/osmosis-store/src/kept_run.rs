//! What people do with runs that are over: mark them, put them away, delete them.

use std::collections::{BTreeMap, BTreeSet};

use osmosis_core::{RunName, RunTag};

use crate::{RunKey, StoreUrl};

/// What people have noted on a run, and what it was called before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunLabels {
    pub tags: BTreeSet<RunTag>,
    /// Oldest first. Whoever names the run by one of them still means it, unless another run has the name.
    pub former_names: Vec<RunName>,
}

/// A run that was taken out of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedRun {
    /// Its name in the archive, where several runs that had one name are kept.
    pub id: String,
    /// What it was.
    pub key: RunKey,
    pub url: StoreUrl,
    /// What was noted on it; nothing when that can't be read.
    pub labels: RunLabels,
}

/// Where a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunPlace {
    Listed(RunKey),
    /// By its [`ArchivedRun::id`].
    Archived(String),
}

/// The bytes that a run takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunSize {
    pub bytes: u64,
    /// The same by what they are for: `calls`, `checkpoints`, `artifacts`, …
    pub parts: BTreeMap<String, u64>,
}
