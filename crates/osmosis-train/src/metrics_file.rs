//! `metrics.jsonl`: one line per step, a projection of the step records in the store.

use std::fs::{File, OpenOptions};
use std::io::Write;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::StepRecord;

use crate::{TrainError, durable_file};

pub(crate) const FILE_NAME: &str = "metrics.jsonl";

/// The open file.
#[derive(Debug)]
pub(crate) struct MetricsFile {
    path: Utf8PathBuf,
    file: File,
}

impl MetricsFile {
    /// Makes the file hold exactly these steps, and opens it for more.
    pub(crate) fn rewrite(folder: &Utf8Path, steps: &[StepRecord]) -> Result<Self, TrainError> {
        let path = folder.join(FILE_NAME);
        let mut content = String::new();
        for step in steps {
            content.push_str(step.metrics.as_str());
            content.push('\n');
        }
        durable_file::replace(&path, content.as_bytes())?;
        let file = OpenOptions::new()
            .append(true)
            .open(&path)
            .map_err(|error| TrainError::file(&path, &error))?;
        Ok(Self { path, file })
    }

    /// Adds a step.
    pub(crate) fn append(&mut self, step: &StepRecord) -> Result<(), TrainError> {
        let line = format!("{}\n", step.metrics.as_str());
        self.file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(|error| TrainError::file(&self.path, &error))
    }
}
