use serde::{Deserialize, Serialize};

use crate::{JsonText, Reward, SampleId};

/// What one source of a rollout produced, and what the grader scored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub id: SampleId,
    /// A JSON array of the conversation's items, in the shape of the framework that made them.
    pub messages: JsonText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<Reward>,
    /// The grader asked to leave this sample out of every number.
    #[serde(default)]
    pub remove_sample: bool,
    /// A JSON object of the numbers the workflow or grader attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<JsonText>,
    /// A JSON object of whatever else the user attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_fields: Option<JsonText>,
}
