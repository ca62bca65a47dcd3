//! What the rewards of a sample belong to, when that is less than the whole sample.
//!
//! A workflow that is its own grader may reward single model calls, or bring the tokens it wants to be
//! trained on with a reward for each sequence. A grader may reward the turns of a sample, which are model calls, too.
//! All of it is kept in the sample's `extra_fields`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{JsonText, JsonTextError, Reward};

const INTERACTIONS: &str = "interactions";
const SEQUENCES: &str = "sequences";

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
    /// The id that the caller was given; empty when that is not known.
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

    /// Extra fields without credit. Fields of the user's own stay, also those that have our names and another shape.
    pub fn taken_off(extra_fields: JsonText) -> Option<JsonText> {
        let credit = Self::read(Some(&extra_fields)).unwrap_or_default();
        if credit == Self::default() {
            return Some(extra_fields);
        }
        let mut fields: Map<String, Value> = extra_fields.read().unwrap_or_default();
        fields.retain(|name, _| name != INTERACTIONS && name != SEQUENCES);
        if fields.is_empty() {
            return None;
        }
        JsonText::of(&fields).ok()
    }

    /// Extra fields with the rewards of single calls added to those of the user's. Fails with the name of a field that
    /// the user has for something else.
    pub fn with_interactions(
        extra_fields: Option<JsonText>,
        interactions: &[Interaction],
    ) -> Result<JsonText, String> {
        let text = |error: JsonTextError| error.to_string();
        let bare = extra_fields.and_then(Self::taken_off);
        let mut fields: Map<String, Value> = match bare {
            Some(bare) => bare.read().map_err(text)?,
            None => Map::new(),
        };
        if fields.contains_key(INTERACTIONS) {
            return Err(format!(
                "`{INTERACTIONS}` in `extra_fields` is where rewards of single turns are kept: use another name"
            ));
        }
        let value = serde_json::to_value(interactions).map_err(|error| error.to_string())?;
        fields.insert(INTERACTIONS.to_owned(), value);
        JsonText::of(&fields).map_err(text)
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

    fn interaction(reward: f64) -> Interaction {
        Interaction {
            completion: "a".to_owned(),
            calls: vec![0],
            reward: Reward::new(reward).unwrap(),
        }
    }

    #[test]
    fn rewards_of_calls_are_put_beside_the_users_fields_and_taken_off_again() {
        let own = JsonText::parse(r#"{"mine":7}"#).unwrap();
        let with = Credit::with_interactions(Some(own.clone()), &[interaction(0.5)]).unwrap();
        let read = Credit::read(Some(&with)).unwrap();
        assert_eq!(read.interactions, [interaction(0.5)]);
        assert_eq!(Credit::taken_off(with.clone()), Some(own));
        let again = Credit::with_interactions(Some(with), &[interaction(1.0)]).unwrap();
        let read = Credit::read(Some(&again)).unwrap();
        assert_eq!(read.interactions, [interaction(1.0)]);
        let alone = Credit::with_interactions(None, &[interaction(1.0)]).unwrap();
        assert_eq!(Credit::taken_off(alone), None);
    }

    #[test]
    fn fields_of_the_users_own_that_have_our_names_stay() {
        let own = JsonText::parse(r#"{"interactions":3}"#).unwrap();
        assert_eq!(Credit::taken_off(own.clone()), Some(own.clone()));
        let refused = Credit::with_interactions(Some(own), &[interaction(1.0)]).unwrap_err();
        assert!(refused.contains("use another name"), "{refused}");
    }
}
