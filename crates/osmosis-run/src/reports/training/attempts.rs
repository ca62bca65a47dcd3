//! The attempts that a policy was to learn from, told apart from those of evaluations on held-out rows.

use osmosis_core::failure_groups::FailureGroups;
use osmosis_core::{OutcomeKind, RolloutId};
use osmosis_store::{CallPurpose, RolloutPages, RolloutRecord, Store};
use parking_lot::Mutex;
use std::sync::Arc;

use crate::RunError;

/// Rollouts whose answers are looked at: enough to say what is typical.
const ANSWERS_OF: usize = 256;

/// What an answer that ended at the token limit has in it, in the dialects that agents speak. Quotes inside of a text
/// are escaped in JSON, so that no text of a model looks like one.
const CUT: [&[u8]; 6] = [
    br#""finish_reason":"length""#,
    br#""finish_reason": "length""#,
    br#""stop_reason":"max_tokens""#,
    br#""stop_reason": "max_tokens""#,
    br#""reason":"max_output_tokens""#,
    br#""reason": "max_output_tokens""#,
];

/// What became of the attempts of a training.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempts {
    /// Those of training alone.
    pub(super) ran: u64,
    pub(super) scored: u64,
    /// The lowest and the highest reward.
    pub(super) rewards: Option<(f64, f64)>,
    /// How those of training failed.
    pub(super) failures: FailureGroups,
    /// How any rollout failed, those of evaluations too.
    pub(super) all_failures: FailureGroups,
    /// The first ones that made model calls.
    called: Vec<RolloutId>,
}

/// Answers that were looked at, and those of them that ended at the token limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CutAnswers {
    pub(super) cut: u64,
    pub(super) of: u64,
}

impl Attempts {
    /// Reads every rollout with a result once.
    pub(super) async fn of(store: &dyn Store) -> Result<Self, RunError> {
        let mut attempts = Self::default();
        let mut row: Vec<RolloutRecord> = vec![];
        let mut pages = RolloutPages::finished(store);
        while let Some(page) = pages.next().await? {
            for rollout in page {
                if row
                    .last()
                    .is_some_and(|last| last.row_index != rollout.row_index)
                {
                    attempts.add_row(&row);
                    row.clear();
                }
                row.push(rollout);
            }
        }
        attempts.add_row(&row);
        Ok(attempts)
    }

    /// The rollouts of one row. A row that is run greedily is held out: nothing else is.
    fn add_row(&mut self, rollouts: &[RolloutRecord]) {
        let held_out = rollouts.iter().any(|rollout| rollout.id.is_greedy());
        for rollout in rollouts {
            let Some(outcome) = &rollout.outcome else {
                continue;
            };
            let (row, run) = (rollout.row_index, rollout.run_index);
            self.all_failures.add(row, run, outcome);
            if held_out || !outcome.kind().ran() {
                continue;
            }
            self.ran += 1;
            self.scored += u64::from(outcome.kind() == OutcomeKind::Scored);
            self.failures.add(row, run, outcome);
            if let Some(reward) = outcome.reward().map(osmosis_core::Reward::get) {
                let (low, high) = self.rewards.unwrap_or((reward, reward));
                self.rewards = Some((low.min(reward), high.max(reward)));
            }
            if rollout.calls.model_calls > 0 && self.called.len() < ANSWERS_OF {
                self.called.push(rollout.id.clone());
            }
        }
    }

    pub(super) fn failed(&self) -> u64 {
        self.ran - self.scored
    }

    /// How many answers of the policy were cut at the token limit, of the first attempts.
    pub(super) async fn cut_answers(&self, store: &dyn Store) -> Result<CutAnswers, RunError> {
        let counted = Arc::new(Mutex::new(CutAnswers::default()));
        let counting = Arc::clone(&counted);
        let count = move |call: &osmosis_store::CallRecord, body: &osmosis_store::CallBody| {
            if call.status == 200 {
                let mut counted = counting.lock();
                counted.of += 1;
                counted.cut += u64::from(is_cut(&body.response));
            }
        };
        store
            .visit_calls(&self.called, CallPurpose::Policy, Box::new(count))
            .await?;
        let counted = *counted.lock();
        Ok(counted)
    }
}

fn is_cut(response: &[u8]) -> bool {
    CUT.iter()
        .any(|mark| response.windows(mark.len()).any(|window| window == *mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_when_its_dialect_says_so_and_not_when_its_text_does() {
        assert!(is_cut(
            br#"{"choices":[{"message":{"content":"x"},"finish_reason":"length"}]}"#
        ));
        assert!(is_cut(br#"data: {"delta":{"stop_reason":"max_tokens"}}"#));
        assert!(is_cut(
            br#"{"incomplete_details":{"reason": "max_output_tokens"}}"#
        ));
        assert!(!is_cut(br#"{"finish_reason":"stop"}"#));
        assert!(!is_cut(
            br#"{"content":"\"finish_reason\":\"length\"","finish_reason":"stop"}"#
        ));
    }
}
