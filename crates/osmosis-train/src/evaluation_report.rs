//! What an evaluation on held-out rows came to, under the names it has in `metrics.jsonl`.

use std::collections::BTreeSet;

use osmosis_core::RewardRange;
use osmosis_store::RolloutRecord;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::report::numbers_of;

/// The numbers of one evaluation: each held-out row once sampled as in training, and once greedily.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EvaluationReport {
    /// Over all held-out rows: `eval/…` and `eval/greedy_…`.
    pub all: ByDecoding,
    /// Over the rows whose phrasing is never trained on, when there are such:
    /// `eval/unseen_phrasings_…` and `eval/unseen_phrasings_greedy_…`.
    pub unseen_phrasings: Option<ByDecoding>,
    /// Seconds: `time/eval`.
    pub time: f64,
}

/// The same rows, decoded in two ways.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ByDecoding {
    /// At the training temperature.
    pub sampled: HeldOutNumbers,
    /// At temperature 0; `None` in runs from before this was evaluated.
    pub greedy: Option<HeldOutNumbers>,
}

/// The numbers of one rollout per row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldOutNumbers {
    pub rollouts: u64,
    /// Those that say something about the agent: what the pass rate is a share of.
    pub ran: u64,
    pub scored: u64,
    /// Those that ran and have no reward: crashes, time-outs, no grade.
    pub failed: u64,
    pub infrastructure_failed: u64,
    /// Over the scored rollouts.
    pub reward_mean: Option<f64>,
    /// 95%, clustered by dataset row: low, high.
    pub reward_ci95: Option<[f64; 2]>,
    pub reward_min: Option<f64>,
    /// Passed / all that ran.
    pub pass_rate: Option<f64>,
    pub pass_rate_ci95: Option<[f64; 2]>,
    pub completion_tokens: u64,
}

const ALL: &str = "eval/";
const ALL_GREEDY: &str = "eval/greedy_";
const UNSEEN: &str = "eval/unseen_phrasings_";
const UNSEEN_GREEDY: &str = "eval/unseen_phrasings_greedy_";
const TIME: &str = "time/eval";

impl EvaluationReport {
    /// `unseen` are the rows whose phrasing is never trained on, `range` is where rewards lie, as the config
    /// states it.
    pub(crate) fn of(
        rollouts: &[RolloutRecord],
        unseen: &BTreeSet<u64>,
        seconds: f64,
        range: Option<RewardRange>,
    ) -> Self {
        let all: Vec<&RolloutRecord> = rollouts.iter().collect();
        let of_unseen: Vec<&RolloutRecord> = rollouts
            .iter()
            .filter(|rollout| unseen.contains(&rollout.row_index))
            .collect();
        Self {
            all: ByDecoding::of(&all, range),
            unseen_phrasings: (!of_unseen.is_empty()).then(|| ByDecoding::of(&of_unseen, range)),
            time: seconds,
        }
    }

    /// What the metrics of a step say of an evaluation, when there was one.
    pub fn read(metrics: &Map<String, Value>) -> Option<Self> {
        Some(Self {
            all: ByDecoding::read(metrics, ALL, ALL_GREEDY)?,
            unseen_phrasings: ByDecoding::read(metrics, UNSEEN, UNSEEN_GREEDY),
            time: metrics.get(TIME).and_then(Value::as_f64).unwrap_or(0.0),
        })
    }
}

impl ByDecoding {
    fn of(rollouts: &[&RolloutRecord], range: Option<RewardRange>) -> Self {
        let (greedy, sampled): (Vec<&RolloutRecord>, Vec<&RolloutRecord>) =
            rollouts.iter().partition(|rollout| rollout.id.is_greedy());
        Self {
            sampled: HeldOutNumbers::of(&sampled, range),
            greedy: (!greedy.is_empty()).then(|| HeldOutNumbers::of(&greedy, range)),
        }
    }

    fn read(metrics: &Map<String, Value>, sampled: &str, greedy: &str) -> Option<Self> {
        Some(Self {
            sampled: HeldOutNumbers::read(metrics, sampled)?,
            greedy: HeldOutNumbers::read(metrics, greedy),
        })
    }
}

impl HeldOutNumbers {
    fn of(rollouts: &[&RolloutRecord], range: Option<RewardRange>) -> Self {
        let numbers = numbers_of(rollouts.iter().copied(), range);
        Self {
            rollouts: numbers.rollouts,
            ran: numbers.ran,
            scored: numbers.outcomes.scored,
            failed: numbers.ran.saturating_sub(numbers.outcomes.scored),
            infrastructure_failed: numbers.outcomes.infrastructure_failed,
            reward_mean: numbers.reward.mean,
            reward_ci95: numbers.reward.ci95.map(|ci| [ci.low, ci.high]),
            reward_min: numbers.reward.min,
            pass_rate: numbers.pass_rate,
            pass_rate_ci95: numbers.pass_rate_ci95.map(|ci| [ci.low, ci.high]),
            completion_tokens: numbers.completion_tokens,
        }
    }

    fn read(metrics: &Map<String, Value>, prefix: &str) -> Option<Self> {
        let own: Map<String, Value> = metrics
            .iter()
            .filter_map(|(name, value)| {
                Some((name.strip_prefix(prefix)?.to_owned(), value.clone()))
            })
            .collect();
        own.get("rollouts")?;
        let told_ran = own.contains_key("ran");
        let mut numbers: Self = serde_json::from_value(Value::Object(own)).ok()?;
        if !told_ran {
            // Runs from before this was recorded.
            numbers.ran = numbers
                .rollouts
                .saturating_sub(numbers.infrastructure_failed);
            numbers.failed = numbers.ran.saturating_sub(numbers.scored);
        }
        Some(numbers)
    }

    fn write<M: SerializeMap>(&self, prefix: &str, map: &mut M) -> Result<(), M::Error> {
        let value = serde_json::to_value(self).map_err(serde::ser::Error::custom)?;
        for (name, value) in value.as_object().into_iter().flatten() {
            map.serialize_entry(&format!("{prefix}{name}"), value)?;
        }
        Ok(())
    }
}

impl Serialize for EvaluationReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let mut both = |decoded: &ByDecoding, sampled: &str, greedy: &str| {
            decoded.sampled.write(sampled, &mut map)?;
            match &decoded.greedy {
                Some(numbers) => numbers.write(greedy, &mut map),
                None => Ok(()),
            }
        };
        both(&self.all, ALL, ALL_GREEDY)?;
        if let Some(unseen) = &self.unseen_phrasings {
            both(unseen, UNSEEN, UNSEEN_GREEDY)?;
        }
        map.serialize_entry(TIME, &self.time)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for EvaluationReport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let metrics = Map::deserialize(deserializer)?;
        Self::read(&metrics).ok_or_else(|| serde::de::Error::missing_field("eval/rollouts"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn numbers(reward: f64) -> HeldOutNumbers {
        HeldOutNumbers {
            rollouts: 4,
            ran: 3,
            scored: 2,
            failed: 1,
            infrastructure_failed: 1,
            reward_mean: Some(reward),
            reward_ci95: Some([0.0, 0.5]),
            pass_rate: Some(0.25),
            ..HeldOutNumbers::default()
        }
    }

    #[test]
    fn greedy_and_unseen_phrasings_have_names_of_their_own_and_are_read_back() {
        let report = EvaluationReport {
            all: ByDecoding {
                sampled: numbers(0.1),
                greedy: Some(numbers(0.2)),
            },
            unseen_phrasings: Some(ByDecoding {
                sampled: numbers(0.3),
                greedy: Some(numbers(0.4)),
            }),
            time: 1.5,
        };
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["eval/reward_mean"], 0.1);
        assert_eq!(value["eval/greedy_reward_mean"], 0.2);
        assert_eq!(value["eval/unseen_phrasings_reward_mean"], 0.3);
        assert_eq!(value["eval/unseen_phrasings_greedy_reward_mean"], 0.4);
        assert_eq!(value["eval/failed"], 1);
        assert_eq!(value["eval/greedy_pass_rate"], 0.25);
        assert_eq!(value["time/eval"], 1.5);
        let back: EvaluationReport = serde_json::from_value(value).unwrap();
        assert_eq!(back, report);
    }

    #[test]
    fn an_evaluation_of_an_older_version_has_no_greedy_numbers() {
        let old = json!({
            "step": 10, "reward/mean": 0.5, "eval/rollouts": 8, "eval/scored": 5,
            "eval/infrastructure_failed": 1, "eval/reward_mean": 0.25,
            "eval/reward_ci95": [0.1, 0.4], "eval/pass_rate": 0.2, "eval/pass_rate_ci95": null,
            "eval/completion_tokens": 3, "time/eval": 0.5
        });
        let report: EvaluationReport = serde_json::from_value(old).unwrap();
        assert_eq!(report.all.greedy, None);
        assert_eq!(report.unseen_phrasings, None);
        let sampled = report.all.sampled;
        assert_eq!((sampled.rollouts, sampled.ran, sampled.failed), (8, 7, 2));
        assert_eq!(sampled.pass_rate, Some(0.2));
        let nothing = EvaluationReport::read(json!({"step": 3}).as_object().unwrap());
        assert_eq!(nothing, None);
    }
}
