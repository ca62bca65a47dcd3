//! A dataset whose rows are all good.

use camino::Utf8Path;
use osmosis_core::config::{DatasetColumns, DatasetRef};
use osmosis_core::frame::Manifest;
use osmosis_data::{DataError, Dataset, Report, Row, RowContent, Taking};
use osmosis_store::NewRow;

use crate::reports::{BadRow, ErrorDetails};
use crate::workspace::Workspace;
use crate::{RunError, RunErrorKind};

#[derive(Debug)]
pub struct CheckedDataset {
    dataset: Dataset,
    pub sha256: String,
    pub rows: u64,
    /// Why it is for no workflow but one that takes rows as they are.
    unfit: Option<RunError>,
}

/// A row, as far as it is compared with others.
#[derive(Debug)]
pub struct ComparedRow {
    pub line: u64,
    pub content: RowContent,
    /// It says that its phrasing is never trained on.
    pub is_unseen_phrasing: bool,
}

impl CheckedDataset {
    /// Finds the dataset and looks at every row.
    pub fn open(
        reference: &DatasetRef,
        columns: &DatasetColumns,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        let path = osmosis_data::resolve(reference, &workspace.root)
            .map_err(|error| data_error(&error))?;
        let dataset = Dataset::open(&path).map_err(|error| data_error(&error))?;
        let dataset = dataset.with_columns(columns.clone());
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
    pub fn depends_on_workflow(&self) -> bool {
        self.unfit.is_some()
    }

    /// Refuses rows that this workflow can't be given.
    pub fn check_for(&self, workflow: &Manifest) -> Result<(), RunError> {
        if workflow.self_graded {
            return Ok(());
        }
        self.check_columns()
    }

    /// Refuses rows that can't be made into prompt, label and metadata.
    pub fn check_columns(&self) -> Result<(), RunError> {
        self.unfit.clone().map_or(Ok(()), Err)
    }

    pub fn path(&self) -> &Utf8Path {
        self.dataset.path()
    }

    /// Reads the rows again, one at a time.
    pub fn read(&self) -> impl Iterator<Item = Result<NewRow, RunError>> + '_ {
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
    pub fn contents(
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
    pub fn check_unchanged(&self) -> Result<(), RunError> {
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

/// Reads every row, and refuses a dataset with a bad one.
pub fn checked(dataset: &Dataset) -> Result<Report, RunError> {
    let report = dataset.validate().map_err(|error| data_error(&error))?;
    check(&report)?;
    Ok(report)
}

/// Refuses a dataset with bad rows, naming each with its line.
fn check(report: &Report) -> Result<(), RunError> {
    if report.error_count > 0 {
        let message = format!(
            "`{}` has {}:\n{}",
            report.path,
            match report.error_count {
                1 => "one bad row".to_owned(),
                count => format!("{count} bad rows"),
            },
            report.render_errors().trim_end()
        );
        let details = ErrorDetails::Dataset {
            bad_rows: report.error_count,
            rows: report.errors.iter().map(BadRow::of).collect(),
        };
        return Err(RunError::failed(RunErrorKind::DatasetInvalid, message).details(details));
    }
    report.check().map_err(|error| data_error(&error))
}

pub fn data_error(error: &DataError) -> RunError {
    RunError::failed(RunErrorKind::DatasetInvalid, error.to_string()).maybe_hint(error.hint())
}
