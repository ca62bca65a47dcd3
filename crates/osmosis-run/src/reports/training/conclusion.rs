//! What a training came to, in words: whether the policy was updated, if not why, and what to do about it.

use osmosis_core::RunName;
use osmosis_core::failure_groups::{FailureGroup, FailureGroups};
use osmosis_train::TrainEnd;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::stored_rollouts::{Attempts, CutAnswers};
use super::{Curve, EndCauseWord, GroupCounts, TrainingEnd, ended_flat};
use crate::figures::{number, thousands};
use crate::reports::suggested_command;
use crate::workspace::Workspace;

/// Whether a training updated its policy, and why it did not or ended early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingConclusion {
    /// Steps that changed the weights.
    pub updates: u64,
    /// Why no step did, or why the attempts after the last step taught nothing, so that training ended early; else `null`.
    pub cause: Option<NoUpdateCause>,
    /// The same in a sentence, with the error or the numbers behind it.
    pub summary: String,
    /// What to do about it.
    pub advice: Vec<String>,
}

/// Why there was nothing to learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoUpdateCause {
    /// Every attempt failed with the same error.
    FailedAlike,
    /// Too many attempts failed: no row had a reward for each of its attempts.
    Failed,
    /// The attempts at each row sampled the very same tokens.
    IdenticalAttempts,
    /// Most answers ended at the token limit, and the attempts at each row got the same reward.
    AnswersCut,
    /// Every attempt got the same low reward: the model is too small, or the task too hard.
    TooHard,
    /// Every attempt passed: there is nothing to improve.
    TooEasy,
    /// The attempts at each row got the same reward, though rows differ.
    EqualRewards,
    /// The attempts with a reward hold no token that can be trained on.
    NoTokens,
}

/// What a conclusion is drawn from.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) run: &'a RunName,
    pub(super) workspace: &'a Workspace,
    pub(super) attempts: &'a Attempts,
    pub(super) steps: u64,
    pub(super) updates: u64,
    pub(super) end: Option<&'a TrainEnd>,
    pub(super) groups: GroupCounts,
    /// Of those without variance.
    pub(super) identical: u64,
    pub(super) cut: CutAnswers,
}

impl<'a> Evidence<'a> {
    pub(super) fn of(
        curve: &Curve,
        attempts: &'a Attempts,
        end: Option<&'a TrainEnd>,
        cut: CutAnswers,
        run: &'a RunName,
        workspace: &'a Workspace,
    ) -> Self {
        let updates = updates(curve);
        let unused = end.map(TrainEnd::unused).unwrap_or_default();
        let of_steps = curve.count(|step| step.groups_identical);
        let (groups, identical) = if updates > 0 {
            (GroupCounts::from(unused), unused.identical)
        } else {
            (GroupCounts::of(curve, end), of_steps + unused.identical)
        };
        Self {
            run,
            workspace,
            attempts,
            steps: curve.trained().count() as u64,
            updates,
            end,
            groups,
            identical,
            cut,
        }
    }

    fn all_passed(&self) -> bool {
        self.attempts.ran > 0 && self.attempts.passed == self.attempts.ran
    }

    pub(super) fn conclusion(&self) -> TrainingConclusion {
        let end = self.end.map(TrainingEnd::of);
        // That all attempts failed alike is the cause of both, and stands once.
        let early = end.filter(|end| end.is_early() && end.cause != EndCauseWord::FailedAlike);
        let early = early.map_or_else(String::new, |end| format!("{} ", end.summary));
        let made = format!("{} of {} steps made an update.", self.updates, self.steps);
        if self.updates > 0 && !ended_flat(self.end) {
            return TrainingConclusion {
                updates: self.updates,
                cause: None,
                summary: format!("{early}{made}"),
                advice: vec![],
            };
        }
        let (cause, why) = self.why();
        let summary = if self.updates > 0 {
            format!("{early}{made} After the last step, {why}.")
        } else {
            format!("{early}No update was made: {why}.")
        };
        TrainingConclusion {
            updates: self.updates,
            cause: Some(cause),
            summary,
            advice: self.advice(cause),
        }
    }

    fn why(&self) -> (NoUpdateCause, String) {
        let attempts = self.attempts;
        let failures = sorted(&attempts.failures);
        let ran = thousands(attempts.ran);
        if attempts.scored == 0 || self.groups.no_variance + self.groups.used == 0 {
            return match failures.as_slice() {
                [one] if attempts.scored == 0 => (
                    NoUpdateCause::FailedAlike,
                    format!(
                        "all {ran} attempts failed in the same way: {}",
                        error_of(one)
                    ),
                ),
                [] => (NoUpdateCause::Failed, "no attempt has a result".to_owned()),
                [first, ..] => (
                    NoUpdateCause::Failed,
                    format!(
                        "no row had a reward for each of its attempts; {} of {ran} failed, {} of them \
                         with {}",
                        thousands(attempts.failed()),
                        thousands(first.count),
                        error_of(first)
                    ),
                ),
            };
        }
        if self.groups.used > 0 {
            return (
                NoUpdateCause::NoTokens,
                "the attempts with a reward hold no token that can be trained on".to_owned(),
            );
        }
        // Answers of very few tokens are easily identical, too: that they were cut explains both.
        let CutAnswers { cut, of } = self.cut;
        if self.cut.are_typical() && !self.all_passed() {
            return (
                NoUpdateCause::AnswersCut,
                format!(
                    "{} of {} answers were cut at the token limit, and all attempts at each row got the same \
                     reward",
                    thousands(cut),
                    thousands(of)
                ),
            );
        }
        if self.identical > 0 && self.identical >= self.groups.no_variance {
            return (
                NoUpdateCause::IdenticalAttempts,
                "all attempts at each row were identical, token for token".to_owned(),
            );
        }
        match attempts.rewards {
            Some((low, high)) if (high - low).abs() < f64::EPSILON => {
                let cause = if self.all_passed() {
                    NoUpdateCause::TooEasy
                } else {
                    NoUpdateCause::TooHard
                };
                let why = format!(
                    "all {} attempts got the reward {}, so there is nothing to learn from",
                    thousands(attempts.scored),
                    number(low)
                );
                (cause, why)
            }
            Some(_) | None => (
                NoUpdateCause::EqualRewards,
                "all attempts at each row got the same reward, so there is nothing to learn from"
                    .to_owned(),
            ),
        }
    }

    fn advice(&self, cause: NoUpdateCause) -> Vec<String> {
        let run = self.run.as_str();
        let command = |arguments: &[&str]| suggested_command(arguments, self.workspace);
        let show = || {
            let groups = sorted(&self.attempts.failures);
            let example = groups.first().and_then(|group| group.examples.first());
            let row = example.map_or_else(|| "ROW".to_owned(), |(row, run)| format!("{row}.{run}"));
            command(&["train", "show", run, &row])
        };
        let mut words: Vec<String> = match cause {
            NoUpdateCause::FailedAlike => vec![
                format!("Look at one of them: {}", show()),
                "Fix the error, then submit again. If its cause was outside of your code, run them again with: "
                    .to_owned()
                    + &command(&["train", "resume", run]),
            ],
            NoUpdateCause::Failed => vec![
                format!("Look at one of the failures: {}", show()),
                "Fix the most frequent failure first. `incomplete_groups = \"keep\"` in [training] compares the \
                 attempts that have a reward."
                    .to_owned(),
            ],
            NoUpdateCause::IdenticalAttempts => vec![
                "The task is not to blame: raise `rollout_temperature` in [sampling], or start from a model that is \
                 less certain of its answers."
                    .to_owned(),
            ],
            NoUpdateCause::AnswersCut => vec![
                "Raise `max_response_length` in [training], or ask for shorter answers in the prompt.".to_owned(),
                format!("Look at an answer: {}", show()),
            ],
            NoUpdateCause::TooHard => vec![
                "The model is too small for this task, or the task too hard: use easier rows or a larger model. \
                 An evaluation with several attempts per row (`n` in [evaluation]) shows which rows it solves \
                 sometimes."
                    .to_owned(),
                "Let the grader give part of the reward for a part of the task.".to_owned(),
                format!("Check that the grader is right: {}", show()),
            ],
            NoUpdateCause::TooEasy => {
                vec!["The model solves every row already: use harder rows.".to_owned()]
            }
            NoUpdateCause::EqualRewards => vec![
                "Rows that are solved always or never teach nothing: use rows that the model solves sometimes, more \
                 attempts per row (`n_samples_per_prompt`), or a grader that gives finer rewards."
                    .to_owned(),
                format!("Look at the attempts of a row: {}", show()),
            ],
            NoUpdateCause::NoTokens => vec![
                "Of calls with `n` above 1, only the choices that a later call continues can be trained on."
                    .to_owned(),
            ],
        };
        let failed = [NoUpdateCause::Failed, NoUpdateCause::FailedAlike].contains(&cause);
        if failed && self.cut.are_typical() {
            let CutAnswers { cut, of } = self.cut;
            let cut = format!(
                "{} of {} answers were cut at the token limit, which may be why: raise `max_response_length` in \
                 [training].",
                thousands(cut),
                thousands(of)
            );
            words.insert(0, cut);
        }
        words
    }
}

/// Steps that changed the weights.
pub(super) fn updates(curve: &Curve) -> u64 {
    let steps = curve.trained();
    steps.filter(|step| step.skipped.is_none()).count() as u64
}

fn sorted(failures: &FailureGroups) -> Vec<FailureGroup> {
    failures.clone().into_sorted()
}

/// `ValueError: x, at main.py:12 in run`.
fn error_of(group: &FailureGroup) -> String {
    let text = group.text();
    let text = text.lines().next().unwrap_or_default().to_owned();
    match &group.signature.frame {
        Some(frame) => format!("`{text}`, at {frame}"),
        None => format!("`{text}`"),
    }
}
