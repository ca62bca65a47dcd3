//! What the rewards of a sample belong to, when that is less than the whole sample.
//!
//! A workflow that is its own grader may reward single model calls, or bring the tokens it wants to be
//! trained on with a reward for each sequence. Both are kept in the sample's `extra_fields`.

use serde::{Deserialize, Serialize};

use crate::{JsonText, JsonTextError, Reward};

/// The parts of a sample that have rewards of their own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Credit {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interactions: Vec<Interaction>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<Sequence>,
}

/// One model call and what it was worth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interaction {
    /// The id that the caller was given.
    pub completion: String,
    /// The numbers of its token records within the sample; empty when none were recorded.
    pub calls: Vec<u32>,
    pub reward: Reward,
}

/// Tokens as user code put them together. All lists have the length of `input_ids`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sequence {
    pub input_ids: Vec<u32>,
    /// Which tokens the policy made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_mask: Option<Vec<bool>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f32>>,
    /// -1 where the policy made nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<Vec<i64>>,
    /// Of the tokens under the loss mask, 1 elsewhere; filled from the records of the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperatures: Option<Vec<f32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<Reward>,
    /// What user code calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl Credit {
    /// Reads it from the extra fields of a sample; fields of other names are not ours.
    pub fn read(extra_fields: Option<&JsonText>) -> Result<Self, JsonTextError> {
        match extra_fields {
            None => Ok(Self::default()),
            Some(text) => Ok(serde_json::from_str(text.as_str())?),
        }
    }

    /// As extra fields of a sample.
    pub fn to_extra_fields(&self) -> Result<JsonText, JsonTextError> {
        JsonText::of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_read_beside_fields_of_other_names() {
        let text = r#"{"sequences": [{"input_ids": [1, 2], "loss_mask": [false, true],
            "logprobs": [0.0, -0.5], "versions": [-1, 3], "reward": 1}], "mine": 7}"#;
        let credit = Credit::read(Some(&JsonText::parse(text).unwrap())).unwrap();
        assert_eq!(credit.sequences[0].versions, Some(vec![-1, 3]));
        assert_eq!(
            credit.sequences[0].reward.unwrap().get().to_bits(),
            1f64.to_bits()
        );
        let written = credit.to_extra_fields().unwrap();
        assert_eq!(Credit::read(Some(&written)).unwrap(), credit);
        assert_eq!(Credit::read(None).unwrap(), Credit::default());
    }
}
