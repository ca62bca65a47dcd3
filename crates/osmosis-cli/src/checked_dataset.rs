//! A dataset whose rows are all good.

use camino::Utf8Path;
use osmosis_core::config::DatasetRef;
use osmosis_data::{Dataset, Row};
use osmosis_store::NewRow;

use crate::dataset::{check, data_error};
use crate::error::CliError;
use crate::workspace::Workspace;

#[derive(Debug)]
pub(crate) struct CheckedDataset {
    dataset: Dataset,
    pub(crate) sha256: String,
    pub(crate) rows: u64,
}

impl CheckedDataset {
    /// Finds the dataset and looks at every row.
    pub(crate) fn open(reference: &DatasetRef, workspace: &Workspace) -> Result<Self, CliError> {
        let path = osmosis_data::resolve(reference, &workspace.root)
            .map_err(|error| data_error(&error))?;
        let dataset = Dataset::open(&path).map_err(|error| data_error(&error))?;
        let report = dataset.validate().map_err(|error| data_error(&error))?;
        check(&report)?;
        Ok(Self {
            dataset,
            sha256: report.sha256,
            rows: report.rows,
        })
    }

    pub(crate) fn path(&self) -> &Utf8Path {
        self.dataset.path()
    }

    /// Reads the rows again, one at a time.
    pub(crate) fn read(&self) -> impl Iterator<Item = Result<NewRow, CliError>> + '_ {
        self.dataset.rows().map(|row| {
            row.map(|row: Row| NewRow {
                row_index: row.index,
                line: row.line,
                body: row.body,
            })
            .map_err(|error| {
                CliError::failed("dataset_changed", format!("`{}`: {error}", self.path()))
                    .hint("the dataset changed while it was read; submit again")
            })
        })
    }

    /// Refuses when the file is no longer what was checked.
    pub(crate) fn check_unchanged(&self) -> Result<(), CliError> {
        let report = self
            .dataset
            .validate()
            .map_err(|error| data_error(&error))?;
        if report.sha256 == self.sha256 {
            return Ok(());
        }
        Err(CliError::failed(
            "dataset_changed",
            format!("`{}` changed while it was read", self.path()),
        )
        .hint("submit again with `--fresh`, so that the run holds one version of it"))
    }
}
