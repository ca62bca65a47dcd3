//! `osmosis completions SHELL`, and what the script that it prints asks for at every TAB.
//!
//! The scripts know nothing of our commands: they start this program with [`VARIABLE`] set and the words so far, and it
//! answers with what may come next. So runs, rows and configs are those of the workspace, and a script stays right when the
//! program gets new commands.

mod candidates;
mod words;

use std::io::Write as _;

use clap::{CommandFactory, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::RunKind;

use self::words::Words;
use crate::arguments::Arguments;

/// Set by the scripts, to the name of the shell.
const VARIABLE: &str = "OSMOSIS_COMPLETE";
const PROGRAM: &str = "osmosis";

/// Prints the script of a shell.
pub(crate) fn run(shell: clap_complete::Shell) -> Result<(), RunError> {
    let mut script = vec![];
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string()).ok_or_else(|| {
        RunError::usage(
            RunErrorKind::Usage,
            format!("there are no completions for `{shell}`"),
        )
    })?;
    completer
        .write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)
        .map_err(|error| RunError::failed(RunErrorKind::Io, error.to_string()))?;
    // A closed pipe is no reason to fail.
    let _ = std::io::stdout().write_all(&script);
    Ok(())
}

/// Answers a script and ends the program, when it was started by one.
pub(crate) fn answer_if_asked() {
    CompleteEnv::with_factory(completing_command)
        .var(VARIABLE)
        .bin(PROGRAM)
        .complete();
}

/// Our commands, with what completes the arguments that name something in the workspace. They are found by their ids, so
/// that a new command that takes a `run` has it completed, too.
fn completing_command() -> clap::Command {
    with_completers(Arguments::command(), None)
}

fn with_completers(command: clap::Command, kind: Option<RunKind>) -> clap::Command {
    let name = command.get_name().to_owned();
    let kind = match name.as_str() {
        "eval" => Some(RunKind::Evaluation),
        "train" => Some(RunKind::Training),
        _ => kind,
    };
    let options_wanted = Words::current_is_option();
    let with_arguments = command.mut_args(|argument| {
        // Whoever presses TAB behind a command looks for runs and files; options come behind a dash.
        let argument = if argument.is_positional() || options_wanted {
            argument
        } else {
            argument.hide(true)
        };
        let id = argument.get_id().as_str().to_owned();
        match (id.as_str(), name.as_str()) {
            ("run" | "runs", _) => {
                argument.add(completer(move |words| candidates::runs(words, kind)))
            }
            ("archived_run", _) => argument.add(completer(candidates::archived)),
            ("row", _) => argument.add(completer(move |words| candidates::rows(words, kind))),
            ("config", _) => {
                argument.add(ArgValueCompleter::new(move |current: &std::ffi::OsStr| {
                    candidates::configs(&Words::typed(), kind, current)
                }))
            }
            ("rollout", "logs") => {
                argument.add(completer(move |words| candidates::rollout_ids(words, kind)))
            }
            ("project" | "rollout", _) => argument.add(completer(candidates::projects)),
            ("workspace", _) => argument.value_hint(ValueHint::DirPath),
            _ => argument,
        }
    });
    with_arguments
        .disable_help_flag(!options_wanted)
        .disable_version_flag(!options_wanted)
        .mut_subcommands(move |sub| with_completers(sub, kind))
}

/// What completes an argument with those candidates that begin as what is typed.
fn completer(
    candidates: impl Fn(&Words) -> Vec<CompletionCandidate> + Send + Sync + 'static,
) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &std::ffi::OsStr| {
        let typed = current.to_string_lossy();
        let mut found = candidates(&Words::typed());
        found.retain(|one| one.get_value().to_string_lossy().starts_with(&*typed));
        found
    })
}
