//! `osmosis man`.

use camino::Utf8Path;
use clap::CommandFactory;
use osmosis_run::reports::WrittenPages;
use osmosis_run::{RunError, io_error as io};

use crate::error::Exit;
use crate::output::Output;
use crate::workspace::absolute;

/// One page for each command: `osmosis.1`, `osmosis-eval-submit.1`, …
pub(crate) fn run(folder: &Utf8Path, output: &Output) -> Result<Exit, RunError> {
    let folder = absolute(folder)?;
    let failed = |error: std::io::Error| io(&folder, &error);
    std::fs::create_dir_all(&folder).map_err(failed)?;
    clap_mangen::generate_to(crate::arguments::Arguments::command(), &folder).map_err(failed)?;
    output.line(format_args!("The manual pages are in {folder}"));
    output.operation(
        "written",
        &WrittenPages {
            output_path: folder,
        },
    );
    Ok(Exit::Ok)
}
