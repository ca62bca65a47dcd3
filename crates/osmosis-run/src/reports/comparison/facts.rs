//! What the two runs were pinned to, where it differs.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::runs::Pinned;

/// A fact that is not the same in both runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    pub fact: String,
    pub first: Value,
    pub second: Value,
    /// Why the two runs may not have been measured alike; `null` for what a comparison is usually about.
    pub caution: Option<String>,
}

pub(super) fn differences(first: &Pinned, second: &Pinned) -> Vec<Difference> {
    // The digest of all files has those that do not count, too.
    let same_files = first
        .files_changed(second)
        .is_some_and(|files| files.is_empty());
    let (first, second) = (first.facts(), second.facts());
    let names: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    let mut found: Vec<Difference> = names
        .into_iter()
        .filter(|name| !has_place_of_its_own(name))
        .map(|name| Difference {
            fact: name.clone(),
            first: first.get(name).cloned().unwrap_or_default(),
            second: second.get(name).cloned().unwrap_or_default(),
            caution: caution(name).map(str::to_owned),
        })
        .filter(|difference| difference.first != difference.second)
        .collect();
    // Another model path has another identity; that need not be said twice.
    if same_files {
        found.retain(|d| d.fact != "source_sha256");
    }
    if found.iter().any(|d| d.fact == "experiment.model_path") {
        found.retain(|d| d.fact != "model");
    }
    found
}

/// Which rows were compared has a line of its own; what is remembered is no part of what a run is.
fn has_place_of_its_own(fact: &str) -> bool {
    Pinned::is_remembered(fact)
        || matches!(fact, "rows" | "evaluation.limit" | "dataset_sha256")
        || matches!(fact, "regraded_from_created_at_ms" | "policy_calls_in")
        || fact == Pinned::SOURCE_FILES
}

fn caution(fact: &str) -> Option<&'static str> {
    match fact {
        "evaluation.pass_threshold" => {
            Some("passes are not the same thing in both: the threshold differs")
        }
        "evaluation.reward_range" => {
            Some("the stated reward ranges differ: perhaps rewards are not the same thing in both")
        }
        "source_sha256" => Some(
            "the rollout's code differs: agent, grader or both; if the grader changed, the rewards \
             are not the same thing in both",
        ),
        "experiment.rollout" | "experiment.entrypoint" | "server" => {
            Some("the user's code differs, and with it perhaps the grader")
        }
        "regraded_from" => {
            Some("one of them grades recorded samples again: it has no calls and times to compare")
        }
        fact if ["grader", "judge"].contains(&fact) || fact.starts_with("grader.") => {
            Some("the graders differ: rewards and passes are not the same thing in both")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use osmosis_core::JsonText;
    use serde_json::json;

    use super::*;

    fn pinned(facts: &Value) -> Pinned {
        Pinned::read(&JsonText::of(facts).unwrap()).unwrap()
    }

    #[test]
    fn only_what_differs_and_matters_is_told() {
        let first = pinned(&json!({
            "experiment.model_path": "openai/a", "model": {"base_url": "x"}, "evaluation.n": 1,
            "evaluation.pass_threshold": 1.0, "rows": null, "remembered.config": "a.toml",
            "grader.strict": true,
        }));
        let second = pinned(&json!({
            "experiment.model_path": "openai/b", "model": {"base_url": "y"}, "evaluation.n": 4,
            "evaluation.pass_threshold": 1.0, "rows": "0-3", "remembered.config": "b.toml",
        }));
        let found = differences(&first, &second);
        let values: Vec<(&str, &Value, &Value)> = found
            .iter()
            .map(|d| (d.fact.as_str(), &d.first, &d.second))
            .collect();
        assert_eq!(
            values,
            [
                ("evaluation.n", &json!(1), &json!(4)),
                (
                    "experiment.model_path",
                    &json!("openai/a"),
                    &json!("openai/b")
                ),
                ("grader.strict", &json!(true), &Value::Null),
            ]
        );
        let cautious: Vec<bool> = found.iter().map(|d| d.caution.is_some()).collect();
        assert_eq!(cautious, [false, false, true]);
    }
}
