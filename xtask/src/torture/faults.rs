//! What is done to a run: signals, limits, hostile agents. Each is counted where it took effect.

use std::fmt;
use std::time::Duration;

use rand::RngExt as _;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use super::process::{self, Engine, ProcessInfo};
use super::rounds::Round;

/// Whom a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Victim {
    Eval,
    Train,
    TrainServe,
    Serve,
    Gateway,
    /// The process between an engine and its workers.
    Guard,
    /// The process that workers are forked from.
    Template,
    Worker,
    /// A process that an agent started.
    AgentChild,
}

impl Victim {
    pub(super) fn has_workers(self) -> bool {
        matches!(
            self,
            Self::Eval | Self::Train | Self::TrainServe | Self::Serve
        )
    }
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eval => "`eval submit`",
            Self::Train => "`train submit`",
            Self::TrainServe => "`train serve`",
            Self::Serve => "`serve`",
            Self::Gateway => "`gateway`",
            Self::Guard => "a guard of workers",
            Self::Template => "a template of workers",
            Self::Worker => "a worker",
            Self::AgentChild => "an agent's child",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Blow {
    Kill,
    Terminate,
    Interrupt,
    /// Stopped for a moment, then let go on.
    Pause,
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "SIGKILL",
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
            Self::Pause => "SIGSTOP and SIGCONT",
        })
    }
}

/// What an agent does that it should not, by the first word of its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deed {
    Child,
    Daemon,
    Orphan,
    KillParent,
    KillSelf,
    Print,
    Deep,
    Escape,
    Leak,
    Block,
}

impl Deed {
    pub(super) const ALL: [Self; 10] = [
        Self::Child,
        Self::Daemon,
        Self::Orphan,
        Self::KillParent,
        Self::KillSelf,
        Self::Print,
        Self::Deep,
        Self::Escape,
        Self::Leak,
        Self::Block,
    ];

    /// What reaches a terminal raw where nobody takes care.
    pub(super) const ESCAPES: [&str; 4] = [
        "\u{1b}]0;owned",
        "\u{1b}[2Jprinted",
        "\u{1b}[31mraised",
        "\u{9b}2J",
    ];

    /// The first word of the prompt.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Child => "child",
            Self::Daemon => "daemon",
            Self::Orphan => "orphan",
            Self::KillParent => "kill_parent",
            Self::KillSelf => "kill_self",
            Self::Print => "print",
            Self::Deep => "deep",
            Self::Escape => "escape",
            Self::Leak => "leak",
            Self::Block => "block",
        }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Child => "leaves a child behind",
            Self::Daemon => "leaves a `setsid` child behind",
            Self::Orphan => "leaves a double-forked `setsid` daemon behind",
            Self::KillParent => "kills its parent",
            Self::KillSelf => "kills itself",
            Self::Print => "prints 32 MiB",
            Self::Deep => "returns JSON nested 2,000 deep",
            Self::Escape => "prints and raises escape sequences",
            Self::Leak => "prints and raises a secret",
            Self::Block => "blocks its event loop",
        })
    }
}

/// A fault that was injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    Signal(Blow, Victim),
    /// Killed, and everything that was not synced to the disk undone or torn.
    PowerCut(Victim),
    DiskFull,
    Descriptors(Victim),
    Memory,
    ClockJump,
    /// A call that the upstream did not answer as it should.
    Upstream(&'static str),
    /// A callback that its receiver refused.
    ReceiverRefused,
    Hostile(Deed),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(blow, victim) => write!(f, "{blow} of {victim}"),
            Self::PowerCut(victim) => write!(f, "power cut in {victim} (unsynced writes undone)"),
            Self::DiskFull => f.write_str("full disk"),
            Self::Descriptors(victim) => write!(f, "no more file descriptors for {victim}"),
            Self::Memory => f.write_str("no more memory for a worker"),
            Self::ClockJump => f.write_str("jump of the wall clock"),
            Self::Upstream(what) => write!(f, "upstream {what}"),
            Self::ReceiverRefused => f.write_str("callback refused with 503"),
            Self::Hostile(deed) => write!(f, "agent that {deed}"),
        }
    }
}

/// Whether the engine was told to end by a strike, or is expected to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Struck {
    GoesOn,
    Ends(Blow),
}

impl Round<'_> {
    /// A random blow to the engine or to something below it.
    pub(super) fn strike(&mut self, engine: &mut Engine) -> Struck {
        if self.random.random_bool(0.45) {
            return self.strike_engine(engine);
        }
        let below = process::below(engine.pid());
        let alive: Vec<&ProcessInfo> = below.iter().filter(|process| !process.zombie).collect();
        if alive.is_empty() {
            return Struck::GoesOn;
        }
        let process = alive[self.random.random_range(0..alive.len())];
        let victim = role(process, &below);
        let blow = match self.random.random_range(0..4) {
            0 | 1 => Blow::Kill,
            2 => Blow::Terminate,
            _ => Blow::Pause,
        };
        self.deal(blow, process.pid, victim);
        Struck::GoesOn
    }

    /// A random blow to the engine itself.
    pub(super) fn strike_engine(&mut self, engine: &Engine) -> Struck {
        let blow = match self.random.random_range(0..10) {
            0..=4 => Blow::Kill,
            5 | 6 => Blow::Terminate,
            7 => Blow::Interrupt,
            _ => Blow::Pause,
        };
        self.blow(blow, engine)
    }

    pub(super) fn blow(&mut self, blow: Blow, engine: &Engine) -> Struck {
        self.deal(blow, engine.pid(), engine.victim);
        match blow {
            Blow::Pause => Struck::GoesOn,
            Blow::Kill | Blow::Terminate | Blow::Interrupt => Struck::Ends(blow),
        }
    }

    fn deal(&mut self, blow: Blow, pid: u32, victim: Victim) {
        let hit = match blow {
            Blow::Kill => process::signal(pid, Signal::KILL),
            Blow::Terminate => process::signal(pid, Signal::TERM),
            Blow::Interrupt => process::signal(pid, Signal::INT),
            Blow::Pause => {
                let stopped = process::signal(pid, Signal::STOP);
                self.wait_up_to(Duration::from_millis(900));
                // Whoever died meanwhile needs no more.
                let _ = process::signal(pid, Signal::CONT);
                stopped
            }
        };
        if hit {
            self.table.injected(Fault::Signal(blow, victim));
        }
    }

    /// Leaves the engine hardly any file descriptors beyond those it has open.
    pub(super) fn take_descriptors(&mut self, engine: &Engine) {
        let open = std::fs::read_dir(format!("/proc/{}/fd", engine.pid())).map(Iterator::count);
        let Ok(open) = open else { return };
        let most = open as u64 + self.random.random_range(0..5);
        if set_limit(engine.pid(), Resource::Nofile, most) {
            self.table.injected(Fault::Descriptors(engine.victim));
        }
    }

    /// Leaves one worker hardly any memory beyond what it has.
    pub(super) fn take_memory(&mut self, engine: &Engine) {
        let below = process::below(engine.pid());
        let workers: Vec<u32> = below
            .iter()
            .filter(|process| role(process, &below) == Victim::Worker)
            .map(|process| process.pid)
            .collect();
        if workers.is_empty() {
            return;
        }
        let pid = workers[self.random.random_range(0..workers.len())];
        let Some(used) = process::virtual_bytes(pid) else {
            return;
        };
        let most = used + self.random.random_range(0..16 << 20);
        if set_limit(pid, Resource::As, most) {
            self.table.injected(Fault::Memory);
        }
    }
}

/// What a process below an engine is.
fn role(process: &ProcessInfo, all: &[ProcessInfo]) -> Victim {
    // What is forked keeps the arguments of what it was forked from.
    let forked =
        |other: &ProcessInfo| other.parent == process.pid && other.command == process.command;
    if process.command.contains(super::workspace::CHILD_MARK) {
        Victim::AgentChild
    } else if process.command.contains(" worker-guard") {
        Victim::Guard
    } else if all.iter().any(forked) {
        Victim::Template
    } else {
        Victim::Worker
    }
}

fn set_limit(pid: u32, resource: Resource, most: u64) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let limit = Rlimit {
        current: Some(most),
        maximum: None,
    };
    // The hard limit stays, where lowering it is all that is allowed.
    let lowered = Rlimit {
        maximum: Some(most),
        ..limit
    };
    prlimit(Some(pid), resource, limit).is_ok() || prlimit(Some(pid), resource, lowered).is_ok()
}
