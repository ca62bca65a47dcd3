//! `osmosis dataset validate`.

use camino::Utf8Path;
use osmosis_core::config::DatasetRef;
use osmosis_data::{Dataset, Taking};
use osmosis_run::{RunError, RunErrorKind};

use crate::checked_dataset::{checked, data_error};
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::{Workspace, absolute};

pub(crate) fn validate(
    file: &Utf8Path,
    taking: Taking,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    // A file that is there is meant; otherwise a name of the workspace's.
    let path = if absolute(file)?.is_file() {
        absolute(file)?
    } else {
        let reference: DatasetRef = file
            .as_str()
            .parse()
            .map_err(|error| RunError::usage(RunErrorKind::Usage, format!("{error}")))?;
        match Workspace::find(workspace, None) {
            Ok(found) => osmosis_data::resolve(&reference, &found.root)
                .map_err(|error| data_error(&error))?,
            Err(_) => {
                return Err(RunError::usage(
                    RunErrorKind::FileNotFound,
                    format!("`{file}` is not there"),
                ));
            }
        }
    };
    let dataset = Dataset::open(&path).map_err(|error| data_error(&error))?;
    let dataset = dataset.with(taking);
    let report = checked(&dataset).map_err(|error| {
        let whole = dataset.with(Taking::WholeRows);
        if taking == Taking::Columns && checked(&whole).is_ok() {
            error.hint(
                "a workflow of AReaL's shape takes rows with any columns: these would do, see \
                 `--any-columns`",
            )
        } else {
            error
        }
    })?;
    output.line(format_args!("{path}: {} rows, all good", report.rows));
    output.operation("valid", &report);
    Ok(Exit::Ok)
}
