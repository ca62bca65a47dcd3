//! `labels.json` in the folder of a run: what people noted on it. Not in the database, so that a run can be marked while a
//! process writes to it, and by a program that can't read the rest.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};

use camino::Utf8Path;
use osmosis_core::{RunName, RunTag};
use osmosis_store::{RunKind, RunLabels, StoreError};
use serde::{Deserialize, Serialize};

use crate::private::private_file;

const FILE: &str = "labels.json";

/// The file as it is. Fields that a later version adds are lost when this one writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LabelsFile {
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) tags: BTreeSet<RunTag>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) former_names: Vec<RunName>,
    /// What an archived run is, whose folder does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) archived_kind: Option<RunKind>,
}

impl LabelsFile {
    pub(super) fn read(run: &Utf8Path) -> Result<Self, StoreError> {
        let path = run.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| StoreError::damaged(&path, error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(StoreError::io(&path, &error)),
        }
    }

    /// Writes the file whole or not at all; there is none where there is nothing to say.
    pub(super) fn write(&self, run: &Utf8Path) -> Result<(), StoreError> {
        let path = run.join(FILE);
        let temporary = run.join(format!("{FILE}.tmp"));
        let failed = |error: io::Error| StoreError::io(&path, &error);
        if *self == Self::default() {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
                Ok(()) | Err(_) => Ok(()),
            };
        }
        let bytes = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        let mut file = private_file()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary)
            .map_err(failed)?;
        file.write_all(&bytes).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&temporary, &path).map_err(failed)
    }

    pub(super) fn labels(self) -> RunLabels {
        RunLabels {
            tags: self.tags,
            former_names: self.former_names,
        }
    }
}

/// Keeps others from changing labels at the same time, until it is dropped. Where folders can't be locked there is no such
/// thing, and the last one wins.
pub(super) fn editing(state_folder: &Utf8Path) -> Option<File> {
    let folder = File::open(state_folder).ok()?;
    folder.lock().ok()?;
    Some(folder)
}
