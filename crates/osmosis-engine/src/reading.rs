//! What a claimed row asks for: a dataset row, or a request that a rollout server accepted.

use std::collections::BTreeMap;
use std::time::Duration;

use osmosis_core::{JsonText, JsonTextError};
use osmosis_data::Row;
use osmosis_store::Claim;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::EngineError;

/// No deadline is further away, whatever a request says.
const LONGEST_LIMIT_SECONDS: f64 = 365.0 * 86_400.0;

/// What the rows of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Rows of a dataset, made into prompt, label and metadata.
    DatasetRows,
    /// Rows of a dataset as they are, for a workflow that is its own grader.
    WholeRows,
    /// Requests to a rollout server: `initial_messages`, and what else it was sent.
    ServedRequests,
}

/// What one rollout is about.
#[derive(Debug, PartialEq)]
pub(crate) struct Assigned {
    pub(crate) prompt: JsonText,
    pub(crate) label: Option<String>,
    pub(crate) metadata: Option<JsonText>,
    /// The row as it is, for a workflow that is its own grader.
    pub(crate) whole: Option<JsonText>,
    /// Its own deadlines, which go before those of the run.
    pub(crate) agent_limit: Option<Duration>,
    pub(crate) grade_limit: Option<Duration>,
}

impl Assigned {
    /// What a workflow that is its own grader gets: the row as it is, or what a request has of one,
    /// its messages, its label, and the fields of its metadata.
    pub(crate) fn for_own_grader(&self) -> Result<JsonText, JsonTextError> {
        if let Some(whole) = &self.whole {
            return Ok(whole.clone());
        }
        let label = self.label.as_ref().map(JsonText::of).transpose()?;
        let mut fields: BTreeMap<String, &RawValue> = BTreeMap::new();
        fields.insert(
            "messages".to_owned(),
            serde_json::from_str(self.prompt.as_str())?,
        );
        if let Some(label) = &label {
            fields.insert("label".to_owned(), serde_json::from_str(label.as_str())?);
        }
        if let Some(metadata) = &self.metadata {
            let more: BTreeMap<String, &RawValue> = serde_json::from_str(metadata.as_str())?;
            fields.extend(more);
        }
        JsonText::of(&fields)
    }
}

#[derive(Debug, Deserialize)]
struct ServedRow<'a> {
    #[serde(borrow)]
    initial_messages: &'a RawValue,
    label: Option<String>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    agent_timeout_sec: Option<f64>,
    grader_timeout_sec: Option<f64>,
}

impl Reading {
    pub(crate) fn read(self, claim: &Claim) -> Result<Assigned, EngineError> {
        let assigned = match self {
            Self::DatasetRows => dataset_row(claim),
            Self::WholeRows => whole_row(claim),
            Self::ServedRequests => served_request(claim.row.body.as_str()),
        };
        assigned.map_err(|message| EngineError::Row {
            row_index: claim.row.row_index,
            message,
        })
    }
}

fn dataset_row(claim: &Claim) -> Result<Assigned, String> {
    let row = Row::from_body(claim.row.row_index, claim.row.line, &claim.row.body)
        .map_err(|error| error.to_string())?;
    Ok(Assigned {
        prompt: row.prompt_json().map_err(|error| error.to_string())?,
        label: row.label,
        metadata: row.metadata,
        whole: None,
        agent_limit: None,
        grade_limit: None,
    })
}

fn whole_row(claim: &Claim) -> Result<Assigned, String> {
    Ok(Assigned {
        prompt: JsonText::of(&[(); 0]).map_err(|error| error.to_string())?,
        label: None,
        metadata: None,
        whole: Some(claim.row.body.clone()),
        agent_limit: None,
        grade_limit: None,
    })
}

fn served_request(body: &str) -> Result<Assigned, String> {
    let row: ServedRow = serde_json::from_str(body).map_err(|error| error.to_string())?;
    let json = |raw: &RawValue| JsonText::parse(raw.get()).map_err(|error| error.to_string());
    let limit = |seconds: f64| {
        Duration::try_from_secs_f64(seconds.min(LONGEST_LIMIT_SECONDS))
            .map_err(|_| format!("`{seconds}` seconds is no deadline"))
    };
    Ok(Assigned {
        prompt: json(row.initial_messages)?,
        label: row.label,
        metadata: row.metadata.map(json).transpose()?,
        whole: None,
        agent_limit: row.agent_timeout_sec.map(limit).transpose()?,
        grade_limit: row.grader_timeout_sec.map(limit).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_served_request_brings_its_messages_as_they_were_and_its_own_deadlines() {
        let body = r#"{"initial_messages": [{"role":"user","content":"a \u00e9","n":1.50}],
            "label": "7", "metadata": {"a": 1}, "agent_timeout_sec": 1.5, "grader_timeout_sec": 1e300,
            "extra_fields": {"more": []}}"#;
        let assigned = served_request(body).unwrap();
        assert_eq!(
            assigned.prompt.as_str(),
            r#"[{"role":"user","content":"a \u00e9","n":1.50}]"#
        );
        assert_eq!(assigned.label.as_deref(), Some("7"));
        assert_eq!(
            assigned.for_own_grader().unwrap().as_str(),
            r#"{"a":1,"label":"7","messages":[{"role":"user","content":"a \u00e9","n":1.50}]}"#
        );
        assert_eq!(assigned.metadata.unwrap().as_str(), r#"{"a": 1}"#);
        assert_eq!(assigned.agent_limit, Some(Duration::from_millis(1500)));
        assert_eq!(assigned.grade_limit, Some(Duration::from_hours(365 * 24)));
    }

    #[test]
    fn what_a_served_request_leaves_out_is_nothing() {
        let assigned = served_request(r#"{"initial_messages": [], "metadata": null}"#).unwrap();
        assert_eq!(
            assigned,
            Assigned {
                prompt: JsonText::parse("[]").unwrap(),
                label: None,
                metadata: None,
                whole: None,
                agent_limit: None,
                grade_limit: None,
            }
        );
    }

    #[test]
    fn a_row_without_messages_or_with_a_deadline_in_the_past_is_refused() {
        for bad in [
            "{}",
            r#"{"initial_messages": [], "agent_timeout_sec": -1}"#,
            r#"{"initial_messages": [], "label": 7}"#,
        ] {
            assert!(served_request(bad).is_err(), "{bad}");
        }
    }
}
