//! Where the wall time of a phase of rollouts went.

use std::collections::HashMap;
use std::time::Duration;

use osmosis_core::{Phase, RolloutId};
use osmosis_engine::RunEvent;

/// Listens to the engine. Agents and graders of different rollouts run at the same time: time counts as
/// rollout time while any agent is under way, and as grading time while only graders are.
#[derive(Debug, Default)]
pub(crate) struct PhaseClock {
    under_way: HashMap<RolloutId, Phase>,
    agents: usize,
    last: Duration,
    pub(crate) rollout: Duration,
    pub(crate) grade: Duration,
}

impl PhaseClock {
    /// An event at `now`, counted from the beginning.
    pub(crate) fn note(&mut self, event: &RunEvent, now: Duration) {
        self.advance(now);
        match event {
            RunEvent::PhaseBegan { id, phase, .. } => self.set(id, Some(*phase)),
            RunEvent::Finished { id, .. } | RunEvent::Retrying { id, .. } => self.set(id, None),
            RunEvent::Began { .. }
            | RunEvent::Claimed { .. }
            | RunEvent::GradingAgain { .. }
            | RunEvent::Draining { .. } => {}
        }
    }

    /// Counts the time up to `now`.
    pub(crate) fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.last);
        self.last = now;
        if self.agents == 0 && !self.under_way.is_empty() {
            self.grade += passed;
        } else {
            self.rollout += passed;
        }
    }

    fn set(&mut self, id: &RolloutId, phase: Option<Phase>) {
        let before = match phase {
            Some(phase) => self.under_way.insert(id.clone(), phase),
            None => self.under_way.remove(id),
        };
        if before == Some(Phase::Agent) {
            self.agents -= 1;
        }
        if phase == Some(Phase::Agent) {
            self.agents += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::{Durations, Outcome};
    use osmosis_store::CallSummary;

    use super::*;

    fn began(run: u32, phase: Phase) -> RunEvent {
        RunEvent::PhaseBegan {
            id: RolloutId::of(0, run),
            phase,
            calls: 0,
        }
    }

    fn finished(run: u32) -> RunEvent {
        RunEvent::Finished {
            id: RolloutId::of(0, run),
            outcome: Outcome::Cancelled,
            durations: Durations::default(),
            calls: CallSummary::default(),
        }
    }

    #[test]
    fn time_counts_as_grading_only_while_no_agent_runs() {
        let mut clock = PhaseClock::default();
        let events = [
            (1, began(0, Phase::Agent)),
            (2, began(1, Phase::Agent)),
            (5, began(0, Phase::Grade)),
            (7, began(1, Phase::Grade)),
            (8, finished(0)),
            (10, finished(1)),
        ];
        for (second, event) in &events {
            clock.note(event, Duration::from_secs(*second));
        }
        clock.advance(Duration::from_secs(11));
        assert_eq!(clock.rollout, Duration::from_secs(8));
        assert_eq!(clock.grade, Duration::from_secs(3));
    }
}
