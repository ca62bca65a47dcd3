//! What a comparison comes to, in a sentence or two.

use std::fmt::Write as _;

use osmosis_core::statistics::{Endpoint, Finding, Verdict};

use super::ComparedWith;
use crate::figures::{number, percent};

/// Rows that must change for a test to be able to speak of a difference: 2 / 2^6 is the first at most 5%.
const LEAST_CHANGED: u64 = 6;

/// `changed` is how many rows moved.
pub(super) fn text(compared: &ComparedWith, changed: u64) -> String {
    let mut text = sentence(compared, changed);
    if let Some(lost) = compared.lost
        && compared.verdict != Verdict::Inconclusive
    {
        let _ = write!(
            text,
            " The verdict is the same however the {} would have ended.",
            lost_text(lost.first + lost.second)
        );
    }
    text
}

fn sentence(compared: &ComparedWith, changed: u64) -> String {
    let second = &compared.run.run_name;
    let evidence = || evidence(compared);
    match compared.finding {
        Finding::NothingToCompare => {
            "Inconclusive: nothing to compare, no row ran in both runs.".to_owned()
        }
        Finding::Identical => format!(
            "No difference: all {} compared rows have the same passes and rewards. (A change in up to {} of \
             rows could go unseen with so many.)",
            compared.rows.compared,
            percent(unseen_share(compared.rows.compared))
        ),
        Finding::NoDifference => {
            let mut text = format!("No significant difference on these rows: {}.", evidence());
            if changed < LEAST_CHANGED {
                let _ = write!(
                    text,
                    " ({} changed; fewer than {LEAST_CHANGED} can always be chance.)",
                    rows_text(changed)
                );
            }
            text
        }
        Finding::Better => format!(
            "`{second}` is better: {}.{}",
            evidence(),
            and_fails(compared)
        ),
        Finding::Worse => format!(
            "`{second}` is worse: {}.{}",
            evidence(),
            and_fails(compared)
        ),
        Finding::Mixed => format!(
            "Inconclusive: `{second}` moved in opposite directions: {}.",
            evidence()
        ),
        Finding::FailuresDiffer => format!(
            "Inconclusive: {}, and the pass rates differ by no more than chance: {}.{}",
            fails(compared).unwrap_or_default(),
            evidence(),
            survivors(compared)
        ),
        Finding::LostRollouts => format!("Inconclusive: {}", lost(compared, &evidence())),
        Finding::RewardNotComparable => format!(
            "Inconclusive: the rewards differ, but not the same rollouts were scored in both runs, and the pass \
             rates differ by no more than chance: {}.{}",
            evidence(),
            survivors(compared)
        ),
    }
}

/// How many lost rollouts would turn the verdict.
fn lost(compared: &ComparedWith, evidence: &str) -> String {
    let lost = compared.lost.map_or(0, |lost| lost.first + lost.second);
    let turn = compared.lost.and_then(|lost| lost.turn_verdict);
    let many = turn.map_or_else(
        || "they would turn the verdict".to_owned(),
        |turn| format!("{turn} of them would turn the verdict"),
    );
    format!(
        "{} (failed outside the agent, or cancelled) could decide: {many} if those of one run had passed and those of the \
         other had not. Without them: {evidence}.",
        lost_text(lost)
    )
}

fn lost_text(count: u64) -> String {
    format!(
        "{count} lost {}",
        if count == 1 { "rollout" } else { "rollouts" }
    )
}

/// The largest share of rows that may differ in truth although none was seen to: with that share, 5% of
/// samples of so many rows show nothing.
fn unseen_share(rows: u64) -> f64 {
    1.0 - 0.05f64.powf(1.0 / rows.max(1) as f64)
}

/// The numbers that can decide.
fn evidence(compared: &ComparedWith) -> String {
    let mut parts = vec![];
    if let Some(pass) = &compared.pass_rate {
        let difference = pass.comparison.difference.difference;
        parts.push(format!("pass rate {} ({})", points(difference), p_of(pass)));
    }
    if let (Some(reward), true) = (&compared.reward, compared.reward_decides) {
        let difference = reward.comparison.difference.difference;
        parts.push(format!("reward {} ({})", signed(difference), p_of(reward)));
    }
    parts.join(", ")
}

/// Which run fails more often, where that is no chance.
fn fails(compared: &ComparedWith) -> Option<String> {
    let failures = compared.failures.as_ref()?;
    let word = match (failures.is_up(), failures.is_down()) {
        (true, _) => "more",
        (_, true) => "less",
        (false, false) => return None,
    };
    Some(format!(
        "`{}` fails {word} often, {} ({})",
        compared.run.run_name,
        failed_counts(compared),
        p_of(failures)
    ))
}

fn and_fails(compared: &ComparedWith) -> String {
    fails(compared).map_or_else(String::new, |fails| format!(" But {fails}."))
}

/// What a difference in reward is worth when not the same rollouts were scored.
fn survivors(compared: &ComparedWith) -> String {
    let Some(reward) = &compared.reward else {
        return String::new();
    };
    format!(
        " The reward, {}, covers scored rollouts only and is not part of the verdict: failed rollouts have no reward.",
        signed(reward.comparison.difference.difference)
    )
}

/// `3 of 20 → 5 of 20`: rollouts of the shared rows that ran without being scored.
pub fn failed_counts(compared: &ComparedWith) -> String {
    let (first, second) = &compared.shared_outcomes;
    format!(
        "{} of {} → {} of {}",
        first.failed(),
        first.ran(),
        second.failed(),
        second.ran()
    )
}

fn p_of(endpoint: &Endpoint) -> String {
    p_text(endpoint.p_adjusted.unwrap_or(endpoint.comparison.p))
}

fn rows_text(count: u64) -> String {
    format!("{count} {}", if count == 1 { "row" } else { "rows" })
}

/// `p 0.031`.
pub fn p_text(p: f64) -> String {
    if p < 0.001 {
        "p < 0.001".to_owned()
    } else {
        format!("p {}", number(p))
    }
}

/// `+10.0 points`, of a share.
pub fn points(share: f64) -> String {
    format!("{} points", signed_one(100.0 * share))
}

/// One decimal and a sign.
pub fn signed_one(value: f64) -> String {
    // No `-0.0`.
    format!("{:+.1}", if value.abs() < 0.05 { 0.0 } else { value })
}

/// At most three decimals and a sign.
pub fn signed(value: f64) -> String {
    let text = number(value.abs());
    if text == "0" {
        return "+0".to_owned();
    }
    format!("{}{text}", if value < 0.0 { '-' } else { '+' })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_read_well() {
        assert_eq!(points(0.1), "+10.0 points");
        assert_eq!(points(-0.0001), "+0.0 points");
        assert_eq!(signed(-0.25), "-0.25");
        assert_eq!(signed(0.0001), "+0");
        assert_eq!(p_text(0.0001), "p < 0.001");
        assert_eq!(p_text(0.0312), "p 0.031");
        assert_eq!(p_text(1.0), "p 1");
    }
}
