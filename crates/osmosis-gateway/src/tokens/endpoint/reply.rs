//! One answer of a token endpoint while it is sampled.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use osmosis_core::PolicyVersion;
use osmosis_core::generation::GenerationError;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::outbox::Outbox;
use super::wire::Event;

/// The lines of an answer, as they come. Dropping it ends the sampling.
#[derive(Debug)]
pub(super) struct ReplyLines {
    outbox: Arc<Outbox>,
    /// The first line, until it is sent.
    begun: Option<PolicyVersion>,
    alive: Interval,
    stop: CancellationToken,
    done: bool,
    /// One of the generations that may be under way.
    _permit: OwnedSemaphorePermit,
}

impl ReplyLines {
    pub(super) fn new(
        outbox: Arc<Outbox>,
        version: PolicyVersion,
        alive_every: Duration,
        stop: CancellationToken,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let first = tokio::time::Instant::now() + alive_every;
        let mut alive = interval_at(first, alive_every);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            outbox,
            begun: Some(version),
            alive,
            stop,
            done: false,
            _permit: permit,
        }
    }

    /// The next lines: all that there are by now.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Infallible>> {
        if self.done {
            return None;
        }
        let mut lines = BytesMut::new();
        if let Some(version) = self.begun.take() {
            let version = version.0;
            Event::Begun { version }.write(&mut lines);
        }
        loop {
            let (tokens, end) = self.outbox.take();
            for token in &tokens {
                Event::Token(token.into()).write(&mut lines);
            }
            if let Some(end) = end {
                self.done = true;
                match end {
                    Ok(reason) => Event::End(reason),
                    Err(error) => Event::Failed(error.into()),
                }
                .write(&mut lines);
            }
            if !lines.is_empty() {
                return Some(Ok(lines.freeze()));
            }
            tokio::select! {
                biased;
                () = self.outbox.news() => {}
                () = self.stop.cancelled() => {
                    self.done = true;
                    Event::Failed(GenerationError::ShutDown.into()).write(&mut lines);
                    return Some(Ok(lines.freeze()));
                }
                _ = self.alive.tick() => {
                    Event::Alive.write(&mut lines);
                    return Some(Ok(lines.freeze()));
                }
            }
        }
    }
}

impl Drop for ReplyLines {
    fn drop(&mut self) {
        self.outbox.close();
    }
}
