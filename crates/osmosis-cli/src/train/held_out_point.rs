//! An evaluation on held-out rows, for people.

use std::fmt::Write as _;

use osmosis_core::statistics::Interval;
use osmosis_run::reports::HeldOutScore;

use crate::figures::{interval, number, percent, thousands};

/// `pass 80.0% [72.0%, 88.0%] · reward 0.8 [0.75, 0.85] · 0 of 100 failed`.
pub(crate) fn numbers_text(numbers: &HeldOutScore) -> String {
    format!(
        "pass {} · reward {} · {}",
        pass_text(numbers),
        reward_text(numbers),
        failed_text(numbers)
    )
}

/// `80.0% [72.0%, 88.0%]`.
pub(crate) fn pass_text(numbers: &HeldOutScore) -> String {
    with_interval(numbers.pass_rate, numbers.pass_rate_ci95, percent)
}

/// `0.8 [0.75, 0.85]`.
pub(crate) fn reward_text(numbers: &HeldOutScore) -> String {
    with_interval(numbers.reward_mean, numbers.reward_ci95, number)
}

fn with_interval(value: Option<f64>, ci95: Option<[f64; 2]>, show: fn(f64) -> String) -> String {
    let ci95 = ci95.map(|[low, high]| Interval { low, high });
    value.map_or_else(
        || "none".to_owned(),
        |value| format!("{}{}", show(value), interval(ci95, show)),
    )
}

/// `2 of 100 failed`, of those that ran, and what could not be run.
pub(crate) fn failed_text(numbers: &HeldOutScore) -> String {
    let mut text = format!(
        "{} of {} failed",
        thousands(numbers.failed),
        thousands(numbers.ran)
    );
    if numbers.infrastructure_failed > 0 {
        let _ = write!(
            text,
            ", {} not run (infrastructure)",
            thousands(numbers.infrastructure_failed)
        );
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use osmosis_run::reports::HeldOutPoint;

    use super::*;

    /// So many of 100 rows pass, sampled and greedily, and two rollouts have no score.
    pub(crate) fn point(step: u64, mean: f64, greedy: Option<f64>) -> HeldOutPoint {
        let score = |mean: f64| HeldOutScore {
            rollouts: 100,
            ran: 100,
            scored: 98,
            failed: 2,
            reward_mean: Some(mean),
            reward_ci95: Some([mean - 0.05, mean + 0.05]),
            pass_rate: Some(mean - 0.02),
            ..HeldOutScore::default()
        };
        HeldOutPoint {
            step,
            sampled: score(mean),
            greedy: greedy.map(score),
            unseen_phrasings: None,
        }
    }

    #[test]
    fn failures_stand_beside_the_scores() {
        let mut numbers = point(0, 0.5, None).sampled;
        assert_eq!(
            numbers_text(&numbers),
            "pass 48.0% · reward 0.5 [0.45, 0.55] · 2 of 100 failed"
        );
        numbers.infrastructure_failed = 3;
        numbers.reward_mean = None;
        assert_eq!(
            numbers_text(&numbers),
            "pass 48.0% · reward none · 2 of 100 failed, 3 not run (infrastructure)"
        );
    }
}
