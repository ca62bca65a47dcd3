//! `osmosis dataset validate`.

use camino::Utf8Path;
use osmosis_core::config::DatasetRef;
use osmosis_data::{DataError, Report};
use serde_json::json;

use crate::error::{CliError, Exit};
use crate::output::Output;
use crate::workspace::{Workspace, absolute};

pub(crate) fn validate(
    file: &Utf8Path,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, CliError> {
    // A file that is there is meant; otherwise a name of the workspace's.
    let path = if absolute(file)?.is_file() {
        absolute(file)?
    } else {
        let reference: DatasetRef = file
            .as_str()
            .parse()
            .map_err(|error| CliError::usage("usage", format!("{error}")))?;
        match Workspace::find(workspace, None) {
            Ok(found) => osmosis_data::resolve(&reference, &found.root)
                .map_err(|error| data_error(&error))?,
            Err(_) => {
                return Err(CliError::usage(
                    "file_not_found",
                    format!("`{file}` is not there"),
                ));
            }
        }
    };
    let report = osmosis_data::validate(&path).map_err(|error| data_error(&error))?;
    check(&report)?;
    output.line(format_args!("{path}: {} rows, all good", report.rows));
    output.operation("valid", &report);
    Ok(Exit::Ok)
}

/// Refuses a dataset with bad rows, naming each with its line.
pub(crate) fn check(report: &Report) -> Result<(), CliError> {
    if report.error_count > 0 {
        let message = format!(
            "`{}` has {} bad rows:\n{}",
            report.path,
            report.error_count,
            report.render_errors().trim_end()
        );
        return Err(CliError::failed("dataset_invalid", message)
            .details(json!({ "bad_rows": report.error_count, "rows": report.errors })));
    }
    report.check().map_err(|error| data_error(&error))
}

pub(crate) fn data_error(error: &DataError) -> CliError {
    CliError::failed("dataset_invalid", error.to_string()).maybe_hint(error.hint())
}
