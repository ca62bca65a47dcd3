//! Reads what one process says until it ends, and finds out how it ended.

use std::time::Duration;

use osmosis_core::frame::FromWorker;

use super::connection::{FrameReader, ReadError};
use super::exit::{Departure, Exit, ExitNews};

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
    Ended(Departure),
    /// Its parent is gone, so nobody will tell how it ends.
    Orphan(Departure),
}

/// How it was over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    Left(Departure),
    BrokeProtocol(String),
    /// It went with the process that it was forked from, which ended like this.
    Orphaned(Departure),
}

impl Ending {
    pub(super) fn departure(self) -> Departure {
        match self {
            Self::Left(departure) => departure,
            Self::Orphaned(parent) => Departure::WithParent(Box::new(parent)),
            Self::BrokeProtocol(what) => Departure::BrokeProtocol(what),
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
                news = self.exit.wait() => {
                    self.state = match news {
                        ExitNews::Ended(departure) => State::Ended(departure),
                        ExitNews::ParentEnded(parent) => State::Orphan(parent),
                    };
                }
            }
        }
        let frame = match &self.state {
            State::Ended(departure) => {
                match tokio::time::timeout(DRAIN_LIMIT, self.reader.next()).await {
                    Ok(frame) => frame,
                    Err(_) => return Err(Ending::Left(departure.clone())),
                }
            }
            State::Alive | State::Orphan(_) => self.reader.next().await,
        };
        self.judge(frame).await
    }

    async fn judge(&mut self, frame: Result<FromWorker, ReadError>) -> Result<FromWorker, Ending> {
        match frame {
            Ok(frame) => Ok(frame),
            Err(ReadError::NotAFrame(what)) => Err(Ending::BrokeProtocol(what)),
            Err(ReadError::Closed) => {
                let news = match &self.state {
                    State::Ended(departure) => Ok(ExitNews::Ended(departure.clone())),
                    State::Orphan(parent) => Ok(ExitNews::ParentEnded(parent.clone())),
                    State::Alive => tokio::time::timeout(EXIT_NEWS_LIMIT, self.exit.wait()).await,
                };
                Err(match news {
                    Ok(ExitNews::Ended(departure)) => Ending::Left(departure),
                    Ok(ExitNews::ParentEnded(parent)) => Ending::Orphaned(parent),
                    Err(_) => Ending::Left(Departure::ClosedConnection),
                })
            }
        }
    }
}
