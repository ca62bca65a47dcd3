use serde::{Deserialize, Serialize};

use crate::OutcomeKind;

/// How many rollouts ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutcomeCounts {
    pub scored: u64,
    pub agent_failed: u64,
    pub timed_out: u64,
    pub ungraded: u64,
    pub rejected: u64,
    pub infrastructure_failed: u64,
    pub cancelled: u64,
}

impl OutcomeCounts {
    pub fn add(&mut self, kind: OutcomeKind) {
        *match kind {
            OutcomeKind::Scored => &mut self.scored,
            OutcomeKind::AgentFailed => &mut self.agent_failed,
            OutcomeKind::TimedOut => &mut self.timed_out,
            OutcomeKind::Ungraded => &mut self.ungraded,
            OutcomeKind::Rejected => &mut self.rejected,
            OutcomeKind::InfrastructureFailed => &mut self.infrastructure_failed,
            OutcomeKind::Cancelled => &mut self.cancelled,
        } += 1;
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Self) {
        self.scored += other.scored;
        self.agent_failed += other.agent_failed;
        self.timed_out += other.timed_out;
        self.ungraded += other.ungraded;
        self.rejected += other.rejected;
        self.infrastructure_failed += other.infrastructure_failed;
        self.cancelled += other.cancelled;
    }

    /// Those that ran and were not scored.
    pub fn failed(&self) -> u64 {
        self.ran() - self.scored
    }

    pub fn get(&self, kind: OutcomeKind) -> u64 {
        match kind {
            OutcomeKind::Scored => self.scored,
            OutcomeKind::AgentFailed => self.agent_failed,
            OutcomeKind::TimedOut => self.timed_out,
            OutcomeKind::Ungraded => self.ungraded,
            OutcomeKind::Rejected => self.rejected,
            OutcomeKind::InfrastructureFailed => self.infrastructure_failed,
            OutcomeKind::Cancelled => self.cancelled,
        }
    }

    pub fn total(&self) -> u64 {
        OutcomeKind::ALL
            .into_iter()
            .map(|kind| self.get(kind))
            .sum()
    }

    /// Those that ran, the denominator of every rate.
    pub fn ran(&self) -> u64 {
        OutcomeKind::ALL
            .into_iter()
            .filter(|kind| kind.ran())
            .map(|kind| self.get(kind))
            .sum()
    }
}
