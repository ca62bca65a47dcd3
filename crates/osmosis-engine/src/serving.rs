//! Driving a queue that never ends: rollouts are added, cancelled and asked after while it runs.

use std::sync::Arc;

use osmosis_core::{Durations, Outcome, Phase, RolloutId};
use osmosis_store::CallSummary;
use tokio::sync::Notify;

use crate::driver::{CLAIM_BATCH, Flight, look_due};
use crate::live::Standing;
use crate::others::{Duty, Others};
use crate::reading::Reading;
use crate::{Engine, EngineError, RunEvent, Stop};

/// What became of the wish to cancel a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancellation {
    /// It runs; it will end with the outcome `Cancelled`.
    Running,
    /// It waits; it will get the outcome `Cancelled` without having run.
    Queued,
    /// It has a result already, or was never there.
    NotFound,
}

impl Engine {
    /// Runs what is queued and idles when nothing is, until it is asked to stop: *drain* finishes what
    /// runs. Whoever adds to the queue says so by `wake`. One at a time.
    pub async fn serve(&self, stop: &Stop, wake: &Arc<Notify>) -> Result<(), EngineError> {
        let mut flight = Flight::default();
        let served = self.drive_forever(stop, wake, &mut flight).await;
        if served.is_err() {
            flight.tasks.abort_all();
        }
        while flight.tasks.join_next().await.is_some() {}
        served
    }

    async fn drive_forever(
        &self,
        stop: &Stop,
        wake: &Arc<Notify>,
        flight: &mut Flight,
    ) -> Result<(), EngineError> {
        let mut heartbeat = self.heartbeat();
        let mut draining = false;
        let mut unusable = self.parts.sessions.run_fault();
        let mut others = match self.parts.reading {
            // What serves requests has no nodes.
            Reading::ServedRequests => None,
            Reading::DatasetRows | Reading::WholeRows => {
                Others::begin(&self.parts, Duty::Controls).await?
            }
        };
        let mut others = others.as_mut().map(|(others, _)| others);
        loop {
            // Before the queue is looked at, so that nothing is added unseen.
            let woken = wake.notified();
            self.end_cancelled().await?;
            if !draining {
                self.fill_beside(stop, flight, others.as_deref_mut())
                    .await?;
            } else if flight.tasks.is_empty() {
                let over = match &mut others {
                    // Those who are alive finish what they hold.
                    Some(others) => others.are_done(stop, draining).await?.is_some(),
                    None => true,
                };
                if over {
                    return Ok(());
                }
            }
            let has_room = flight.tasks.len() < self.parts.options.max_in_flight;
            tokio::select! {
                biased;
                fault = &mut unusable => return Err(EngineError::PolicyUnusable(fault)),
                () = stop.drain.cancelled(), if !draining => {
                    draining = true;
                    let in_flight = flight.tasks.len();
                    self.parts.tell(RunEvent::Draining { in_flight }).await;
                }
                Some(ended) = flight.tasks.join_next(), if !flight.tasks.is_empty() => {
                    flight.all_landed(ended)?;
                }
                () = woken => if let Some(others) = &mut others {
                    others.note_queued();
                },
                () = look_due(&mut others, has_room) => if let Some(others) = &mut others {
                    others.look(stop).await?;
                },
                _ = heartbeat.tick() => self.keep_leases(flight).await?,
            }
        }
    }

    /// Ends a rollout, wherever it stands. `serve` must be running, and is to be woken afterwards: a
    /// rollout that waits gets its result from there.
    pub async fn cancel(&self, id: &RolloutId) -> Result<Cancellation, EngineError> {
        match self.parts.live.cancel(id) {
            Standing::Running => return Ok(Cancellation::Running),
            Standing::Finished => return Ok(Cancellation::NotFound),
            Standing::Elsewhere => {}
        }
        match self.parts.store.rollout(id).await? {
            Some(record) if record.outcome.is_none() => Ok(Cancellation::Queued),
            Some(_) | None if self.parts.live.withdraw(id) => Ok(Cancellation::NotFound),
            // The driver was faster than this look into the store.
            Some(_) | None => Ok(Cancellation::Queued),
        }
    }

    /// The phase of a rollout that is under way.
    pub fn phase(&self, id: &RolloutId) -> Option<Phase> {
        self.parts.live.phase(id)
    }

    /// How many rollouts are under way.
    pub fn in_flight(&self) -> usize {
        self.parts.live.count()
    }

    /// Gives those that were cancelled while they waited their result. Nobody else is touched: what waits
    /// has not been tried.
    async fn end_cancelled(&self) -> Result<(), EngineError> {
        let parts = &self.parts;
        let waiting = parts.live.cancelled_waiting();
        // Together, so that the store commits them together; in batches, so that others get their turn.
        for ids in waiting.chunks(CLAIM_BATCH) {
            for id in parts.store.cancel(ids).await? {
                parts.live.finished(&id);
                parts
                    .tell(RunEvent::Finished {
                        id,
                        outcome: Outcome::Cancelled,
                        durations: Durations::default(),
                        calls: CallSummary::default(),
                    })
                    .await;
            }
        }
        Ok(())
    }
}
