//! What a run is pinned to. A resume with anything of it changed would mix two experiments.

use std::fmt::Write as _;

use osmosis_core::{JsonText, RewardRange};
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value};

use crate::{RunError, RunErrorKind};

/// What a resume goes on with but may change; no part of what the run is.
const REMEMBERED: &str = "remembered.";

/// Facts by name. Throughput settings are not among them.
#[derive(Debug, Clone, PartialEq)]
pub struct Pinned(pub Map<String, Value>);

impl Pinned {
    /// The settings of a config, one fact for each key: `section.key`.
    pub fn of_config(config: &impl Serialize) -> Result<Self, RunError> {
        let config = serde_json::to_value(config)
            .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))?;
        let mut facts = Map::new();
        if let Value::Object(sections) = config {
            for (section, value) in sections {
                match value {
                    Value::Object(keys) => {
                        for (key, value) in keys {
                            facts.insert(format!("{section}.{key}"), value);
                        }
                    }
                    other => {
                        facts.insert(section, other);
                    }
                }
            }
        }
        Ok(Self(facts))
    }

    pub fn insert(&mut self, fact: &str, value: impl Into<Value>) {
        self.0.insert(fact.to_owned(), value.into());
    }

    /// Notes something that a resume would otherwise have to be told again.
    pub fn remember(&mut self, what: &str, value: impl Into<Value>) {
        self.insert(&format!("{REMEMBERED}{what}"), value);
    }

    pub fn remembered(&self, what: &str) -> Option<String> {
        self.text(&format!("{REMEMBERED}{what}"))
    }

    /// Whether a fact is no part of what the run is.
    pub fn is_remembered(fact: &str) -> bool {
        fact.starts_with(REMEMBERED)
    }

    pub fn number(&self, fact: &str) -> Option<u64> {
        self.0.get(fact).and_then(Value::as_u64)
    }

    pub fn text(&self, fact: &str) -> Option<String> {
        self.0.get(fact).and_then(Value::as_str).map(str::to_owned)
    }

    /// `reward_range` of an evaluation's config.
    pub fn reward_range(&self) -> Option<RewardRange> {
        let stated = self.0.get("evaluation.reward_range")?;
        RewardRange::deserialize(stated).ok()
    }

    pub fn to_json(&self) -> Result<JsonText, RunError> {
        JsonText::of(&self.0)
            .map_err(|error| RunError::failed(RunErrorKind::Internal, error.to_string()))
    }

    pub fn read(text: &JsonText) -> Result<Self, RunError> {
        text.read::<Map<String, Value>>()
            .map(Self)
            .map_err(|error| RunError::failed(RunErrorKind::RunDamaged, error.to_string()))
    }

    /// Refuses when a fact differs, showing old and new.
    pub fn check(&self, now: &Self, run: &str) -> Result<(), RunError> {
        let mut differences = vec![];
        for (name, new) in &now.0 {
            let old = self.0.get(name).unwrap_or(&Value::Null);
            if old != new && !name.starts_with(REMEMBERED) {
                differences.push((name.clone(), old.clone(), new.clone()));
            }
        }
        if differences.is_empty() {
            return Ok(());
        }
        let mut message = format!("run `{run}` can't be resumed: it was made with");
        for (name, old, new) in &differences {
            let _ = write!(
                message,
                "\n  {name}: {old}\n  {:>width$}  {new}",
                "now:",
                width = name.len() - 1
            );
        }
        let details: Vec<Value> = differences
            .into_iter()
            .map(|(name, old, new)| serde_json::json!({"fact": name, "old": old, "new": new}))
            .collect();
        Err(RunError::failed(RunErrorKind::RunPinned, message)
            .hint("undo the change, start a run with another `--name`, or put this one away with `--fresh`")
            .details(serde_json::json!({ "differences": details })))
    }
}
