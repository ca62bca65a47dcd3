//! Reads what one process says until it ends, and finds out how it ended.

use std::time::Duration;

use osmosis_core::frame::FromWorker;

use super::connection::{FrameReader, ReadError};
use super::process::Exit;

/// What a process said just before it ended still counts; this long we wait for it.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// From a closed connection to the news of how the process ended.
const EXIT_NEWS_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Lifeline {
    reader: FrameReader,
    exit: Exit,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Alive,
    Ended(String),
    /// Its parent is gone, so nobody will tell how it ends.
    Orphan,
}

/// How it was over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    Left(String),
    BrokeProtocol(String),
    /// It went with the process that it was forked from; nobody knows how, and it was not its doing.
    Orphaned,
}

impl Ending {
    pub(super) fn detail(self) -> String {
        match self {
            Self::Left(detail) => detail,
            Self::Orphaned => "went with the process that it was forked from".to_owned(),
            Self::BrokeProtocol(what) => format!("broke the protocol: {what}"),
        }
    }
}

impl Lifeline {
    pub(super) fn new(reader: FrameReader, exit: Exit) -> Self {
        Self {
            reader,
            exit,
            state: State::Alive,
        }
    }

    /// The next frame. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<FromWorker, Ending> {
        if let State::Alive = self.state {
            tokio::select! {
                biased;
                frame = self.reader.next() => return self.judge(frame).await,
                detail = self.exit.wait() => {
                    self.state = detail.map_or(State::Orphan, State::Ended);
                }
            }
        }
        let frame = match &self.state {
            State::Ended(detail) => {
                match tokio::time::timeout(DRAIN_LIMIT, self.reader.next()).await {
                    Ok(frame) => frame,
                    Err(_) => return Err(Ending::Left(detail.clone())),
                }
            }
            State::Alive | State::Orphan => self.reader.next().await,
        };
        self.judge(frame).await
    }

    async fn judge(&mut self, frame: Result<FromWorker, ReadError>) -> Result<FromWorker, Ending> {
        match frame {
            Ok(frame) => Ok(frame),
            Err(ReadError::NotAFrame(what)) => Err(Ending::BrokeProtocol(what)),
            Err(ReadError::Closed) => {
                let news = match &self.state {
                    State::Ended(detail) => Ok(Some(detail.clone())),
                    State::Orphan => Ok(None),
                    State::Alive => tokio::time::timeout(EXIT_NEWS_LIMIT, self.exit.wait()).await,
                };
                Err(match news {
                    Ok(Some(detail)) => Ending::Left(detail),
                    Ok(None) => Ending::Orphaned,
                    Err(_) => Ending::Left("closed its connection".to_owned()),
                })
            }
        }
    }
}
