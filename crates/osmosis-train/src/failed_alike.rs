//! Rollouts of which every one failed in the same way: the next ones would fail alike, so training stops and names
//! the error.

use osmosis_core::failure_groups::FailureGroups;
use osmosis_core::{Outcome, OutcomeKind};
use osmosis_store::RolloutRecord;

/// Rollouts that all failed, and all in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedAlike {
    pub(crate) rollouts: u64,
    /// `ValueError: no such tool, at main.py:12 in run`.
    pub(crate) error: String,
}

/// Collects how rollouts ended, as long as all of them failed.
#[derive(Debug, Default)]
pub(crate) struct AlikeFailures {
    groups: FailureGroups,
    failed: u64,
    any_scored: bool,
}

impl AlikeFailures {
    pub(crate) fn note(&mut self, rollout: &RolloutRecord) {
        let Some(outcome) = &rollout.outcome else {
            return;
        };
        match outcome.kind() {
            OutcomeKind::Scored => self.any_scored = true,
            // Neither is the work of the agent or the grader.
            OutcomeKind::InfrastructureFailed | OutcomeKind::Cancelled => {}
            OutcomeKind::AgentFailed
            | OutcomeKind::TimedOut
            | OutcomeKind::Ungraded
            | OutcomeKind::Rejected => {
                if !self.any_scored {
                    self.failed += 1;
                    self.groups
                        .add(rollout.row_index, rollout.run_index, outcome);
                }
            }
        }
    }

    /// Whether at least so many rollouts failed, all of them alike, and none was scored.
    pub(crate) fn all_alike(&self, at_least: u64) -> Option<FailedAlike> {
        if self.any_scored || self.failed == 0 || self.failed < at_least {
            return None;
        }
        let groups = self.groups.clone().into_sorted();
        let [group] = groups.as_slice() else {
            return None;
        };
        let error = match &group.signature.frame {
            Some(frame) => format!("{}, at {frame}", group.text()),
            None => group.text(),
        };
        Some(FailedAlike {
            rollouts: self.failed,
            error,
        })
    }
}

/// Whether all of these rollouts failed alike.
pub(crate) fn failed_alike<'r>(
    rollouts: impl IntoIterator<Item = &'r RolloutRecord>,
) -> Option<FailedAlike> {
    let mut failures = AlikeFailures::default();
    for rollout in rollouts {
        failures.note(rollout);
    }
    failures.all_alike(1)
}

/// The error that most of these rollouts failed with, for a warning; `None` when none failed.
pub(crate) fn most_frequent_error(rollouts: &[RolloutRecord]) -> Option<String> {
    let mut groups = FailureGroups::default();
    for rollout in rollouts {
        if let Some(outcome) = &rollout.outcome {
            groups.add(rollout.row_index, rollout.run_index, outcome);
        }
    }
    let groups = groups.into_sorted();
    let first = groups.first()?;
    Some(format!(
        "{} of {} attempts failed with `{}`",
        first.count,
        rollouts.len(),
        first.text()
    ))
}

/// Whether a rollout has a result, and it is a failure of its own.
pub(crate) fn failed(rollout: &RolloutRecord) -> bool {
    let outcome = rollout.outcome.as_ref();
    outcome.is_some_and(|outcome: &Outcome| outcome.kind() != OutcomeKind::Scored)
}
