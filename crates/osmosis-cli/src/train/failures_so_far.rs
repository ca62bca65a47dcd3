//! How rollouts have failed so far, for who watches a training.

use std::collections::HashSet;

use osmosis_core::Outcome;
use osmosis_core::failure_groups::{FailureGroup, FailureGroups, Signature};

use super::wording::failure_line;

/// Kinds of failures that are shown.
const MOST: usize = 3;

#[derive(Debug, Default)]
pub(super) struct FailuresSoFar {
    groups: FailureGroups,
    told: HashSet<Signature>,
    /// The most frequent ones, as they are shown.
    lines: Vec<String>,
}

impl FailuresSoFar {
    pub(super) fn note(&mut self, outcome: &Outcome) {
        if Signature::of(outcome).is_some() {
            // Which rows they are is in the report at the end.
            self.groups.add(0, 0, outcome);
            self.lines = self.sorted().iter().take(MOST).map(failure_line).collect();
        }
    }

    /// The most frequent ones.
    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Those of a kind that was not handed out before.
    pub(super) fn new_lines(&mut self) -> Vec<String> {
        let all = self.sorted();
        let new = all
            .iter()
            .filter(|group| !self.told.contains(&group.signature));
        let new: Vec<&FailureGroup> = new.take(MOST).collect();
        let lines = new.iter().map(|group| failure_line(group)).collect();
        let signatures: Vec<Signature> = new.iter().map(|group| group.signature.clone()).collect();
        self.told.extend(signatures);
        lines
    }

    fn sorted(&self) -> Vec<FailureGroup> {
        self.groups.clone().into_sorted()
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::{ErrorCategory, Failure};

    use super::*;

    fn raised(message: &str) -> Outcome {
        Outcome::AgentFailed {
            failure: Failure::new(ErrorCategory::AgentError, "ValueError", message),
        }
    }

    #[test]
    fn failures_are_counted_by_kind_and_each_kind_is_told_once() {
        let mut failures = FailuresSoFar::default();
        for _ in 0..3 {
            failures.note(&raised("no tool"));
        }
        failures.note(&Outcome::Cancelled);
        let first = ["3 × agent failed: ValueError: no tool"];
        assert_eq!(failures.new_lines(), first);
        failures.note(&raised("no tool"));
        failures.note(&raised("no luck"));
        assert_eq!(
            failures.new_lines(),
            ["1 × agent failed: ValueError: no luck"]
        );
        assert_eq!(
            failures.lines(),
            [
                "4 × agent failed: ValueError: no tool",
                "1 × agent failed: ValueError: no luck"
            ]
        );
    }
}
