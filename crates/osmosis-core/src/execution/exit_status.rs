use std::fmt;

/// How a process ended, as whoever collected it was told by the kernel.
///
/// Displays as the predicate of a sentence: `exited with code 3`, `was killed by signal 9 (SIGKILL)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It ended by itself with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It is gone, and nobody learned how.
    Unknown,
}

impl ExitStatus {
    /// From the two numbers of a wait status, of which at most one is there.
    pub fn of(code: Option<i32>, signal: Option<i32>) -> Self {
        match (code, signal) {
            (_, Some(signal)) => Self::Signal(signal),
            (Some(code), None) => Self::Code(code),
            (None, None) => Self::Unknown,
        }
    }

    /// Whether somebody else may have brought it about: any process of the same user, the kernel when memory runs
    /// out, an operator. Exit codes and faults are the process's own doing.
    pub fn may_be_anybodys(self) -> bool {
        match self {
            Self::Code(_) => false,
            Self::Signal(signal) => !SIGNALS
                .iter()
                .any(|known| known.number == signal && known.own),
            Self::Unknown => true,
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => match SIGNALS.iter().find(|known| known.number == *signal) {
                Some(known) => write!(f, "was killed by signal {signal} ({})", known.name),
                None => write!(f, "was killed by signal {signal}"),
            },
            Self::Unknown => f.write_str("ended"),
        }
    }
}

struct KnownSignal {
    number: i32,
    name: &'static str,
    /// A process brings it upon itself. Others could send it, but nobody does.
    own: bool,
}

const fn sent(number: i32, name: &'static str) -> KnownSignal {
    KnownSignal {
        number,
        name,
        own: false,
    }
}

const fn own(number: i32, name: &'static str) -> KnownSignal {
    KnownSignal {
        number,
        name,
        own: true,
    }
}

/// The numbers of x86 and ARM Linux.
#[cfg(not(any(target_vendor = "apple", target_os = "freebsd")))]
const SIGNALS: [KnownSignal; 18] = [
    sent(1, "SIGHUP"),
    sent(2, "SIGINT"),
    sent(3, "SIGQUIT"),
    own(4, "SIGILL"),
    own(5, "SIGTRAP"),
    own(6, "SIGABRT"),
    own(7, "SIGBUS"),
    own(8, "SIGFPE"),
    sent(9, "SIGKILL"),
    sent(10, "SIGUSR1"),
    own(11, "SIGSEGV"),
    sent(12, "SIGUSR2"),
    own(13, "SIGPIPE"),
    own(14, "SIGALRM"),
    sent(15, "SIGTERM"),
    own(24, "SIGXCPU"),
    own(25, "SIGXFSZ"),
    own(31, "SIGSYS"),
];

/// The numbers of BSD and macOS.
#[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
const SIGNALS: [KnownSignal; 18] = [
    sent(1, "SIGHUP"),
    sent(2, "SIGINT"),
    sent(3, "SIGQUIT"),
    own(4, "SIGILL"),
    own(5, "SIGTRAP"),
    own(6, "SIGABRT"),
    own(8, "SIGFPE"),
    sent(9, "SIGKILL"),
    own(10, "SIGBUS"),
    own(11, "SIGSEGV"),
    own(12, "SIGSYS"),
    own(13, "SIGPIPE"),
    own(14, "SIGALRM"),
    sent(15, "SIGTERM"),
    own(24, "SIGXCPU"),
    own(25, "SIGXFSZ"),
    sent(30, "SIGUSR1"),
    sent(31, "SIGUSR2"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_as_its_code_or_the_name_of_its_signal() {
        let text = |code, signal| ExitStatus::of(code, signal).to_string();
        assert_eq!(text(Some(3), None), "exited with code 3");
        assert_eq!(text(None, Some(11)), "was killed by signal 11 (SIGSEGV)");
        assert_eq!(text(None, Some(63)), "was killed by signal 63");
        assert_eq!(text(None, None), "ended");
    }

    #[test]
    fn exit_codes_and_faults_are_its_own_and_other_signals_may_be_anybodys() {
        assert!(!ExitStatus::Code(0).may_be_anybodys());
        for own in [4, 6, 8, 11] {
            assert!(!ExitStatus::Signal(own).may_be_anybodys(), "{own}");
        }
        for sent in [1, 2, 9, 15, 63] {
            assert!(ExitStatus::Signal(sent).may_be_anybodys(), "{sent}");
        }
        assert!(ExitStatus::Unknown.may_be_anybodys(), "nobody knows");
    }
}
