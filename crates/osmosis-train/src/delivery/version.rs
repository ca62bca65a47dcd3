//! The version of a policy behind servers, which do not know what they were announced as.

use std::fs;
use std::io::ErrorKind;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::PolicyVersion;
use serde::{Deserialize, Serialize};

use crate::{TrainError, durable_file};

/// A file of the run that says which version was announced last.
#[derive(Debug, Clone)]
pub struct AnnouncedVersion {
    path: Utf8PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Content {
    version: PolicyVersion,
}

impl AnnouncedVersion {
    pub fn kept_in(run_folder: &Utf8Path) -> Self {
        Self {
            path: run_folder.join("policy.json"),
        }
    }

    /// `None` when nothing was announced yet.
    pub fn read(&self) -> Result<Option<PolicyVersion>, TrainError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(TrainError::file(&self.path, &error)),
        };
        let content: Content = serde_json::from_str(&text).map_err(|error| TrainError::File {
            path: self.path.clone(),
            message: error.to_string(),
            full: false,
        })?;
        Ok(Some(content.version))
    }

    pub(super) fn write(&self, version: PolicyVersion) -> Result<(), TrainError> {
        let text = serde_json::to_string(&Content { version })
            .map_err(|error| TrainError::Internal(error.to_string()))?;
        durable_file::replace(&self.path, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_that_was_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let kept = AnnouncedVersion::kept_in(Utf8Path::from_path(folder.path()).unwrap());
        assert_eq!(kept.read().unwrap(), None);
        for version in [PolicyVersion(1), PolicyVersion(7)] {
            kept.write(version).unwrap();
            assert_eq!(kept.read().unwrap(), Some(version));
        }
    }
}
