//! An evaluation on held-out rows, for people and for programs.

use std::fmt::Write as _;

use osmosis_core::statistics::Interval;
use osmosis_train::{ByDecoding, EvaluationReport, HeldOutNumbers};
use serde_json::{Value, json};

use crate::figures::{interval, number, percent, thousands};

/// Held-out rows, evaluated with the weights after a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HeldOutPoint {
    pub(crate) step: u64,
    pub(crate) evaluation: EvaluationReport,
}

/// One set of rows, decoded in one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NamedNumbers {
    /// `greedy`, `unseen phrasings, sampled`.
    pub(crate) name: &'static str,
    pub(crate) numbers: HeldOutNumbers,
}

impl HeldOutPoint {
    pub(crate) fn sampled(&self) -> &HeldOutNumbers {
        &self.evaluation.all.sampled
    }

    /// `None` in runs from before there was such an evaluation.
    pub(crate) fn greedy(&self) -> Option<&HeldOutNumbers> {
        self.evaluation.all.greedy.as_ref()
    }

    /// All there is, in the order in which it is shown.
    pub(crate) fn all(&self) -> Vec<NamedNumbers> {
        let mut all = vec![];
        let mut both = |names: [&'static str; 2], decoded: &ByDecoding| {
            let decoded = [Some(decoded.sampled), decoded.greedy];
            for (name, numbers) in names.into_iter().zip(decoded) {
                all.extend(numbers.map(|numbers| NamedNumbers { name, numbers }));
            }
        };
        both(["sampled", "greedy"], &self.evaluation.all);
        if let Some(unseen) = &self.evaluation.unseen_phrasings {
            let names = ["unseen phrasings, sampled", "unseen phrasings, greedy"];
            both(names, unseen);
        }
        all
    }

    /// `before training`, `after step 20`.
    pub(crate) fn when(&self) -> String {
        match self.step {
            0 => "before training".to_owned(),
            step => format!("after step {step}"),
        }
    }

    /// `before` and `after` of `train submit --json`, and a point of `held_out_curve`.
    pub(crate) fn json(&self) -> Value {
        let both = |decoded: &ByDecoding| {
            let greedy = decoded.greedy.as_ref().map(numbers_json);
            (numbers_json(&decoded.sampled), greedy)
        };
        let (sampled, greedy) = both(&self.evaluation.all);
        let mut point = json!({"step": self.step, "sampled": sampled, "greedy": greedy});
        if let Some(unseen) = &self.evaluation.unseen_phrasings {
            let (sampled, greedy) = both(unseen);
            point["unseen_phrasings"] = json!({"sampled": sampled, "greedy": greedy});
        }
        point
    }
}

fn numbers_json(numbers: &HeldOutNumbers) -> Value {
    json!({
        "mean": numbers.reward_mean,
        "ci95": numbers.reward_ci95,
        "pass_rate": numbers.pass_rate,
        "pass_rate_ci95": numbers.pass_rate_ci95,
        "rollouts": numbers.rollouts,
        "ran": numbers.ran,
        "scored": numbers.scored,
        "failed": numbers.failed,
        "infrastructure_failed": numbers.infrastructure_failed,
    })
}

/// `pass 80.0% [72.0%, 88.0%] · reward 0.8 [0.75, 0.85] · 0 of 100 failed`.
pub(crate) fn numbers_text(numbers: &HeldOutNumbers) -> String {
    format!(
        "pass {} · reward {} · {}",
        pass_text(numbers),
        reward_text(numbers),
        failed_text(numbers)
    )
}

/// `80.0% [72.0%, 88.0%]`.
pub(crate) fn pass_text(numbers: &HeldOutNumbers) -> String {
    with_interval(numbers.pass_rate, numbers.pass_rate_ci95, percent)
}

/// `0.8 [0.75, 0.85]`.
pub(crate) fn reward_text(numbers: &HeldOutNumbers) -> String {
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
pub(crate) fn failed_text(numbers: &HeldOutNumbers) -> String {
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
    use super::*;

    /// So many of 100 rows pass, sampled and greedily, and two rollouts have no score.
    pub(crate) fn point(step: u64, mean: f64, greedy: Option<f64>) -> HeldOutPoint {
        let numbers = |mean: f64| HeldOutNumbers {
            rollouts: 100,
            ran: 100,
            scored: 98,
            failed: 2,
            reward_mean: Some(mean),
            reward_ci95: Some([mean - 0.05, mean + 0.05]),
            pass_rate: Some(mean - 0.02),
            ..HeldOutNumbers::default()
        };
        HeldOutPoint {
            step,
            evaluation: EvaluationReport {
                all: ByDecoding {
                    sampled: numbers(mean),
                    greedy: greedy.map(numbers),
                },
                ..EvaluationReport::default()
            },
        }
    }

    #[test]
    fn the_json_has_sampled_greedy_and_unseen_phrasings() {
        let mut one = point(3, 0.5, Some(0.25));
        let json = one.json();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["step", "sampled", "greedy"], "{json}");
        assert_eq!(json["sampled"]["mean"], 0.5);
        assert_eq!(json["greedy"]["mean"], 0.25);
        assert_eq!(json["greedy"]["ci95"], json!([0.2, 0.3]));
        assert_eq!(json["sampled"]["failed"], 2);
        one.evaluation.unseen_phrasings = Some(ByDecoding {
            sampled: HeldOutNumbers::default(),
            greedy: Some(HeldOutNumbers::default()),
        });
        let unseen = &one.json()["unseen_phrasings"];
        assert_eq!(unseen["sampled"]["ci95"], Value::Null);
        assert_eq!(unseen["greedy"]["mean"], Value::Null);
        assert_eq!(point(3, 0.5, None).json()["greedy"], Value::Null);
    }

    #[test]
    fn failures_stand_beside_the_scores() {
        let mut numbers = *point(0, 0.5, None).sampled();
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
