//! What a worker asks of its operating system.

use std::io::Write;

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
