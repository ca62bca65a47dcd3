//! The numbers of a run.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::{Interval, OutcomeCounts, RewardNumbers, RolloutFact, RunTally, Spread};
use crate::RewardRange;

/// The numbers of a run. In JSON, what can't be said is `null`, never 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunNumbers {
    /// Rollouts with a result.
    pub rollouts: u64,
    pub ran: u64,
    pub passed: u64,
    /// Rows with a rollout that ran.
    pub rows: u64,
    pub outcomes: OutcomeCounts,
    pub pass_rate: Option<f64>,
    pub pass_rate_ci95: Option<Interval>,
    pub pass_rate_ci95_bootstrap: Option<Interval>,
    pub reward: RewardNumbers,
    /// By k, from 1 to the rollouts per row.
    #[serde(deserialize_with = "by_k")]
    pub pass_at_k: BTreeMap<u32, Option<f64>>,
    #[serde(deserialize_with = "by_k")]
    pub pass_at_k_ci95: BTreeMap<u32, Option<Interval>>,
    #[serde(deserialize_with = "by_k")]
    pub pass_hat_k: BTreeMap<u32, Option<f64>>,
    #[serde(deserialize_with = "by_k")]
    pub pass_hat_k_ci95: BTreeMap<u32, Option<Interval>>,
    /// How many rows had k rollouts that ran, and so count in the two above.
    #[serde(deserialize_with = "by_k")]
    pub pass_k_rows: BTreeMap<u32, u64>,
    pub model_calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Of the prompt tokens, those that came from a cache; `None` when no reply told.
    pub cached_tokens: Option<u64>,
    /// Of the completion tokens, those spent on reasoning; `None` when no reply told.
    pub reasoning_tokens: Option<u64>,
    /// Rollouts that never called the model; `None` when the policy was asked in another run.
    pub without_model_calls: Option<u64>,
    pub durations: PhaseNumbers,
}

/// Serde reads the keys of a map as texts when the struct around it is part of another one.
fn by_k<'de, D, T>(deserializer: D) -> Result<BTreeMap<u32, T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let by_text = BTreeMap::<String, T>::deserialize(deserializer)?;
    let parsed = by_text
        .into_iter()
        .map(|(k, value)| Ok((k.parse()?, value)));
    parsed
        .collect::<Result<_, std::num::ParseIntError>>()
        .map_err(D::Error::custom)
}

impl RunNumbers {
    pub fn of<'f>(runs_per_row: u32, facts: impl IntoIterator<Item = &'f RolloutFact>) -> Self {
        Self::within(None, runs_per_row, facts)
    }

    /// With rewards that lie in this range, when one is stated.
    pub fn within<'f>(
        reward_range: Option<RewardRange>,
        runs_per_row: u32,
        facts: impl IntoIterator<Item = &'f RolloutFact>,
    ) -> Self {
        let mut tally = RunTally::new(runs_per_row).within(reward_range);
        for fact in facts {
            tally.add(fact);
        }
        tally.numbers()
    }
}

/// Where the time went, by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseNumbers {
    #[serde(rename = "queue_ms")]
    pub queue: DurationNumbers,
    #[serde(rename = "agent_ms")]
    pub agent: DurationNumbers,
    #[serde(rename = "model_ms")]
    pub model: DurationNumbers,
    #[serde(rename = "grade_ms")]
    pub grade: DurationNumbers,
}

/// The durations of one phase, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DurationNumbers {
    pub count: u64,
    pub mean: Option<f64>,
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub max: Option<f64>,
}

impl DurationNumbers {
    pub(super) fn of(values: &[f64]) -> Self {
        let spread = Spread::of(values.to_vec());
        Self {
            count: spread.count(),
            mean: spread.mean(),
            p50: spread.quantile(0.5),
            p90: spread.quantile(0.9),
            max: spread.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use proptest::prelude::*;

    use super::*;
    use crate::{Durations, OutcomeKind, Reward};

    fn fact(row_index: u64, run_index: u32, kind: OutcomeKind) -> RolloutFact {
        RolloutFact {
            row_index,
            run_index,
            kind,
            reward: None,
            passed: false,
            durations: Durations {
                queue: 1.0,
                agent: 100.0,
                model: 80.0,
                grade: 0.0,
            },
            model_calls: 2,
            prompt_tokens: 10,
            completion_tokens: 5,
            cached_tokens: (row_index == 0).then_some(4),
            reasoning_tokens: None,
        }
    }

    fn scored(row_index: u64, run_index: u32, reward: f64) -> RolloutFact {
        RolloutFact {
            reward: Some(Reward::new(reward).unwrap()),
            passed: reward >= 1.0,
            durations: Durations {
                grade: 4.0,
                ..fact(0, 0, OutcomeKind::Scored).durations
            },
            ..fact(row_index, run_index, OutcomeKind::Scored)
        }
    }

    #[test]
    fn a_small_run_agrees_with_a_hand_count() {
        let facts = [
            scored(0, 0, 1.0),
            scored(0, 1, 0.0),
            scored(1, 0, 1.0),
            scored(1, 1, 1.0),
            scored(2, 0, 0.5),
            fact(2, 1, OutcomeKind::TimedOut),
            fact(3, 0, OutcomeKind::AgentFailed),
            fact(3, 1, OutcomeKind::InfrastructureFailed),
            fact(4, 0, OutcomeKind::Cancelled),
            RolloutFact {
                model_calls: 0,
                ..fact(4, 1, OutcomeKind::Ungraded)
            },
        ];
        let numbers = RunNumbers::of(2, &facts);
        // Ran: 8, passed: 3. Rows 0 to 2 have two rollouts that ran, rows 3 and 4 one.
        // pass@1: (1/2 + 1 + 0 + 0 + 0) / 5, pass@2: (1 + 1 + 0) / 3, pass^2: (0 + 1 + 0) / 3.
        // The intervals were computed a second time by a program that integrates the t density.
        assert_snapshot!(serde_json::to_string_pretty(&rounded(&numbers)).unwrap(), @r#"
        {
          "rollouts": 10,
          "ran": 8,
          "passed": 3,
          "rows": 5,
          "outcomes": {
            "scored": 5,
            "agent_failed": 1,
            "timed_out": 1,
            "ungraded": 1,
            "rejected": 0,
            "infrastructure_failed": 1,
            "cancelled": 1
          },
          "pass_rate": 0.375,
          "pass_rate_ci95": [
            0.064858664,
            0.838462957
          ],
          "pass_rate_ci95_bootstrap": [
            0.0,
            0.9
          ],
          "reward": {
            "count": 5,
            "mean": 0.7,
            "std": 0.447213595,
            "min": 0.0,
            "p25": 0.5,
            "median": 1.0,
            "p75": 1.0,
            "max": 1.0,
            "rows": 3,
            "range": null,
            "ci95": [
              -0.088689273,
              1.488689273
            ],
            "ci95_bootstrap": [
              0.5,
              1.0
            ]
          },
          "pass_at_k": {
            "1": 0.3,
            "2": 0.666666667
          },
          "pass_at_k_ci95": {
            "1": [
              0.04435714,
              0.7982697
            ],
            "2": [
              0.043829923,
              0.988670077
            ]
          },
          "pass_hat_k": {
            "1": 0.3,
            "2": 0.333333333
          },
          "pass_hat_k_ci95": {
            "1": [
              0.04435714,
              0.7982697
            ],
            "2": [
              0.011329923,
              0.956170077
            ]
          },
          "pass_k_rows": {
            "1": 5,
            "2": 3
          },
          "model_calls": 18,
          "prompt_tokens": 100,
          "completion_tokens": 50,
          "cached_tokens": 8,
          "reasoning_tokens": null,
          "without_model_calls": 1,
          "durations": {
            "queue_ms": {
              "count": 8,
              "mean": 1.0,
              "p50": 1.0,
              "p90": 1.0,
              "max": 1.0
            },
            "agent_ms": {
              "count": 8,
              "mean": 100.0,
              "p50": 100.0,
              "p90": 100.0,
              "max": 100.0
            },
            "model_ms": {
              "count": 7,
              "mean": 80.0,
              "p50": 80.0,
              "p90": 80.0,
              "max": 80.0
            },
            "grade_ms": {
              "count": 5,
              "mean": 4.0,
              "p50": 4.0,
              "p90": 4.0,
              "max": 4.0
            }
          }
        }
        "#);
    }

    /// To nine digits, because the last ones differ between machines.
    fn rounded(numbers: &RunNumbers) -> serde_json::Value {
        fn round(value: &mut serde_json::Value) {
            match value {
                serde_json::Value::Array(items) => items.iter_mut().for_each(round),
                serde_json::Value::Object(fields) => fields.values_mut().for_each(round),
                serde_json::Value::Number(number) if number.is_f64() => {
                    let exact = number.as_f64().unwrap();
                    *value = serde_json::json!((exact * 1e9).round() / 1e9);
                }
                serde_json::Value::Null
                | serde_json::Value::Bool(_)
                | serde_json::Value::Number(_)
                | serde_json::Value::String(_) => {}
            }
        }
        let mut value = serde_json::to_value(numbers).unwrap();
        round(&mut value);
        value
    }

    #[test]
    fn nothing_is_zero_when_nothing_ran() {
        let numbers = RunNumbers::of(2, &[fact(0, 0, OutcomeKind::InfrastructureFailed)]);
        assert_eq!(numbers.rollouts, 1);
        assert_eq!((numbers.ran, numbers.pass_rate), (0, None));
        assert_eq!((numbers.reward.mean, numbers.reward.count), (None, 0));
        assert_eq!(numbers.pass_at_k, BTreeMap::from([(1, None), (2, None)]));
        assert_eq!(numbers.pass_k_rows, BTreeMap::from([(1, 0), (2, 0)]));
        assert_eq!(numbers.durations.agent.mean, None);
        // Its calls were made and paid for all the same.
        assert_eq!(numbers.model_calls, 2);
    }

    #[test]
    fn a_failure_counts_against_the_pass_rate_but_has_no_reward() {
        let facts = [scored(0, 0, 1.0), fact(1, 0, OutcomeKind::AgentFailed)];
        let numbers = RunNumbers::of(1, &facts);
        assert_eq!(numbers.pass_rate, Some(0.5));
        assert_eq!(numbers.reward.mean, Some(1.0));
    }

    #[test]
    fn one_row_has_no_interval() {
        let numbers = RunNumbers::of(2, &[scored(0, 0, 1.0), scored(0, 1, 0.0)]);
        assert_eq!(numbers.pass_rate_ci95, None);
        assert_eq!(numbers.reward.ci95, None);
        assert!(numbers.reward.std.is_some());
    }

    fn any_fact() -> impl Strategy<Value = RolloutFact> {
        let kind = prop::sample::select(OutcomeKind::ALL.to_vec());
        (0u64..6, 0u32..4, kind, -2.0..2.0f64).prop_map(|(row, run, kind, reward)| match kind {
            OutcomeKind::Scored => scored(row, run, reward),
            other => fact(row, run, other),
        })
    }

    proptest! {
        #[test]
        fn the_order_of_arrival_changes_nothing(
            facts in prop::collection::vec(any_fact(), 0..40)
                .prop_flat_map(|facts| (Just(facts.clone()), Just(facts).prop_shuffle()))
        ) {
            let (one, other) = facts;
            prop_assert_eq!(RunNumbers::of(4, &one), RunNumbers::of(4, &other));
        }

        #[test]
        fn rates_are_shares_and_lie_in_their_intervals(
            facts in prop::collection::vec(any_fact(), 0..40)
        ) {
            let range = RewardRange::new(-2.0, 2.0).ok();
            let numbers = RunNumbers::within(range, 4, &facts);
            prop_assert_eq!(numbers.rollouts, facts.len() as u64);
            for interval in [numbers.reward.ci95, numbers.reward.ci95_bootstrap].into_iter().flatten() {
                prop_assert!(interval.low >= -2.0 && interval.high <= 2.0, "{:?}", interval);
            }
            if let (Some(mean), Some(interval)) = (numbers.reward.mean, numbers.reward.ci95) {
                prop_assert!(interval.low <= mean + 1e-9 && mean <= interval.high + 1e-9);
            }
            if let (Some(rate), Some(interval)) = (numbers.pass_rate, numbers.pass_rate_ci95) {
                prop_assert!(interval.low <= rate + 1e-12 && rate <= interval.high + 1e-12);
                prop_assert!(interval.low >= 0.0 && interval.high <= 1.0);
            }
            for value in numbers.pass_at_k.values().chain(numbers.pass_hat_k.values()).flatten() {
                prop_assert!((0.0..=1.0).contains(value));
            }
        }
    }
}
