//! Places in the queue and at endpoints: both are given back when they are dropped.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::breaker::Health;
use super::super::endpoint::Endpoint;
use super::{Grant, NoneLeft, Pool, full};
use crate::policy::{Fault, FaultKind};

/// A place in the queue.
pub(super) struct Place<'a> {
    pool: &'a Arc<Pool>,
    number: u64,
    granted: oneshot::Receiver<Result<Grant, NoneLeft>>,
}

impl<'a> Place<'a> {
    pub(super) fn new(
        pool: &'a Arc<Pool>,
        number: u64,
        granted: oneshot::Receiver<Result<Grant, NoneLeft>>,
    ) -> Self {
        Self {
            pool,
            number,
            granted,
        }
    }

    pub(super) async fn wait(mut self) -> Result<Ticket, Fault> {
        let limit = self.pool.queue.wait;
        match tokio::time::timeout(limit, &mut self.granted).await {
            Ok(Ok(served)) => self.pool.ticket(served),
            // The pool holds the other end for as long as it lives, and we hold the pool.
            Ok(Err(_)) | Err(_) => Err(full(&format!("no endpoint had room for {limit:?}"))),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        if let Some(at) = state
            .waiting
            .iter()
            .position(|waiting| waiting.number == self.number)
        {
            state.waiting.remove(at);
        } else if let Ok(Ok(grant)) = self.granted.try_recv() {
            // Granted and not taken: the caller went away in between.
            state.give_back(grant);
            state.settle();
        }
    }
}

/// A place at an endpoint; it is given back when this is dropped.
pub(in crate::policy::upstream) struct Ticket {
    pool: Arc<Pool>,
    grant: Grant,
    /// A stream has begun and not failed so far: if nothing else comes, it was fine.
    streaming: bool,
}

impl Ticket {
    pub(super) fn new(pool: Arc<Pool>, grant: Grant) -> Self {
        Self {
            pool,
            grant,
            streaming: false,
        }
    }

    pub(in crate::policy::upstream) fn lane(&self) -> usize {
        self.grant.lane
    }

    pub(in crate::policy::upstream) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.pool.endpoints[self.grant.lane]
    }

    /// The endpoint has answered, or refused what is the caller's own fault; or, when `streaming`, has begun
    /// to answer.
    pub(in crate::policy::upstream) fn succeeded(&mut self, streaming: bool) {
        self.streaming = streaming;
        let mut state = self.pool.state.lock();
        if let Some(lane) = state.lanes.get_mut(self.grant.lane) {
            // Streams that begin and always break must not look like one that is fine.
            if !streaming || lane.breaker.health() != Health::Closed {
                lane.breaker.succeeded();
                lane.last_error = None;
            }
            lane.adaptive.answered(lane.in_flight);
        }
        state.settle();
    }

    /// The call failed there.
    pub(in crate::policy::upstream) fn failed(
        &mut self,
        fault: &Fault,
        retry_after: Option<Duration>,
    ) {
        self.streaming = false;
        let now = Instant::now();
        let mut state = self.pool.state.lock();
        let Some(lane) = state.lanes.get_mut(self.grant.lane) else {
            return;
        };
        lane.failed_tries += 1;
        let overloaded = matches!(fault.status, 429 | 503);
        if overloaded {
            lane.rate_limited += 1;
            lane.adaptive
                .overloaded(self.grant.limit_epoch, lane.in_flight);
        }
        if let Some(rest) = retry_after {
            lane.rests_until = Some(now + rest.min(LONGEST_REST));
        }
        lane.last_error = Some(fault.message.clone());
        let counts = match fault.kind {
            FaultKind::Unreachable
            | FaultKind::TimedOut
            | FaultKind::ServerError
            | FaultKind::Garbage
            | FaultKind::CutShort => true,
            // It is alive and says so, or it is us who are wrong.
            FaultKind::Overloaded
            | FaultKind::Misconfigured
            | FaultKind::QueueFull
            | FaultKind::Paused
            | FaultKind::ToolsIgnored
            | FaultKind::OutOfDescriptors => false,
        };
        let opened = counts && lane.breaker.failed(self.grant.breaker_epoch, now);
        if opened {
            lane.since_opened = 0;
        }
        state.settle();
        drop(state);
        if opened {
            let upstream = &self.endpoint().name;
            tracing::warn!(%upstream, fault = %fault, "an upstream fails and is left alone for now");
            self.pool.look_after(self.grant.lane);
        }
    }
}

/// Longer than this no endpoint is avoided, whatever it asks for.
const LONGEST_REST: Duration = Duration::from_mins(1);

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        if self.streaming
            && let Some(lane) = state.lanes.get_mut(self.grant.lane)
        {
            lane.breaker.succeeded();
            lane.last_error = None;
        }
        state.give_back(self.grant);
        state.settle();
    }
}
