//! How a process ended, and whether anybody but its own code can have brought that about.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::Signal;
use tokio::sync::watch;

/// The end of a process, as its parent tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Departure {
    /// `exited with code 3`, `was killed by signal 11 (SIGSEGV)`.
    pub(super) detail: String,
    /// By a signal that any process of this user, or the kernel, may have sent.
    pub(super) signalled: bool,
}

impl Departure {
    /// An end that only the process's own code brings about.
    pub(super) fn own(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            signalled: false,
        }
    }

    pub(super) fn of_status(status: ExitStatus) -> Self {
        Self::of(status.code(), status.signal())
    }

    pub(super) fn of(code: Option<i32>, signal: Option<i32>) -> Self {
        let detail = match (code, signal) {
            (_, Some(signal)) => match signal_name(signal) {
                Some(name) => format!("was killed by signal {signal} ({name})"),
                None => format!("was killed by signal {signal}"),
            },
            (Some(code), None) => format!("exited with code {code}"),
            (None, None) => "ended".to_owned(),
        };
        Self {
            detail,
            signalled: match signal {
                Some(signal) => !FAULTS.iter().any(|fault| fault.as_raw() == signal),
                None => code.is_none(),
            },
        }
    }
}

/// What is known of a process that is over, or will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExitNews {
    Ended(Departure),
    /// The process that it was forked from ended like this, so that nobody will tell how it ends itself.
    ParentEnded(Departure),
}

/// Brings the news to whoever waits. The sender going away means that nobody will know.
#[derive(Debug, Clone)]
pub(super) struct Exit(watch::Receiver<Option<ExitNews>>);

impl Exit {
    pub(super) fn channel() -> (watch::Sender<Option<ExitNews>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    pub(super) async fn wait(&mut self) -> ExitNews {
        match self
            .0
            .wait_for(Option::is_some)
            .await
            .map(|news| news.clone())
        {
            Ok(Some(news)) => news,
            Ok(None) | Err(_) => ExitNews::ParentEnded(Departure::of(None, None)),
        }
    }
}

/// Signals that a process brings upon itself. Others could send them, but nobody does.
const FAULTS: [Signal; 11] = [
    Signal::ILL,
    Signal::TRAP,
    Signal::ABORT,
    Signal::BUS,
    Signal::FPE,
    Signal::SEGV,
    Signal::PIPE,
    Signal::ALARM,
    Signal::XCPU,
    Signal::XFSZ,
    Signal::SYS,
];

fn signal_name(signal: i32) -> Option<&'static str> {
    let known = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::SYS, "SIGSYS"),
    ];
    known
        .into_iter()
        .find(|(known, _)| known.as_raw() == signal)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_told_by_code_or_by_the_name_of_the_signal() {
        let detail = |code, signal| Departure::of(code, signal).detail;
        assert_eq!(detail(Some(3), None), "exited with code 3");
        assert_eq!(detail(None, Some(11)), "was killed by signal 11 (SIGSEGV)");
        assert_eq!(detail(None, Some(63)), "was killed by signal 63");
        assert_eq!(detail(None, None), "ended");
    }

    #[test]
    fn exit_codes_and_faults_are_its_own_and_other_signals_may_be_anybodys() {
        let signalled = |code, signal| Departure::of(code, signal).signalled;
        assert!(!signalled(Some(0), None));
        for own in [4, 6, 7, 8, 11, 31] {
            assert!(!signalled(None, Some(own)), "{own}");
        }
        for sent in [1, 2, 9, 10, 15, 63] {
            assert!(signalled(None, Some(sent)), "{sent}");
        }
        assert!(signalled(None, None), "nobody knows");
    }
}
