//! Commands that we suggest to the user.

use osmosis_run::RunError;

pub(crate) use osmosis_run::reports::suggested_command as suggest;

/// The error, with the command that goes on with the run.
pub(crate) fn with_resume_hint(error: RunError, command: &str) -> RunError {
    let resume = format!("resume with `{command}`");
    let hint = match error.hint_text() {
        Some(hint) => {
            let first = hint.trim_end_matches(", then resume the run");
            format!("{first}, then {resume}")
        }
        None => resume,
    };
    error.hint(hint)
}
