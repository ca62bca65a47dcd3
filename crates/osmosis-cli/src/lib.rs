//! The `osmosis` program: arguments, progress and the rendering of reports. It must never hold logic that another front end
//! needs, nor open a store.
//!
//! It is a library with a `main` of one line, because cargo begins a library while the crates below it are still being
//! compiled, and a program only afterwards.

mod arguments;
mod command_line;
mod completions;
mod dataset;
mod demo;
mod doctor;
mod error;
#[cfg(test)]
mod error_codes;
mod eval;
mod export;
mod gateway;
mod layout;
mod man;
mod model;
mod node;
mod notices;
mod output;
mod rollout_init;
mod rollout_run;
mod runs;
mod serve;
mod store_option;
mod table;
mod terminal;
mod train;
mod unknown_flags;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command, RolloutCommand};
use error::Exit;
// Under their names in this crate, too.
use osmosis_run::{RunError, RunErrorKind};
use osmosis_run::{
    checked_dataset, events, execution, figures, inference_server, own_environment, policy,
    private_files, run_folder, run_log, source_digest, stop_signals, template_trial, workspace,
};
use output::Output;

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    terminal::tame_panics();
    // Not commands for people: we start ourselves like this, once for each worker that we spawn and to try a
    // chat template out.
    if let Some(code) = osmosis_worker::guard::run_if_asked() {
        return code;
    }
    if let Some(code) = template_trial::run_if_asked() {
        return code;
    }
    if let Err(error) = own_environment::hide() {
        terminal::write_err(&format!(
            "warning: other processes can read the variables of this one: {error}\n"
        ));
    }
    template_trial::install();
    completions::answer_if_asked();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return output::usage_error(error),
    };
    let command_name = arguments.command.name();
    let output = Output::new(arguments.output, arguments.verbose, command_name);
    init_tracing(arguments.verbose);
    raise_file_limit();
    if arguments.command.makes_private_files() {
        private_files::begin();
    }
    let done = dispatch(arguments, &output);
    private_files::end();
    match done {
        Ok(exit) => exit.into(),
        Err(error) => output.fail(&error),
    }
}

fn dispatch(mut arguments: Arguments, output: &Output) -> Result<Exit, RunError> {
    let chosen = store_option::chosen(&mut arguments)?;
    let workspace = &chosen;
    match arguments.command {
        Command::Eval { command } => runtime()?.block_on(eval::run(command, workspace, output)),
        Command::Train { command } => runtime()?.block_on(train::run(command, workspace, output)),
        Command::Gateway(gateway) => runtime()?.block_on(gateway::run(gateway, workspace, output)),
        Command::Serve(serve) => runtime()?.block_on(serve::run(serve, workspace, output)),
        Command::Node(node) => runtime()?.block_on(node::run(*node, output)),
        Command::View(view) => runtime()?.block_on(view::run(view, workspace, output)),
        Command::Run { command } => runtime()?.block_on(runs::run(command, workspace, output)),
        Command::Model { command } => runtime()?.block_on(model::run(command, workspace, output)),
        Command::Demo(demo) => runtime()?.block_on(demo::run(demo, workspace, output)),
        Command::Rollout {
            command: RolloutCommand::Init(init),
        } => rollout_init::run(&init, workspace, output),
        Command::Rollout {
            command: RolloutCommand::Run(row),
        } => runtime()?.block_on(rollout_run::run(*row, workspace, output)),
        Command::Dataset { command } => dataset::run(command, workspace, output),
        Command::Export(export) => runtime()?.block_on(export::run(&export, workspace, output)),
        Command::Doctor(doctor) => runtime()?.block_on(doctor::run(&doctor, workspace, output)),
        Command::Completions { shell } => {
            completions::run(shell)?;
            Ok(Exit::Ok)
        }
        Command::Man { folder } => man::run(&folder, output),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, RunError> {
    if osmosis_core::clock::now_ms() < 0 {
        // The HTTP library panics at every connection then, which would be blamed on agents.
        let message = "the clock of this machine is before 1970";
        return Err(RunError::failed(RunErrorKind::Runtime, message)
            .hint("set it: HTTP has no words for such a time"));
    }
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| RunError::failed(RunErrorKind::Runtime, format!("cannot start: {error}")))
}

/// Every rollout that waits on a model holds a connection, and the usual soft limit is 1,024. Workers
/// inherit what is set here.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // As good as the system lets us have; a run that needs more will say so.
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: maximum,
                maximum,
            },
        );
    }
}

/// Diagnostics of the program itself. The run's own events go to its `logs.txt`.
fn init_tracing(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let default = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("OSMOSIS_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_ansi(colours)
        .with_env_filter(filter)
        .with_writer(|| terminal::LogOut)
        .without_time()
        .init();
}
