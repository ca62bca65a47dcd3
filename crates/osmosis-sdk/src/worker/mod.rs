//! A worker process, from its first connection to its end.
//!
//! One thread reads frames and never waits for user code, so that a cancel, a shutdown and the end
//! of the engine are noticed whatever user code does. One thread writes frames. User code runs on a
//! runtime of its own.

mod connection;
mod loading;
mod process;
mod serving;

use std::panic::Location;

use osmosis_core::frame::{ADDRESS_VARIABLE, TOKEN_ON_STDIN, TOKEN_VARIABLE};

use self::connection::{Channel, DialError};
use self::process::{Exit, give_up, leave};
use self::serving::{End, Server};
use crate::{AgentWorkflow, Grader, panics};

/// Serves the engine until it is done with this worker. The last line of `main`; never returns.
///
/// The engine passes its address in `OSMOSIS_WORKER_ADDR`, and a token on standard input, which
/// `OSMOSIS_WORKER_TOKEN=stdin` says: so `main` must not read standard input, which is empty from here on.
/// (Another value of that variable is the token itself, for workers of other machines.) The token opens each
/// channel once. Started without them, by hand, the program says how to run it and exits with 2.
///
/// On Linux, other processes of the same user can't trace this one from here on, nor read its memory.
///
/// Standard output and error lead to the run's log from here on. `main` may be async, and may
/// prepare whatever the workflow shares between rollouts. `run` and `grade` execute on a
/// multi-threaded tokio runtime of this function's own; `TOKIO_WORKER_THREADS` sets its size.
#[track_caller]
pub fn run_worker<W: AgentWorkflow, G: Grader>(workflow: W, grader: G) -> ! {
    let called_from = Location::caller();
    // Not on the caller's thread: that may belong to a runtime, where waiting is forbidden.
    let server = std::thread::Builder::new()
        .name("osmosis-control".to_owned())
        .spawn(move || serve(workflow, grader, called_from));
    match server {
        Ok(server) => match server.join() {
            Ok(end) => match end {},
            Err(_) => leave(Exit::Broken),
        },
        Err(error) => give_up(&format!("no thread can be started: {error}"), Exit::Broken),
    }
}

/// Has no values: whoever returns it does not return.
enum Never {}

fn serve<W: AgentWorkflow, G: Grader>(
    workflow: W,
    grader: G,
    called_from: &'static Location<'static>,
) -> Never {
    let (Some(address), Some(token)) = (variable(ADDRESS_VARIABLE), variable(TOKEN_VARIABLE))
    else {
        give_up(&how_to_run(), Exit::Usage);
    };
    process::hide_from_other_processes();
    let token = match token.as_str() {
        TOKEN_ON_STDIN => process::read_input(),
        _ => token,
    };
    process::die_with_parent();
    let no_engine = |error: DialError| -> ! {
        give_up(
            &format!("no connection to the engine at `{address}`: {error}"),
            Exit::NoEngine,
        )
    };
    let control = match connection::dial(&address, &token, Channel::Control) {
        Ok(control) => control,
        Err(error) => no_engine(error),
    };
    match connection::dial(&address, &token, Channel::Output) {
        Ok(output) => process::point_output_at(&output),
        Err(error) => no_engine(error),
    }
    panics::install_hook();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("osmosis-task")
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => give_up(&format!("no runtime: {error}"), Exit::Broken),
    };
    process::ignore_interrupts(&runtime);
    let server = Server::new(workflow, grader, called_from, runtime.handle().clone());
    match server.serve(control) {
        End::Shutdown => leave(Exit::Done),
        End::Disconnected => leave(Exit::Disconnected),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn how_to_run() -> String {
    format!(
        "this program is the worker of a rollout: `osmosis` starts it\n\
         hint: name its Cargo.toml in an eval config and submit that:\n\
         \n    \
         [experiment]\n    \
         rollout = \"NAME\"            # this project is the folder rollouts/NAME\n    \
         entrypoint = \"Cargo.toml\"\n\
         \n    \
         osmosis eval submit configs/eval/NAME.toml\n\
         \n\
         ({ADDRESS_VARIABLE} and {TOKEN_VARIABLE} are not set)"
    )
}
