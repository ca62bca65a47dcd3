//! Outcomes and rewards as columns.

use std::str::FromStr;

use osmosis_core::{Failure, Outcome, OutcomeKind, Phase, Reward, Sample, SampleId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::SenselessRecord;
use crate::StoreError;

/// What an outcome is besides its kind and reward. Also the wire between our types and the column
/// `outcome_detail`, so its names are a promise.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Detail {
    Failure(Failure),
    Deadline { phase: Phase, limit_ms: u64 },
    Reason { reason: String },
}

/// The whole story of an outcome as JSON; `None` when its kind and reward say it all.
pub fn outcome_detail(outcome: &Outcome) -> Result<Option<String>, StoreError> {
    let detail = match outcome {
        Outcome::Scored { .. } | Outcome::Cancelled => return Ok(None),
        Outcome::AgentFailed { failure }
        | Outcome::Ungraded { failure }
        | Outcome::InfrastructureFailed { failure } => Detail::Failure(failure.clone()),
        Outcome::TimedOut { phase, limit_ms } => Detail::Deadline {
            phase: *phase,
            limit_ms: *limit_ms,
        },
        Outcome::Rejected { reason } => Detail::Reason {
            reason: reason.clone(),
        },
    };
    serde_json::to_string(&detail)
        .map(Some)
        .map_err(|error| StoreError::refused(error.to_string()))
}

/// The outcome again. `scored` is asked for reward and pass of a scored one alone.
pub fn read_outcome<E: From<SenselessRecord>>(
    kind: OutcomeKind,
    detail: Option<&str>,
    scored: impl FnOnce() -> Result<(Reward, bool), E>,
) -> Result<Outcome, E> {
    if kind == OutcomeKind::Scored {
        let (reward, passed) = scored()?;
        return Ok(Outcome::Scored { reward, passed });
    }
    let detail = match detail {
        None => None,
        Some(text) => {
            Some(serde_json::from_str(text).map_err(|error| SenselessRecord(error.to_string()))?)
        }
    };
    let outcome = match (kind, detail) {
        (OutcomeKind::AgentFailed, Some(Detail::Failure(failure))) => {
            Outcome::AgentFailed { failure }
        }
        (OutcomeKind::Ungraded, Some(Detail::Failure(failure))) => Outcome::Ungraded { failure },
        (OutcomeKind::InfrastructureFailed, Some(Detail::Failure(failure))) => {
            Outcome::InfrastructureFailed { failure }
        }
        (OutcomeKind::TimedOut, Some(Detail::Deadline { phase, limit_ms })) => {
            Outcome::TimedOut { phase, limit_ms }
        }
        (OutcomeKind::Rejected, Some(Detail::Reason { reason })) => Outcome::Rejected { reason },
        (OutcomeKind::Cancelled, None) => Outcome::Cancelled,
        (kind, _) => {
            let message = format!("`outcome_detail` does not belong to outcome `{kind}`");
            return Err(SenselessRecord(message).into());
        }
    };
    Ok(outcome)
}

/// The rewards of the kept samples as a JSON object, in the order of the samples.
pub fn sample_rewards(samples: &[Sample]) -> Result<String, StoreError> {
    let unwritable = |error: serde_json::Error| StoreError::refused(error.to_string());
    let mut text = String::from("{");
    for sample in samples.iter().filter(|sample| !sample.remove_sample) {
        if text.len() > 1 {
            text.push(',');
        }
        let id = serde_json::value::to_raw_value(&sample.id).map_err(unwritable)?;
        let reward = serde_json::value::to_raw_value(&sample.reward).map_err(unwritable)?;
        text.push_str(RawValue::get(&id));
        text.push(':');
        text.push_str(RawValue::get(&reward));
    }
    text.push('}');
    Ok(text)
}

/// The rewards of the kept samples, out of the JSON object in `sample_rewards`.
pub fn read_rewards(
    text: Option<&str>,
) -> Result<Vec<(SampleId, Option<Reward>)>, SenselessRecord> {
    let Some(text) = text else {
        return Ok(Vec::new());
    };
    let InOrder(pairs) =
        serde_json::from_str(text).map_err(|error| SenselessRecord(error.to_string()))?;
    pairs
        .into_iter()
        .map(|(id, reward)| {
            let reward = match reward.get() {
                "null" => None,
                number => Some(
                    Reward::recorded(exact_float(number)?)
                        .map_err(|error| SenselessRecord(error.to_string()))?,
                ),
            };
            Ok((id, reward))
        })
        .collect()
}

/// A float exactly as it was written. `serde_json`'s own reading may be off by one in the last digit.
fn exact_float(text: &str) -> Result<f64, SenselessRecord> {
    f64::from_str(text).map_err(|error| SenselessRecord(format!("`{text}`: {error}")))
}

/// A JSON object whose order counts.
struct InOrder(Vec<(SampleId, Box<RawValue>)>);

impl<'de> Deserialize<'de> for InOrder {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> serde::de::Visitor<'de> for Pairs {
            type Value = InOrder;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of rewards by sample id")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<InOrder, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(InOrder(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_keep_their_order_and_what_is_no_object_is_named() {
        let found = read_rewards(Some(r#"{"b":0.1,"a":null}"#)).unwrap();
        let ids: Vec<&str> = found.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["b", "a"]);
        let SenselessRecord(message) = read_rewards(Some("1")).unwrap_err();
        let expected = "expected an object of rewards by sample id";
        assert!(message.contains(expected), "{message}");
    }
}
