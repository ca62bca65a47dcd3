//! A dataset whose rows are all good.

use camino::Utf8Path;
use osmosis_core::config::DatasetRef;
use osmosis_core::frame::Manifest;
use osmosis_data::{Dataset, Row, RowContent, Taking};
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::NewRow;

use crate::dataset::{checked, data_error};
use crate::workspace::Workspace;

#[derive(Debug)]
pub(crate) struct CheckedDataset {
    dataset: Dataset,
    pub(crate) sha256: String,
    pub(crate) rows: u64,
    /// Why it is for no workflow but one that takes rows as they are.
    unfit: Option<RunError>,
}

/// A row, as far as it is compared with others.
#[derive(Debug)]
pub(crate) struct ComparedRow {
    pub(crate) line: u64,
    pub(crate) content: RowContent,
    /// It says that its phrasing is never trained on.
    pub(crate) is_unseen_phrasing: bool,
}

impl CheckedDataset {
    /// Finds the dataset and looks at every row.
    pub(crate) fn open(reference: &DatasetRef, workspace: &Workspace) -> Result<Self, RunError> {
        let path = osmosis_data::resolve(reference, &workspace.root)
            .map_err(|error| data_error(&error))?;
        let dataset = Dataset::open(&path).map_err(|error| data_error(&error))?;
        match checked(&dataset) {
            Ok(report) => Ok(Self {
                dataset,
                sha256: report.sha256,
                rows: report.rows,
                unfit: None,
            }),
            Err(unfit) => {
                let dataset = dataset.with(Taking::WholeRows);
                // What is wrong with its rows whoever takes them is told at once.
                let Ok(report) = checked(&dataset) else {
                    return Err(unfit);
                };
                Ok(Self {
                    dataset,
                    sha256: report.sha256,
                    rows: report.rows,
                    unfit: Some(unfit),
                })
            }
        }
    }

    /// Whether only the user's code can say if these rows will do.
    pub(crate) fn depends_on_workflow(&self) -> bool {
        self.unfit.is_some()
    }

    /// Refuses rows that this workflow can't be given.
    pub(crate) fn check_for(&self, workflow: &Manifest) -> Result<(), RunError> {
        if workflow.self_graded {
            return Ok(());
        }
        self.check_columns()
    }

    /// Refuses rows that can't be made into prompt, label and metadata.
    pub(crate) fn check_columns(&self) -> Result<(), RunError> {
        self.unfit.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn path(&self) -> &Utf8Path {
        self.dataset.path()
    }

    /// Reads the rows again, one at a time.
    pub(crate) fn read(&self) -> impl Iterator<Item = Result<NewRow, RunError>> + '_ {
        self.dataset.rows().map(|row| {
            row.map(|row: Row| NewRow {
                row_index: row.index,
                line: row.line,
                body: row.body,
            })
            .map_err(|error| self.changed(&error.to_string()))
        })
    }

    /// What its rows are compared by, one at a time.
    pub(crate) fn contents(
        &self,
        taking: Taking,
    ) -> impl Iterator<Item = Result<ComparedRow, RunError>> + '_ {
        self.dataset.rows().map(move |row| {
            let row = row.map_err(|error| self.changed(&error.to_string()))?;
            Ok(ComparedRow {
                line: row.line,
                content: row.content(taking),
                is_unseen_phrasing: osmosis_train::is_unseen_phrasing(&row.body),
            })
        })
    }

    fn changed(&self, why: &str) -> RunError {
        RunError::failed(
            RunErrorKind::DatasetChanged,
            format!("`{}`: {why}", self.path()),
        )
        .hint("the dataset changed while it was read; submit again")
    }

    /// Refuses when the file is no longer what was checked.
    pub(crate) fn check_unchanged(&self) -> Result<(), RunError> {
        let report = self
            .dataset
            .validate()
            .map_err(|error| data_error(&error))?;
        if report.sha256 == self.sha256 {
            return Ok(());
        }
        Err(RunError::failed(
            RunErrorKind::DatasetChanged,
            format!("`{}` changed while it was read", self.path()),
        )
        .hint("submit again with `--fresh`, so that the run holds one version of it"))
    }
}
