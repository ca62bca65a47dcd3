//! The numbers of a step in words.

use osmosis_core::failure_groups::FailureGroup;
use osmosis_run::reports::{HeldOutPoint, StepNumbers};

use super::held_out_point::numbers_text;
use crate::eval::failures::cut;
use crate::figures::{percent, seconds_text, thousands};

pub(crate) fn reward_text(step: &StepNumbers) -> String {
    let reward = step
        .reward
        .map_or_else(|| "none".to_owned(), |r| format!("{r:.3}"));
    let pass = step.pass_rate.map_or_else(|| "none".to_owned(), percent);
    let failed = match step.failed() {
        0 => String::new(),
        failed => format!("  {failed} of {} failed", step.ran()),
    };
    format!("{reward}  pass {pass}{failed}")
}

/// Why a step made no update.
pub(crate) fn no_update_text(reason: &str) -> &str {
    match reason {
        "no variance" => "all attempts at each row got the same reward",
        "no complete group" => "no row had a reward for each of its attempts",
        "no tokens" => "nothing that was sampled can be trained on",
        other => other,
    }
}

/// `12 × agent failed: ValueError: x, at main.py:12 in run`.
pub(crate) fn failure_line(group: &FailureGroup) -> String {
    let outcome = group.signature.outcome.as_str().replace('_', " ");
    let frame = group.signature.frame.as_ref();
    let frame = frame.map_or_else(String::new, |frame| format!(", at {frame}"));
    format!("{} × {outcome}: {}{frame}", group.count, cut(&group.text()))
}

pub(crate) fn policy_text(step: &StepNumbers) -> String {
    let shown = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    format!(
        "entropy {}  clip {}  kl {}  mismatch {}",
        shown(step.entropy, 3),
        step.clip_fraction.map_or_else(|| "-".to_owned(), percent),
        shown(step.kl, 4),
        step.mismatch
            .map_or_else(|| "-".to_owned(), |value| format!("{value:.0e}")),
    )
}

pub(crate) fn speed_text(step: &StepNumbers) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate of tokens is small and not negative"
    )]
    let rate = step.tokens_per_second.map_or_else(
        || "- tokens/s".to_owned(),
        |rate| format!("{} tokens/s", thousands(rate.round() as u64)),
    );
    format!(
        "{rate}  rollout {}  grade {}  update {}  swap {}",
        seconds_text(step.rollout_seconds),
        seconds_text(step.grade_seconds),
        seconds_text(step.update_seconds),
        seconds_text(step.swap_seconds),
    )
}

/// How old the tokens were, and who waited for whom; `None` where nobody trains and samples at once.
pub(crate) fn waiting_text(step: &StepNumbers) -> Option<String> {
    let (rollouts, update) = (step.wait_rollouts_seconds?, step.wait_update_seconds?);
    let age = match (step.staleness_mean, step.staleness_max) {
        (Some(mean), Some(most)) => format!("staleness {mean:.2} (at most {most})  "),
        (_, _) => String::new(),
    };
    Some(format!(
        "{age}waited {} for rollouts, {} for updates",
        seconds_text(rollouts),
        seconds_text(update)
    ))
}

/// `held out before training: sampled pass 8.0% · reward 0.1 [0.05, 0.15] · 2 of 100 failed; greedy …`.
pub(crate) fn held_out_line(point: &HeldOutPoint) -> String {
    let all: Vec<String> = point
        .all()
        .iter()
        .map(|one| format!("{} {}", one.name, numbers_text(&one.score)))
        .collect();
    format!("held out {}: {}", point.when(), all.join("; "))
}
