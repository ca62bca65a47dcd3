//! What is left out of exports that are trained on, and why.

use crate::reports::{ErrorDetails, LeftOutReport};
use crate::{RunError, RunErrorKind};

/// Why a rollout gives no rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LeftOut {
    HeldOut,
    Unscored,
    NoTokens(String),
    Nothing(String),
}

/// How many rollouts gave no rows, and the first reason of those where it differs.
#[derive(Debug, Default)]
pub struct LeftOutCounts {
    held_out: u64,
    unscored: u64,
    no_tokens: u64,
    nothing: u64,
    why_no_tokens: Option<String>,
    why_nothing: Option<String>,
}

impl LeftOutCounts {
    pub(super) fn add(&mut self, left_out: Option<LeftOut>) {
        let Some(why) = left_out else {
            return;
        };
        match why {
            LeftOut::HeldOut => self.held_out += 1,
            LeftOut::Unscored => self.unscored += 1,
            LeftOut::NoTokens(why) => {
                self.no_tokens += 1;
                self.why_no_tokens.get_or_insert(why);
            }
            LeftOut::Nothing(why) => {
                self.nothing += 1;
                self.why_nothing.get_or_insert(why);
            }
        }
    }

    /// Where only held-out rows are left out.
    pub(super) fn held_out_report(&self) -> LeftOutReport {
        LeftOutReport {
            held_out: self.held_out,
            no_reward: None,
            no_token_ids: None,
            nothing_to_train_on: None,
        }
    }

    /// For programs.
    pub(super) fn report(&self) -> LeftOutReport {
        LeftOutReport {
            held_out: self.held_out,
            no_reward: Some(self.unscored),
            no_token_ids: Some(self.no_tokens),
            nothing_to_train_on: Some(self.nothing),
        }
    }

    /// For people: how many were left out as they should be, and as what.
    pub fn expected(&self) -> Vec<String> {
        [
            (self.held_out, "of held-out rows"),
            (self.unscored, "without a reward"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("left out: {} {what}", rollouts(count)))
        .collect()
    }

    /// For people: how many were left out where that may surprise.
    pub fn surprising(&self) -> Vec<String> {
        [
            (self.no_tokens, "without token ids", &self.why_no_tokens),
            (self.nothing, "with nothing to train on", &self.why_nothing),
        ]
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, what, why)| {
            let why = why.as_deref().unwrap_or_default();
            format!("left out: {} {what} ({why})", rollouts(count))
        })
        .collect()
    }

    /// When there is nothing else than what was left out.
    pub(super) fn error(&self, run: &str) -> RunError {
        let mut reasons = vec![];
        for (count, what, why) in [
            (self.no_tokens, "without token ids", &self.why_no_tokens),
            (self.nothing, "with nothing to train on", &self.why_nothing),
            (self.unscored, "without a reward", &None),
            (self.held_out, "of held-out rows", &None),
        ] {
            if count > 0 {
                let why = why
                    .as_ref()
                    .map_or_else(String::new, |why| format!(" ({why})"));
                reasons.push(format!("{} {what}{why}", rollouts(count)));
            }
        }
        if reasons.is_empty() {
            reasons.push("it has no rollouts with a result".to_owned());
        }
        let reasons = reasons.join(", ");
        let error = RunError::failed(
            RunErrorKind::NoTrainingRows,
            format!("run `{run}` has no rows for a trainer: {reasons}"),
        )
        .details(ErrorDetails::Export {
            left_out: self.report(),
        });
        if self.no_tokens > 0 {
            error.hint(
                "token ids are recorded of embedded models and of servers that are known to tell them, see \
                 docs/gateway-tokens.md; `--format sft` needs none",
            )
        } else {
            error
        }
    }
}

fn rollouts(count: u64) -> String {
    format!("{count} rollout{}", if count == 1 { "" } else { "s" })
}
