//! What a worker asks of its operating system.

use std::io::{Read, Write};

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::connection::Stream;

/// How the process ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Exit {
    Done,
    Disconnected,
    Usage,
    NoEngine,
    Broken,
}

impl Exit {
    fn code(self) -> i32 {
        match self {
            Self::Done => 0,
            Self::Disconnected => 1,
            Self::Usage => 2,
            Self::NoEngine => 3,
            Self::Broken => 70,
        }
    }
}

/// Ends the process, whatever user code still does.
pub(super) fn leave(exit: Exit) -> ! {
    std::process::exit(exit.code())
}

pub(super) fn give_up(message: &str, exit: Exit) -> ! {
    // Without standard error there is nobody to tell.
    drop(writeln!(std::io::stderr(), "osmosis worker: {message}"));
    leave(exit)
}

/// Asks the kernel to kill this process when its parent is gone; leaves at once if it is. The end
/// of the connection says the same, but not to a process that is stopped or swapped out.
pub(super) fn die_with_parent() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::process::{Signal, getppid, set_parent_process_death_signal};

        let parent = getppid();
        if set_parent_process_death_signal(Some(Signal::KILL)).is_ok() && getppid() != parent {
            leave(Exit::Disconnected);
        }
    }
}

/// Other processes of this user can't trace this one any more, nor read its memory.
pub(super) fn hide_from_other_processes() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        // One wall of several: a worker runs without it too.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// What is on standard input, which is closed then: user code finds it empty.
pub(super) fn read_input() -> String {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    let closed = std::fs::File::open("/dev/null").map(rustix::stdio::dup2_stdin);
    if let Err(error) = read.and_then(|_| closed?.map_err(Into::into)) {
        give_up(
            &format!("the token can't be read from standard input: {error}"),
            Exit::NoEngine,
        );
    }
    text
}

/// Leaves Ctrl-C to the engine. By a handler: subprocesses would inherit an ignored signal.
pub(super) fn ignore_interrupts(runtime: &Runtime) {
    let _context = runtime.enter();
    // Once registered it stays so for the life of the process.
    drop(signal(SignalKind::interrupt()));
}

/// From here on standard output and error lead to the engine.
pub(super) fn point_output_at(stream: &Stream) {
    // What is buffered was meant for the old place.
    drop(std::io::stdout().flush());
    let pointed =
        rustix::stdio::dup2_stdout(stream).and_then(|()| rustix::stdio::dup2_stderr(stream));
    if let Err(error) = pointed {
        give_up(
            &format!("standard output can't be redirected: {error}"),
            Exit::Broken,
        );
    }
}
