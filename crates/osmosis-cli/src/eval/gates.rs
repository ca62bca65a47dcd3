//! `--fail-under`: how the gates of a run turned out, for people.

use osmosis_run::reports::RunReport;

use crate::error::Exit;
use crate::output::Output;

/// Numbers of a run that is not complete may still move.
pub(crate) const NOT_JUDGED: &str = "--fail-under: not judged, the run is not complete";

/// Says how each gate turned out.
pub(crate) fn tell(report: &RunReport, output: &Output) -> Exit {
    for result in report.gates.iter().flatten() {
        output.note(format_args!("--fail-under: {}", result.text()));
    }
    if report.gates_hold() {
        Exit::Ok
    } else {
        Exit::Gate
    }
}

/// Tells the end of a complete run; `status` when nothing is below.
pub(crate) fn conclude(report: &RunReport, status: &str, output: &Output) -> Exit {
    let exit = tell(report, output);
    let status = if exit == Exit::Gate {
        "below_gate"
    } else {
        status
    };
    output.operation(status, report);
    exit
}
