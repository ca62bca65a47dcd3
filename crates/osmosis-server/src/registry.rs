//! Who may come in: every rollout from its admission until its last callback, and the room there is.

use std::collections::HashMap;
use std::sync::Arc;

use osmosis_core::{Outcome, RolloutId};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::refusal::Refusal;
use crate::request::RequestDigest;

/// Rollouts that have ended and whose callbacks nobody takes; more, and nobody is let in.
const MAX_UNDELIVERED: usize = 10_000;

/// The rollouts that this process has to do with.
#[derive(Debug)]
pub(crate) struct RolloutRegistry {
    state: Mutex<State>,
    /// As many may run or wait.
    capacity: usize,
    /// How many have no result yet.
    open: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<RolloutId, Entry>,
    next_row: u64,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    digest: RequestDigest,
    progress: Arc<watch::Sender<Progress>>,
}

/// How far a rollout is, for those that have to tell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Progress {
    /// It is being written down.
    Admitting,
    /// It was not let in after all.
    Refused,
    Accepted,
    /// The workflow succeeded; the grader's turn.
    AgentDone,
    Finished {
        outcome: Outcome,
        /// The workflow had succeeded before.
        agent_done: bool,
    },
}

impl Progress {
    fn is_open(&self) -> bool {
        match self {
            Self::Admitting | Self::Accepted | Self::AgentDone => true,
            Self::Refused | Self::Finished { .. } => false,
        }
    }
}

/// What a request for admission leads to.
#[derive(Debug)]
pub(crate) enum Reservation {
    /// A place is kept; it is to be filled, or given back.
    New {
        row_index: u64,
        progress: Arc<watch::Sender<Progress>>,
    },
    /// The same request is here already.
    Repeated(watch::Receiver<Progress>),
}

/// How many are where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegistryCounts {
    pub(crate) open: usize,
    pub(crate) undelivered: usize,
    pub(crate) accepting: bool,
}

impl RolloutRegistry {
    /// `next_row` is the number of rows that are in the store already.
    pub(crate) fn new(capacity: usize, next_row: u64) -> Self {
        Self {
            state: Mutex::new(State {
                next_row,
                ..State::default()
            }),
            capacity,
            open: watch::Sender::new(0),
        }
    }

    pub(crate) fn reserve(
        &self,
        id: &RolloutId,
        digest: &RequestDigest,
    ) -> Result<Reservation, Refusal> {
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.get(id) {
            if entry.digest == *digest {
                return Ok(Reservation::Repeated(entry.progress.subscribe()));
            }
            return Err(conflict(id));
        }
        if state.closed {
            return Err(Refusal::Draining);
        }
        let open = *self.open.borrow();
        if open >= self.capacity {
            return Err(Refusal::NoRoom(format!(
                "the rollout queue is full ({open} rollouts run or wait); retry later"
            )));
        }
        let undelivered = state.entries.len() - open;
        if undelivered >= MAX_UNDELIVERED {
            return Err(Refusal::NoRoom(format!(
                "the callbacks of {undelivered} rollouts wait for their receivers; retry later"
            )));
        }
        let row_index = state.next_row;
        state.next_row += 1;
        let progress = Arc::new(watch::Sender::new(Progress::Admitting));
        let entry = Entry {
            digest: digest.clone(),
            progress: Arc::clone(&progress),
        };
        state.entries.insert(id.clone(), entry);
        self.open.send_modify(|open| *open += 1);
        Ok(Reservation::New {
            row_index,
            progress,
        })
    }

    /// A rollout from an earlier time, where it stands. There is always room for it: it was let in.
    pub(crate) fn resume(
        &self,
        id: RolloutId,
        digest: RequestDigest,
        standing: Progress,
    ) -> watch::Receiver<Progress> {
        let mut state = self.state.lock();
        if standing.is_open() {
            self.open.send_modify(|open| *open += 1);
        }
        let progress = Arc::new(watch::Sender::new(standing));
        let receiver = progress.subscribe();
        state.entries.insert(id, Entry { digest, progress });
        receiver
    }

    /// It was let in at an earlier time, and stands here.
    pub(crate) fn stands_at(&self, id: &RolloutId, standing: Progress) {
        self.advance(id, |_| standing);
    }

    /// It was written down.
    pub(crate) fn accepted(&self, id: &RolloutId) {
        self.advance(id, |_| Progress::Accepted);
    }

    /// It was not let in after all.
    pub(crate) fn refused(&self, id: &RolloutId) {
        self.advance(id, |_| Progress::Refused);
        self.forget(id);
    }

    pub(crate) fn agent_done(&self, id: &RolloutId) {
        self.advance(id, |_| Progress::AgentDone);
    }

    pub(crate) fn finished(&self, id: &RolloutId, outcome: Outcome) {
        self.advance(id, |before| Progress::Finished {
            outcome,
            agent_done: *before == Progress::AgentDone,
        });
    }

    /// Of rollouts that are not here, and of those that have ended, nothing is noted.
    fn advance(&self, id: &RolloutId, next: impl FnOnce(&Progress) -> Progress) {
        let state = self.state.lock();
        let Some(entry) = state.entries.get(id) else {
            return;
        };
        let next = {
            let before = entry.progress.borrow();
            if !before.is_open() {
                return;
            }
            next(&before)
        };
        if !next.is_open() {
            self.open.send_modify(|open| *open -= 1);
        }
        entry.progress.send_replace(next);
    }

    /// Nothing is left to do for a rollout; what there is to know about it is in the store.
    pub(crate) fn forget(&self, id: &RolloutId) {
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.remove(id)
            && entry.progress.borrow().is_open()
        {
            self.open.send_modify(|open| *open -= 1);
        }
    }

    /// The rollouts without a result whose id the test accepts, each with its progress.
    pub(crate) fn open_ones(
        &self,
        wanted: impl Fn(&RolloutId) -> bool,
    ) -> Vec<(RolloutId, watch::Receiver<Progress>)> {
        let state = self.state.lock();
        state
            .entries
            .iter()
            .filter(|(id, entry)| entry.progress.borrow().is_open() && wanted(id))
            .map(|(id, entry)| (id.clone(), entry.progress.subscribe()))
            .collect()
    }

    /// Nobody is let in any more.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Returns when every rollout has its result.
    pub(crate) async fn all_finished(&self) {
        // The sender is alive: it is ours.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }

    pub(crate) fn counts(&self) -> RegistryCounts {
        let state = self.state.lock();
        let open = *self.open.borrow();
        RegistryCounts {
            open,
            undelivered: state.entries.len() - open,
            accepting: !state.closed,
        }
    }
}

pub(crate) fn conflict(id: &RolloutId) -> Refusal {
    Refusal::Conflict(format!(
        "rollout `{id}` was sent before with another body; use a new rollout_id"
    ))
}

#[cfg(test)]
mod tests {
    use osmosis_core::JsonText;

    use super::*;

    fn digest(text: &str) -> RequestDigest {
        let row = format!(r#"{{"request_digest": "{text}"}}"#);
        RequestDigest::of_row(&JsonText::parse(row).unwrap()).unwrap()
    }

    fn id(number: u64) -> RolloutId {
        RolloutId::of(number, 0)
    }

    #[test]
    fn the_same_request_is_admitted_once_and_another_under_its_id_never() {
        let registry = RolloutRegistry::new(2, 5);
        let Ok(Reservation::New { row_index, .. }) = registry.reserve(&id(0), &digest("a")) else {
            panic!("it must be new")
        };
        assert_eq!(row_index, 5);
        assert!(matches!(
            registry.reserve(&id(0), &digest("a")),
            Ok(Reservation::Repeated(_))
        ));
        assert!(matches!(
            registry.reserve(&id(0), &digest("b")),
            Err(Refusal::Conflict(_))
        ));
        assert_eq!(registry.counts().open, 1);
    }

    #[test]
    fn there_is_room_again_when_a_rollout_has_its_result() {
        let registry = RolloutRegistry::new(1, 0);
        registry.reserve(&id(0), &digest("a")).unwrap();
        assert!(matches!(
            registry.reserve(&id(1), &digest("b")),
            Err(Refusal::NoRoom(_))
        ));
        registry.agent_done(&id(0));
        registry.finished(&id(0), Outcome::Cancelled);
        registry.agent_done(&id(0));
        let counts = registry.counts();
        assert_eq!((counts.open, counts.undelivered), (0, 1));
        registry.reserve(&id(1), &digest("b")).unwrap();
        registry.forget(&id(1));
        registry.forget(&id(0));
        let counts = registry.counts();
        assert_eq!((counts.open, counts.undelivered), (0, 0));
    }

    #[test]
    fn a_closed_desk_lets_nobody_in_but_still_knows_who_is_there() {
        let registry = RolloutRegistry::new(9, 0);
        registry.reserve(&id(0), &digest("a")).unwrap();
        registry.close();
        assert!(matches!(
            registry.reserve(&id(1), &digest("b")),
            Err(Refusal::Draining)
        ));
        assert!(matches!(
            registry.reserve(&id(0), &digest("a")),
            Ok(Reservation::Repeated(_))
        ));
    }
}
