//! The rollouts under way, and those that somebody wants cancelled.

use std::collections::{HashMap, HashSet};

use osmosis_core::{Attempt, Phase, RolloutId};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Shared between the driver, the rollouts' tasks and whoever asks.
#[derive(Debug, Default)]
pub(crate) struct Live(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: HashMap<RolloutId, Running>,
    /// Asked to be cancelled, and without a result so far.
    cancelled: HashSet<RolloutId>,
}

#[derive(Debug)]
struct Running {
    attempt: Attempt,
    phase: Phase,
    token: CancellationToken,
    /// It has its result; only its task has not quite ended.
    finished: bool,
}

/// Where a rollout stands that is to be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It runs, and was told.
    Running,
    /// Too late.
    Finished,
    /// It is not under way.
    Elsewhere,
}

impl Live {
    /// An attempt begins. One that is to be cancelled is, before it has begun.
    pub(crate) fn begins(&self, id: &RolloutId, attempt: Attempt, token: CancellationToken) {
        let mut state = self.0.lock();
        if state.cancelled.contains(id) {
            token.cancel();
        }
        let running = Running {
            attempt,
            phase: Phase::Agent,
            token,
            finished: false,
        };
        state.running.insert(id.clone(), running);
    }

    pub(crate) fn enters(&self, id: &RolloutId, phase: Phase) {
        if let Some(running) = self.0.lock().running.get_mut(id) {
            running.phase = phase;
        }
    }

    pub(crate) fn ends(&self, id: &RolloutId, attempt: Attempt) {
        let mut state = self.0.lock();
        if state
            .running
            .get(id)
            .is_some_and(|running| running.attempt == attempt)
        {
            state.running.remove(id);
        }
    }

    pub(crate) fn phase(&self, id: &RolloutId) -> Option<Phase> {
        self.0.lock().running.get(id).map(|running| running.phase)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().running.len()
    }

    /// Notes that a rollout is to be cancelled, unless it has its result.
    pub(crate) fn cancel(&self, id: &RolloutId) -> Standing {
        let mut state = self.0.lock();
        let standing = match state.running.get(id) {
            Some(running) if running.finished => return Standing::Finished,
            Some(running) => {
                running.token.cancel();
                Standing::Running
            }
            None => Standing::Elsewhere,
        };
        state.cancelled.insert(id.clone());
        standing
    }

    pub(crate) fn is_cancelled(&self, id: &RolloutId) -> bool {
        self.0.lock().cancelled.contains(id)
    }

    /// It has its result: nothing is left to cancel.
    pub(crate) fn finished(&self, id: &RolloutId) {
        let mut state = self.0.lock();
        state.cancelled.remove(id);
        if let Some(running) = state.running.get_mut(id) {
            running.finished = true;
        }
    }

    /// Nobody need be cancelled; `false` when that was known already.
    pub(crate) fn withdraw(&self, id: &RolloutId) -> bool {
        self.0.lock().cancelled.remove(id)
    }

    /// Those that are to be cancelled and do not run.
    pub(crate) fn cancelled_waiting(&self) -> Vec<RolloutId> {
        let state = self.0.lock();
        let waiting = state.cancelled.iter();
        waiting
            .filter(|id| !state.running.contains_key(id))
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_that_was_cancelled_while_it_waited_is_cancelled_as_it_begins() {
        let live = Live::default();
        let id = RolloutId::of(0, 0);
        assert_eq!(live.cancel(&id), Standing::Elsewhere);
        assert_eq!(live.cancelled_waiting(), std::slice::from_ref(&id));
        let token = CancellationToken::new();
        live.begins(&id, Attempt(1), token.clone());
        assert!(token.is_cancelled());
        assert!(live.cancelled_waiting().is_empty());
        live.finished(&id);
        assert!(!live.is_cancelled(&id));
        assert_eq!(live.cancel(&id), Standing::Finished);
        assert!(!live.is_cancelled(&id));
    }

    #[test]
    fn an_older_attempt_does_not_end_a_newer_one() {
        let live = Live::default();
        let id = RolloutId::of(0, 0);
        live.begins(&id, Attempt(2), CancellationToken::new());
        live.enters(&id, Phase::Grade);
        live.ends(&id, Attempt(1));
        assert_eq!(live.phase(&id), Some(Phase::Grade));
        live.ends(&id, Attempt(2));
        assert_eq!((live.phase(&id), live.count()), (None, 0));
    }
}
