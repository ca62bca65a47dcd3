//! Failures that are alike, put together: by the kind of outcome, the error's type, its message without
//! what differs from rollout to rollout, and the innermost frame of the user's code.
//!
//! ```
//! use osmosis_core::failure_groups::normalised;
//!
//! assert_eq!(
//!     normalised("row 17: no tool 'add' in /tmp/x7/tools.json"),
//!     normalised("row 4: no tool 'mul' in /tmp/q/tools.json"),
//! );
//! ```

mod frame;
mod normalise;

use std::collections::HashMap;

pub use frame::innermost_user_frame;
pub use normalise::normalised;

use crate::row_selection::RowSelection;
use crate::{Failure, Outcome, OutcomeKind, Phase};

/// Rollouts named as examples of a group.
pub const EXAMPLES: usize = 3;
/// Groups that are kept apart; what comes after goes by its type alone, so that a run whose every failure is
/// another one still fits into memory.
const MOST_GROUPS: usize = 1_000;

/// What makes two failures alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Signature {
    pub outcome: OutcomeKind,
    /// The exception's type, or our own name for what happened.
    pub error_type: String,
    /// The message without numbers, ids, paths and quoted values.
    pub message: String,
    /// `main.py:12 in run`.
    pub frame: Option<String>,
}

impl Signature {
    /// `None` where nothing failed.
    pub fn of(outcome: &Outcome) -> Option<Self> {
        let kind = outcome.kind();
        let of_failure = |failure: &Failure| Self {
            outcome: kind,
            error_type: failure.kind.clone(),
            message: normalised(&failure.message),
            frame: failure.traceback.as_deref().and_then(innermost_user_frame),
        };
        match outcome {
            Outcome::Scored { .. } | Outcome::Cancelled => None,
            Outcome::AgentFailed { failure }
            | Outcome::Ungraded { failure }
            | Outcome::InfrastructureFailed { failure } => Some(of_failure(failure)),
            Outcome::TimedOut { phase, .. } => Some(Self {
                outcome: kind,
                error_type: timeout_of(*phase),
                message: outcome.explanation().unwrap_or_default(),
                frame: None,
            }),
            Outcome::Rejected { reason } => Some(Self {
                outcome: kind,
                error_type: "rejected".to_owned(),
                message: normalised(reason),
                frame: None,
            }),
        }
    }
}

fn timeout_of(phase: Phase) -> String {
    format!("{phase}_timeout")
}

/// Rollouts that failed alike.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureGroup {
    pub signature: Signature,
    pub count: u64,
    /// How the first one was told.
    pub first_text: String,
    /// Whether all were told in the same words.
    pub same_words: bool,
    /// Row and run index of the first few.
    pub examples: Vec<(u64, u32)>,
    rows: Vec<u64>,
}

impl FailureGroup {
    /// What to call the group: the words themselves where they are all the same, otherwise the type and
    /// what the messages share.
    pub fn text(&self) -> String {
        let Signature {
            error_type,
            message,
            ..
        } = &self.signature;
        if self.same_words {
            self.first_text.clone()
        } else if message.is_empty() {
            error_type.clone()
        } else {
            format!("{error_type}: {message}")
        }
    }

    /// The phase that passed its deadline, if that is what happened.
    pub fn timed_out_in(&self) -> Option<Phase> {
        let phases = [Phase::Agent, Phase::Grade];
        let is_it = |phase: &Phase| self.signature.error_type == timeout_of(*phase);
        let timed_out = self.signature.outcome == OutcomeKind::TimedOut;
        phases.into_iter().find(|phase| timed_out && is_it(phase))
    }

    /// The dataset rows that failed so.
    pub fn rows(&self) -> Option<RowSelection> {
        RowSelection::of(self.rows.iter().copied())
    }
}

/// Collects failures, in order of row and run.
#[derive(Debug, Clone, Default)]
pub struct FailureGroups {
    groups: HashMap<Signature, FailureGroup>,
}

impl FailureGroups {
    pub fn add(&mut self, row_index: u64, run_index: u32, outcome: &Outcome) {
        let Some(mut signature) = Signature::of(outcome) else {
            return;
        };
        let text = outcome.explanation().unwrap_or_default();
        if self.groups.len() >= MOST_GROUPS && !self.groups.contains_key(&signature) {
            signature = Signature {
                message: "…".to_owned(),
                frame: None,
                ..signature
            };
        }
        let group = self
            .groups
            .entry(signature.clone())
            .or_insert_with(|| FailureGroup {
                signature,
                count: 0,
                first_text: text.clone(),
                same_words: true,
                examples: vec![],
                rows: vec![],
            });
        group.count += 1;
        group.same_words &= group.first_text == text;
        if group.examples.len() < EXAMPLES {
            group.examples.push((row_index, run_index));
        }
        if group.rows.last() != Some(&row_index) {
            group.rows.push(row_index);
        }
    }

    /// The most frequent first.
    pub fn into_sorted(self) -> Vec<FailureGroup> {
        let mut groups: Vec<FailureGroup> = self.groups.into_values().collect();
        groups.sort_by(|a, b| {
            let key =
                |group: &FailureGroup| (std::cmp::Reverse(group.count), group.examples.clone());
            key(a).cmp(&key(b)).then_with(|| {
                let words = |group: &FailureGroup| group.signature.error_type.clone();
                words(a).cmp(&words(b))
            })
        });
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorCategory, Phase};

    fn raised(kind: &str, message: &str, line: u32) -> Outcome {
        let mut failure = Failure::new(ErrorCategory::AgentError, kind, message);
        failure.traceback = Some(format!(
            "Traceback (most recent call last):\n  File \"/w/rollouts/r/main.py\", line {line}, in run\n    x\n{kind}: {message}"
        ));
        Outcome::AgentFailed { failure }
    }

    fn grouped(outcomes: &[Outcome]) -> Vec<FailureGroup> {
        let mut groups = FailureGroups::default();
        for (row, outcome) in (0..).zip(outcomes) {
            groups.add(row, 0, outcome);
        }
        groups.into_sorted()
    }

    #[test]
    fn failures_that_differ_in_values_are_one_group() {
        let found = grouped(&[
            raised("KeyError", "'a17'", 4),
            raised("KeyError", "'b'", 4),
            raised("ValueError", "no number in 'x'", 9),
            raised("KeyError", "'c'", 4),
            raised("KeyError", "'d'", 4),
            raised("KeyError", "'a17'", 5),
        ]);
        let shown: Vec<_> = found
            .iter()
            .map(|group| {
                (
                    group.count,
                    group.text(),
                    group.signature.frame.clone().unwrap(),
                )
            })
            .collect();
        let frame = |line: u32| format!("r/main.py:{line} in run");
        assert_eq!(
            shown,
            [
                (4, "KeyError: '…'".to_owned(), frame(4)),
                (1, "ValueError: no number in 'x'".to_owned(), frame(9)),
                (1, "KeyError: 'a17'".to_owned(), frame(5)),
            ]
        );
        assert_eq!(found[0].examples, [(0, 0), (1, 0), (3, 0)]);
        assert_eq!(found[0].rows().unwrap().to_string(), "0-1,3-4");
    }

    #[test]
    fn what_did_not_fail_is_in_no_group_and_deadlines_go_by_phase() {
        let late = |phase| Outcome::TimedOut {
            phase,
            limit_ms: 1000,
        };
        let found = grouped(&[
            Outcome::Cancelled,
            late(Phase::Agent),
            late(Phase::Grade),
            late(Phase::Agent),
        ]);
        let shown: Vec<_> = found
            .iter()
            .map(|group| (group.count, group.text()))
            .collect();
        assert_eq!(
            shown,
            [
                (2, "agent phase passed its deadline of 1 s".to_owned()),
                (1, "grade phase passed its deadline of 1 s".to_owned()),
            ]
        );
    }

    #[test]
    fn a_run_whose_every_failure_is_another_one_has_a_bounded_list() {
        let mut groups = FailureGroups::default();
        for row in 0..5_000u32 {
            let word: String = row
                .to_string()
                .chars()
                .map(|digit| ((digit as u8) + 49) as char)
                .collect();
            // Messages and lines of code differ, and neither may make a group of its own for ever.
            let outcome = raised("ValueError", &format!("no {word}"), row);
            groups.add(u64::from(row), 0, &outcome);
        }
        let found = groups.into_sorted();
        assert!(found.len() <= MOST_GROUPS + 1);
        assert_eq!(found.iter().map(|group| group.count).sum::<u64>(), 5_000);
        assert_eq!(found[0].text(), "ValueError: …");
        assert_eq!(found[0].signature.frame, None);
    }
}
