//! How a process ended, and whether anybody but its own code can have brought that about.

use std::fmt;
use std::os::unix::process::ExitStatusExt;

use osmosis_core::execution::ExitStatus;
use tokio::sync::watch;

/// The end of a process of the pool. Displays as the predicate of a sentence, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Departure {
    /// Whoever collected it was told this.
    Exited(ExitStatus),
    /// It ended, and its parent could not learn how.
    Unobserved(String),
    /// It went with the process that it was forked from, which ended like this.
    WithParent(Box<Departure>),
    /// Its guard ended first, like this, and it was ended for that.
    LostGuard(Box<Departure>),
    /// What it sent is against the protocol.
    BrokeProtocol(String),
    /// Its connection ended, and nothing more is known.
    ClosedConnection,
    /// We ended it, because of what it held when there is a reason.
    Killed { reason: Option<String> },
    /// It was asked to leave, and did.
    AskedToLeave,
    /// It is not ours, and we are through with it.
    LetGo,
    /// The pool is gone.
    Abandoned,
}

impl Departure {
    pub(crate) fn of_status(status: std::io::Result<std::process::ExitStatus>) -> Self {
        match status {
            Ok(status) => Self::Exited(ExitStatus::of(status.code(), status.signal())),
            Err(error) => Self::Unobserved(error.to_string()),
        }
    }

    /// Whether somebody else than the process's own code may have brought it about, by a signal.
    pub(crate) fn may_be_anybodys(&self) -> bool {
        match self {
            Self::Exited(status) => status.may_be_anybodys(),
            Self::Unobserved(_) | Self::WithParent(_) | Self::LostGuard(_) => true,
            Self::BrokeProtocol(_)
            | Self::ClosedConnection
            | Self::Killed { .. }
            | Self::AskedToLeave
            | Self::LetGo
            | Self::Abandoned => false,
        }
    }
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => status.fmt(f),
            Self::Unobserved(error) => write!(f, "ended, and how is unknown: {error}"),
            Self::WithParent(parent) => write!(
                f,
                "went with the process that it was forked from, which {parent}"
            ),
            Self::LostGuard(guard) => write!(f, "was ended because its guard process {guard}"),
            Self::BrokeProtocol(what) => write!(f, "broke the protocol: {what}"),
            Self::ClosedConnection => f.write_str("closed its connection"),
            Self::Killed { reason: None } => f.write_str("was killed"),
            Self::Killed {
                reason: Some(reason),
            } => write!(f, "was killed: {reason}"),
            Self::AskedToLeave => f.write_str("was asked to leave"),
            Self::LetGo => f.write_str("was let go"),
            Self::Abandoned => f.write_str("was abandoned"),
        }
    }
}

/// What is known of a process that is over, or will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExitNews {
    Ended(Departure),
    /// The process that it was forked from ended like this, so that nobody will tell how it ends itself.
    ParentEnded(Departure),
}

/// Brings the news to whoever waits. The sender going away means that nobody will know.
#[derive(Debug, Clone)]
pub(crate) struct Exit(watch::Receiver<Option<ExitNews>>);

impl Exit {
    pub(crate) fn channel() -> (watch::Sender<Option<ExitNews>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    pub(crate) async fn wait(&mut self) -> ExitNews {
        match self
            .0
            .wait_for(Option::is_some)
            .await
            .map(|news| news.clone())
        {
            Ok(Some(news)) => news,
            Ok(None) | Err(_) => ExitNews::ParentEnded(Departure::Exited(ExitStatus::Unknown)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_signal_may_have_done_is_anybodys() {
        let killed = Departure::Exited(ExitStatus::Signal(9));
        let with_parent = Departure::WithParent(Box::new(killed.clone()));
        for anybodys in [
            &killed,
            &with_parent,
            &Departure::Unobserved("no such child".to_owned()),
        ] {
            assert!(anybodys.may_be_anybodys(), "{anybodys}");
        }
        for own in [
            Departure::Exited(ExitStatus::Signal(11)),
            Departure::Exited(ExitStatus::Code(0)),
            Departure::ClosedConnection,
            Departure::Killed { reason: None },
        ] {
            assert!(!own.may_be_anybodys(), "{own}");
        }
        assert_eq!(
            with_parent.to_string(),
            "went with the process that it was forked from, which was killed by signal 9 (SIGKILL)"
        );
    }
}
