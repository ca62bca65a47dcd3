//! What a run is pinned to. A resume with anything of it changed would mix two experiments.

use std::fmt::Write as _;

use osmosis_core::JsonText;
use serde_json::{Map, Value};

use crate::error::CliError;

/// Facts by name. Throughput settings are not among them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pinned(pub(crate) Map<String, Value>);

impl Pinned {
    pub(crate) fn to_json(&self) -> Result<JsonText, CliError> {
        JsonText::of(&self.0).map_err(|error| CliError::failed("internal", error.to_string()))
    }

    pub(crate) fn read(text: &JsonText) -> Result<Self, CliError> {
        text.read::<Map<String, Value>>()
            .map(Self)
            .map_err(|error| CliError::failed("run_damaged", error.to_string()))
    }

    /// Refuses when a fact differs, showing old and new.
    pub(crate) fn check(&self, now: &Self, run: &str) -> Result<(), CliError> {
        let mut differences = vec![];
        for (name, new) in &now.0 {
            let old = self.0.get(name).unwrap_or(&Value::Null);
            if old != new {
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
        Err(CliError::failed("run_pinned", message)
            .hint("undo the change, start a run with another `--name`, or put this one away with `--fresh`")
            .details(serde_json::json!({ "differences": details })))
    }
}
