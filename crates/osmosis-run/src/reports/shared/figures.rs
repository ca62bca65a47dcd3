//! The numbers of a report, as the page and the Markdown both write them.

use osmosis_core::OutcomeKind;
use osmosis_core::statistics::{Endpoint, Interval};

use super::SharedReport;
use crate::figures::{duration_text, ms_text, number, percent, thousands};
use crate::reports::ChangedRows;

/// A number with its name and what is to be known about it.
pub(super) struct Headline {
    pub(super) label: &'static str,
    pub(super) value: String,
    /// The 95% interval.
    pub(super) interval: Option<String>,
    pub(super) note: String,
}

pub(super) fn headlines(report: &SharedReport) -> Vec<Headline> {
    let run = &report.run;
    let numbers = &run.numbers;
    let mut all = vec![Headline {
        label: "Pass rate",
        value: numbers.pass_rate.map_or_else(|| "none".to_owned(), percent),
        interval: interval(numbers.pass_rate_ci95, percent),
        note: if numbers.ran == 0 {
            "no rollout ran".to_owned()
        } else {
            format!(
                "{} passed of {} that ran",
                thousands(numbers.passed),
                thousands(numbers.ran)
            )
        },
    }];
    let reward = &numbers.reward;
    all.push(Headline {
        label: "Mean reward",
        value: reward.mean.map_or_else(|| "none".to_owned(), number),
        interval: interval(reward.ci95, number),
        note: match (reward.min, reward.median, reward.max) {
            (Some(min), Some(median), Some(max)) => format!(
                "min {}, median {}, max {}",
                number(min),
                number(median),
                number(max)
            ),
            _ => "nothing was scored".to_owned(),
        },
    });
    let last_k = numbers.pass_at_k.iter().next_back();
    if let Some((k @ 2.., Some(share))) = last_k {
        let all_of = numbers.pass_hat_k.get(k).copied().flatten();
        all.push(Headline {
            label: "pass@k",
            value: percent(*share),
            interval: None,
            note: format!(
                "k = {k}: one of {k} passes; all of {k}: {}",
                all_of.map_or_else(|| "none".to_owned(), percent)
            ),
        });
    }
    if run.policy_calls_in.is_none() {
        all.push(Headline {
            label: "Model calls",
            value: thousands(numbers.model_calls),
            interval: None,
            note: format!(
                "{} prompt and {} completion tokens",
                thousands(numbers.prompt_tokens),
                thousands(numbers.completion_tokens)
            ),
        });
    }
    if let Some(p50) = numbers.durations.agent.p50 {
        let p90 = numbers.durations.agent.p90.unwrap_or(p50);
        all.push(Headline {
            label: "Agent time",
            value: ms_text(p50),
            interval: None,
            note: match run.duration_ms {
                Some(ms) => format!(
                    "median; p90 {}, whole run {}",
                    ms_text(p90),
                    duration_text(ms as f64 / 1000.0)
                ),
                None => format!("median; p90 {}", ms_text(p90)),
            },
        });
    }
    all
}

/// The outcomes that there are, each with its count; what has no result is the last.
pub(super) fn outcomes(report: &SharedReport) -> Vec<(String, u64)> {
    let counts = &report.run.numbers.outcomes;
    let mut found: Vec<(String, u64)> = OutcomeKind::ALL
        .into_iter()
        .map(|kind| (kind.as_str().replace('_', " "), counts.get(kind)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let left = report.run.without_result();
    if left > 0 {
        found.push(("not run yet".to_owned(), left));
    }
    found
}

pub(super) fn interval(interval: Option<Interval>, show: fn(f64) -> String) -> Option<String> {
    let interval = interval.filter(|interval| interval.low < interval.high)?;
    Some(format!("{} to {}", show(interval.low), show(interval.high)))
}

/// A compared number: what it was, what it is, by how much it differs, and how likely that is by chance.
pub(super) struct Change {
    pub(super) label: &'static str,
    pub(super) first: String,
    pub(super) second: String,
    pub(super) difference: String,
    pub(super) p: String,
}

impl Change {
    /// The cells of its row, each made safe for the document it goes into.
    pub(super) fn cells(&self, safe: impl Fn(&str) -> String) -> [String; 5] {
        [
            self.label,
            &self.first,
            &self.second,
            &self.difference,
            &self.p,
        ]
        .map(safe)
    }
}

/// The rows that changed, by what they do now.
pub(super) fn changed_rows(
    compared: &super::super::ComparedWith,
) -> [(&'static str, &ChangedRows); 2] {
    [
        ("pass more often", &compared.fixed),
        ("pass less often", &compared.broken),
    ]
}

pub(super) fn changes(compared: &super::super::ComparedWith) -> Vec<Change> {
    use super::super::{p_text, points, signed, signed_one};
    let change = |label,
                  endpoint: &Option<Endpoint>,
                  show: fn(f64) -> String,
                  apart: fn(f64) -> String,
                  bound: fn(f64) -> String| {
        let comparison = &endpoint.as_ref()?.comparison;
        let difference = &comparison.difference;
        let ci95 = interval(difference.ci95, bound);
        Some(Change {
            label,
            first: show(difference.first),
            second: show(difference.second),
            difference: match ci95 {
                Some(ci95) => format!("{} ({ci95})", apart(difference.difference)),
                None => apart(difference.difference),
            },
            p: endpoint
                .as_ref()
                .and_then(|endpoint| endpoint.p_adjusted)
                .map_or_else(|| "not tested".to_owned(), p_text),
        })
    };
    let of_share = |share: f64| signed_one(100.0 * share);
    [
        change("Pass rate", &compared.pass_rate, percent, points, of_share),
        change("Failures", &compared.failures, percent, points, of_share),
        change("Reward", &compared.reward, number, signed, signed),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What the numbers mean, name by name.
pub(super) fn definitions(report: &SharedReport) -> Vec<(&'static str, &str)> {
    let definitions = &report.run.definitions;
    let mut all = vec![
        ("ran", definitions.ran.as_str()),
        ("pass rate", &definitions.pass_rate),
        ("reward", &definitions.reward),
        ("interval", &definitions.ci95),
    ];
    if report.run.numbers.pass_at_k.len() > 1 {
        all.push(("pass@k", &definitions.pass_at_k));
        all.push(("pass^k", &definitions.pass_hat_k));
    }
    if let Some(comparison) = &report.comparison {
        let definitions = &comparison.definitions;
        all.push(("comparison", &definitions.rows));
        all.push(("verdict", &definitions.verdict));
        all.push(("adjusted p", &definitions.p_adjusted));
    }
    all
}
