//! What the two runs were pinned to, where it differs.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::runs::Pinned;

/// A fact that is not the same in both runs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Difference {
    pub(super) fact: String,
    pub(super) first: Value,
    pub(super) second: Value,
}

/// Which run's samples a run grades that has no rollouts of its own.
const REGRADED: &str = "regraded_from";

/// Whether the run has model calls and times of its own.
pub(super) fn has_usage(facts: &Pinned) -> bool {
    facts.regraded_from.is_none()
}

/// Longest value that is shown in a line.
const WIDTH: usize = 60;

pub(super) fn differences(first: &Pinned, second: &Pinned) -> Vec<Difference> {
    let (first, second) = (&first.facts(), &second.facts());
    let names: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    let get = |facts: &Map<String, Value>, name: &str| facts.get(name).cloned().unwrap_or_default();
    let mut found: Vec<Difference> = names
        .into_iter()
        .filter(|name| !is_told_elsewhere(name))
        .map(|name| Difference {
            fact: name.clone(),
            first: get(first, name),
            second: get(second, name),
        })
        .filter(|difference| difference.first != difference.second)
        .collect();
    // Another model path has another identity; that need not be said twice.
    if found.iter().any(|d| d.fact == "experiment.model_path") {
        found.retain(|d| d.fact != "model");
    }
    found
}

/// Which rows were compared has a line of its own; what is remembered is no part of what a run is.
fn is_told_elsewhere(fact: &str) -> bool {
    Pinned::is_remembered(fact)
        || matches!(fact, "rows" | "evaluation.limit" | "dataset_sha256")
        || matches!(fact, "regraded_from_created_at_ms" | "policy_calls_in")
}

impl Difference {
    /// Why the two runs may not have been measured alike; `None` for what a comparison is usually about.
    pub(super) fn caution(&self) -> Option<&'static str> {
        match self.fact.as_str() {
            "evaluation.pass_threshold" => {
                Some("passes are not the same thing in both: the threshold differs")
            }
            "evaluation.reward_range" => Some(
                "the stated reward ranges differ: perhaps rewards are not the same thing in both",
            ),
            "source_sha256" => Some(
                "the rollout's code differs: agent, grader or both; if the grader changed, the rewards \
                 are not the same thing in both",
            ),
            "experiment.rollout" | "experiment.entrypoint" | "server" => {
                Some("the user's code differs, and with it perhaps the grader")
            }
            REGRADED => Some(
                "one of them grades recorded samples again: it has no calls and times to compare",
            ),
            fact if ["grader", "judge"].contains(&fact) || fact.starts_with("grader.") => {
                Some("the graders differ: rewards and passes are not the same thing in both")
            }
            _ => None,
        }
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{}: {} → {}",
            self.fact,
            short(&self.first),
            short(&self.second)
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "fact": self.fact, "first": self.first, "second": self.second,
            "caution": self.caution(),
        })
    }
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let width = if is_digest { 12 } else { WIDTH };
    if text.chars().count() <= width {
        return text;
    }
    let start: String = text.chars().take(width).collect();
    format!("{start}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned(facts: Value) -> Pinned {
        Pinned::read(&osmosis_core::JsonText::of(&facts).unwrap()).unwrap()
    }

    #[test]
    fn only_what_differs_and_matters_is_told() {
        let first = pinned(json!({
            "experiment.model_path": "openai/a", "model": {"base_url": "x"}, "evaluation.n": 1,
            "evaluation.pass_threshold": 1.0, "rows": null, "remembered.config": "a.toml",
            "grader.strict": true,
        }));
        let second = pinned(json!({
            "experiment.model_path": "openai/b", "model": {"base_url": "y"}, "evaluation.n": 4,
            "evaluation.pass_threshold": 1.0, "rows": "0-3", "remembered.config": "b.toml",
        }));
        let found = differences(&first, &second);
        let lines: Vec<String> = found.iter().map(Difference::line).collect();
        assert_eq!(
            lines,
            [
                "evaluation.n: 1 → 4",
                "experiment.model_path: openai/a → openai/b",
                "grader.strict: true → none",
            ]
        );
        let cautious: Vec<bool> = found.iter().map(|d| d.caution().is_some()).collect();
        assert_eq!(cautious, [false, false, true]);
    }
}
