//! The other processes that work on the run of an engine, where the store lets several do so.
//!
//! An engine that finds nothing to claim is not done while others hold leases: they may vanish, and then what they held
//! is claimed here. It looks when something has changed, and now and then when nothing has, because a lease that runs out
//! is no change.

use std::time::Duration;

use osmosis_store::{
    Changes, FinishedCursor, MemberKind, QueueCounts, RolloutRecord, RunStanding, RunStatus,
    SharedRun, StopRequest,
};
use tokio::time::{Instant, sleep_until};

use crate::driver::Parts;
use crate::{Claims, EngineError, RunEvent, Stop};

/// Between two looks, at least, however much changes: who finished what is shown to people.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same for a node that has no room for more.
const LOOK_EVERY_WHEN_FULL: Duration = Duration::from_secs(2);
/// Between two counts of the nodes.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// What an engine is to its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duty {
    /// It has the run: it reports what others finish, and waits for them when it is asked to stop.
    Controls,
    /// It is one of those who claim beside the controller.
    Node(NodeEnds),
}

/// When the engine of a node has nothing more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEnds {
    /// When nothing is queued or leased: everything that is to be run was queued at the beginning.
    WhenNothingIsLeft,
    /// When the run is over: more is queued while it goes on.
    WithTheRun,
}

/// Why the engine of a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEnd {
    /// Nothing is queued or leased.
    NothingLeft,
    /// The run is finished, or was interrupted.
    RunOver,
    /// It was asked to stop.
    Stopped,
}

#[derive(Debug)]
pub(crate) struct Others<'p> {
    parts: &'p Parts,
    shared: &'p dyn SharedRun,
    duty: Duty,
    changes: Changes,
    /// Something has changed since the last look.
    news: bool,
    looked_at: Instant,
    finished: FinishedCursor,
    standing: Option<RunStanding>,
    /// Nodes that are alive and begin new rollouts; counted where a share is taken.
    nodes: usize,
    counted_at: Option<Instant>,
    /// There may be something to claim: the queue was not found empty since the last look.
    may_claim: bool,
    told_draining: bool,
}

impl<'p> Others<'p> {
    /// Begins to look, and how the queue stands at this moment; `None` where one process has the run alone.
    pub(crate) async fn begin(
        parts: &'p Parts,
        duty: Duty,
    ) -> Result<Option<(Self, QueueCounts)>, EngineError> {
        let Some(shared) = parts.store.shared() else {
            return Ok(None);
        };
        let changes = parts.store.changes();
        let (finished, counts) = parts.answered(shared.watch_finished()).await?;
        let mut others = Self {
            parts,
            shared,
            duty,
            changes,
            news: false,
            looked_at: Instant::now(),
            finished,
            standing: None,
            nodes: 0,
            counted_at: None,
            may_claim: true,
            told_draining: false,
        };
        others.count_nodes().await?;
        Ok(Some((others, counts)))
    }

    /// Until it is time to look. Nothing is lost when this is given up.
    pub(crate) async fn due(&mut self, has_room: bool) {
        let latest = self.looked_at + self.parts.options.lease / 3;
        if !self.news {
            tokio::select! {
                changed = self.changes.wait() => match changed {
                    Ok(()) => self.news = true,
                    // A closed store says so where it is asked.
                    Err(_) => return sleep_until(latest).await,
                },
                () = sleep_until(latest) => return,
            }
        }
        let pause = match self.duty {
            Duty::Node(_) if !has_room => LOOK_EVERY_WHEN_FULL,
            Duty::Node(_) | Duty::Controls => LOOK_EVERY,
        };
        sleep_until((self.looked_at + pause).min(latest)).await;
    }

    /// Looks: tells what others have finished, or heeds what the run asks of its nodes.
    pub(crate) async fn look(&mut self, stop: &Stop) -> Result<(), EngineError> {
        self.news = false;
        self.looked_at = Instant::now();
        match self.duty {
            Duty::Controls => {
                self.tell_finished().await?;
                self.ask_standing().await?;
                self.count_nodes().await
            }
            Duty::Node(_) => self.heed(stop).await,
        }
    }

    /// Nodes that are alive and begin new rollouts.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    async fn count_nodes(&mut self) -> Result<(), EngineError> {
        let counted = self.counted_at.map(|at| at.elapsed());
        if self.parts.options.claims != Claims::Share
            || counted.is_some_and(|ago| ago < COUNT_EVERY)
        {
            return Ok(());
        }
        self.counted_at = Some(Instant::now());
        let members = self.parts.answered(self.shared.members()).await?;
        let nodes = members.iter().filter(|member| {
            let is_other = !member.is_self && member.kind == MemberKind::Node;
            is_other && member.alive && !member.draining
        });
        self.nodes = nodes.count();
        Ok(())
    }

    /// Whether a claim is worth its transaction.
    pub(crate) fn may_claim(&self) -> bool {
        self.may_claim
    }

    /// Something was queued here.
    pub(crate) fn note_queued(&mut self) {
        self.may_claim = true;
    }

    /// The queue was found empty.
    pub(crate) fn note_empty(&mut self) {
        self.may_claim = false;
    }

    async fn ask_standing(&mut self) -> Result<RunStanding, EngineError> {
        let standing = self.parts.answered(self.shared.standing()).await?;
        self.standing = Some(standing);
        if standing.claimable {
            self.may_claim = true;
            // Whoever claims and gets nothing, because another was faster, looks again soon.
            self.news = true;
        }
        Ok(standing)
    }

    /// Whether nothing is left to do or to wait for; nothing is under way here.
    pub(crate) async fn are_done(
        &mut self,
        stop: &Stop,
        draining: bool,
    ) -> Result<Option<NodeEnd>, EngineError> {
        match self.duty {
            Duty::Controls => self.controller_is_done(stop, draining).await,
            Duty::Node(ends) => {
                if draining {
                    return Ok(Some(if self.stopped_by_run() {
                        NodeEnd::RunOver
                    } else {
                        NodeEnd::Stopped
                    }));
                }
                self.heed(stop).await?;
                Ok(self.standing.and_then(|standing| match ends {
                    _ if is_over(standing) => Some(NodeEnd::RunOver),
                    NodeEnds::WhenNothingIsLeft if standing.is_idle() => Some(NodeEnd::NothingLeft),
                    NodeEnds::WhenNothingIsLeft | NodeEnds::WithTheRun => None,
                }))
            }
        }
    }

    async fn controller_is_done(
        &mut self,
        stop: &Stop,
        draining: bool,
    ) -> Result<Option<NodeEnd>, EngineError> {
        if draining {
            if !stop.now.is_cancelled() && self.living_hold_leases().await? {
                return Ok(None);
            }
            self.tell_finished().await?;
            return Ok(Some(NodeEnd::Stopped));
        }
        let standing = self.ask_standing().await?;
        if !standing.is_idle() {
            return Ok(None);
        }
        self.tell_finished().await?;
        Ok(Some(NodeEnd::NothingLeft))
    }

    /// Others that are alive still have something under way.
    async fn living_hold_leases(&self) -> Result<bool, EngineError> {
        let members = self.parts.answered(self.shared.members()).await?;
        Ok(members.iter().any(|member| {
            let is_other = !member.is_self && member.kind == MemberKind::Node;
            is_other && member.alive && member.leases > 0
        }))
    }

    pub(crate) async fn tell_finished(&mut self) -> Result<(), EngineError> {
        let asking = self.shared.finished_since(self.finished.clone());
        let (finished, cursor) = self.parts.answered(asking).await?;
        self.finished = cursor;
        for RolloutRecord {
            id,
            outcome,
            durations,
            calls,
            ..
        } in finished
        {
            let Some(outcome) = outcome else { continue };
            self.parts.live.finished(&id);
            self.parts
                .tell(RunEvent::Finished {
                    id,
                    outcome,
                    durations,
                    calls,
                })
                .await;
        }
        Ok(())
    }

    /// What the run asks of its nodes becomes what this engine is asked.
    async fn heed(&mut self, stop: &Stop) -> Result<(), EngineError> {
        let standing = self.ask_standing().await?;
        match standing.stop_asked {
            Some(StopRequest::Now) => {
                stop.drain.cancel();
                stop.now.cancel();
            }
            Some(StopRequest::Drain) => stop.drain.cancel(),
            None => match standing.status {
                // Nobody reads what is still under way.
                Some(RunStatus::Finished) => {
                    stop.drain.cancel();
                    stop.now.cancel();
                }
                Some(RunStatus::Interrupted) => stop.drain.cancel(),
                Some(RunStatus::Running) | None => {}
            },
        }
        Ok(())
    }

    /// Lets the others see that nothing new begins here.
    pub(crate) async fn tell_draining(&mut self) -> Result<(), EngineError> {
        if std::mem::replace(&mut self.told_draining, true) {
            return Ok(());
        }
        self.parts.answered(self.shared.set_draining()).await
    }

    /// Whether it was the run that asked to stop, and not whoever started this process.
    fn stopped_by_run(&self) -> bool {
        self.standing
            .is_some_and(|standing| standing.stop_asked.is_some() || is_over(standing))
    }
}

fn is_over(standing: RunStanding) -> bool {
    matches!(
        standing.status,
        Some(RunStatus::Finished | RunStatus::Interrupted)
    )
}
