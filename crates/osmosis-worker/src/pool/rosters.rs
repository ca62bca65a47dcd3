//! The rosters of both roles, and when everything else has to wait.

use std::sync::Arc;

use super::roster::{Limits, Place, Roster};
use super::supervision::Waiter;
use super::worker::Worker;
use crate::Role;

pub(super) struct Rosters {
    agents: Roster<Arc<Worker>, Waiter>,
    graders: Roster<Arc<Worker>, Waiter>,
    /// Something runs that nothing may run beside, in either role.
    solo: bool,
    /// Why no task is taken any more.
    pub(super) closed: Option<String>,
}

impl Rosters {
    pub(super) fn new(limits: impl Fn() -> Limits) -> Self {
        Self {
            agents: Roster::new(limits()),
            graders: Roster::new(limits()),
            solo: false,
            closed: None,
        }
    }

    pub(super) fn of(&mut self, role: Role) -> &mut Roster<Arc<Worker>, Waiter> {
        match role {
            Role::Agent => &mut self.agents,
            Role::Grader => &mut self.graders,
        }
    }

    /// The next task that can go somewhere. While one waits to run solo nothing begins, so that its turn
    /// comes: whatever runs has a deadline.
    pub(super) fn next(&mut self) -> Option<Next> {
        if self.closed.is_some() || self.solo {
            return None;
        }
        for role in [Role::Agent, Role::Grader] {
            if self.of(role).solo_waits() {
                if !self.agents.is_idle() || !self.graders.is_idle() {
                    return None;
                }
                let (waiter, place) = self.of(role).next_solo()?;
                self.solo = true;
                return Some(Next {
                    role,
                    waiter,
                    place,
                });
            }
        }
        [Role::Agent, Role::Grader].into_iter().find_map(|role| {
            let (waiter, place) = self.of(role).next()?;
            Some(Next {
                role,
                waiter,
                place,
            })
        })
    }

    /// Whether a task waits that nothing else may run beside.
    pub(super) fn solo_waits(&mut self) -> bool {
        self.agents.solo_waits() || self.graders.solo_waits()
    }

    /// A task is over, and what it ran in.
    pub(super) fn leave(&mut self, role: Role, place: &Place<Arc<Worker>>) {
        // Whatever is over was the only one, if it ran solo.
        self.solo = false;
        match place {
            Place::Seat(worker) => self.of(role).leave_seat(worker.id),
            Place::OwnWorker => self.of(role).leave_own_worker(),
        }
    }

    /// Everybody who waits, to be sent home.
    pub(super) fn clear(&mut self) -> Vec<Waiter> {
        let mut waiting = self.agents.clear();
        waiting.extend(self.graders.clear());
        waiting
    }
}

/// A task that may begin, and where.
pub(super) struct Next {
    pub(super) role: Role,
    pub(super) waiter: Waiter,
    pub(super) place: Place<Arc<Worker>>,
}
