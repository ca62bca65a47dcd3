//! The numbers of steps and evaluations, under the names they have in `metrics.jsonl`.

use osmosis_core::RewardRange;
use osmosis_core::staleness::StalenessHistogram;
use osmosis_core::statistics::{OutcomeCounts, RolloutFact, RunNumbers};
use osmosis_store::RolloutRecord;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::EvaluationReport;

/// The numbers of one step, as in `metrics.jsonl`. Times are seconds; what can't be said is `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StepReport {
    pub step: u64,
    /// The weights after the step.
    pub version: u64,
    /// The pass over the dataset that the step belongs to, from 0.
    pub epoch: u64,
    /// Over the scored rollouts.
    #[serde(rename = "reward/mean")]
    pub reward_mean: Option<f64>,
    #[serde(rename = "reward/std")]
    pub reward_std: Option<f64>,
    /// Passed / all that ran.
    pub pass_rate: Option<f64>,
    #[serde(rename = "groups/used")]
    pub groups_used: u64,
    #[serde(rename = "groups/no_variance")]
    pub groups_no_variance: u64,
    /// Visits to a row whose rollouts sampled the very same tokens.
    #[serde(rename = "groups/identical")]
    pub groups_identical: u64,
    #[serde(rename = "groups/incomplete")]
    pub groups_incomplete: u64,
    /// `rollouts/<outcome>`
    #[serde(flatten, serialize_with = "by_outcome")]
    pub rollouts: OutcomeCounts,
    /// Scored rollouts that were left out because other weights than allowed had sampled them.
    #[serde(rename = "rollouts/stale")]
    pub rollouts_stale: u64,
    /// Training rows: root-to-leaf paths of the used groups' samples.
    pub rows: u64,
    #[serde(rename = "tokens/trained")]
    pub tokens_trained: u64,
    /// Tokens that the policy sampled in the step's rollouts.
    #[serde(rename = "tokens/sampled")]
    pub tokens_sampled: u64,
    /// Sampled tokens per second while rollouts ran; `null` when all were in the store already.
    pub tokens_per_second: Option<f64>,
    /// Set when the step made no update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<SkipReason>,
    /// The mean over the step's updates, as are the next four and `gradient_norm`.
    pub loss: Option<f64>,
    pub entropy: Option<f64>,
    pub clip_fraction: Option<f64>,
    /// Against the policy that sampled.
    pub kl: Option<f64>,
    /// Against the start model, when `kl_coef` is not 0.
    pub kl_reference: Option<f64>,
    /// Between sampler and learner, before the first update.
    #[serde(rename = "logprob_mismatch/mean")]
    pub logprob_mismatch_mean: Option<f64>,
    #[serde(rename = "logprob_mismatch/max")]
    pub logprob_mismatch_max: Option<f64>,
    /// What the tokens trained on count for how they were sampled, with the decoupled objective.
    #[serde(
        rename = "behaviour_weight/mean",
        skip_serializing_if = "Option::is_none"
    )]
    pub behaviour_weight_mean: Option<f64>,
    /// The part of the tokens that was left out because it would have counted too much.
    #[serde(
        rename = "behaviour_weight/capped",
        skip_serializing_if = "Option::is_none"
    )]
    pub behaviour_weight_capped: Option<f64>,
    /// Samples that lost a part of their reward, when they were compared, because an answer was too long.
    #[serde(rename = "overlong/penalized", skip_serializing_if = "Option::is_none")]
    pub overlong_penalized: Option<u64>,
    /// Over all samples with a reward.
    #[serde(
        rename = "overlong/penalty_mean",
        skip_serializing_if = "Option::is_none"
    )]
    pub overlong_penalty_mean: Option<f64>,
    /// Rows that were run in place of others whose rewards were all equal, when a bound on them is set.
    #[serde(rename = "rows/extra", skip_serializing_if = "Option::is_none")]
    pub rows_extra: Option<u64>,
    /// How rows were chosen, when they are chosen by their results.
    #[serde(flatten)]
    pub frontier: Option<FrontierReport>,
    /// Before it is scaled down.
    pub gradient_norm: Option<f64>,
    pub lr: f64,
    /// Wall time in which at least one agent was under way.
    #[serde(rename = "time/rollout")]
    pub time_rollout: f64,
    /// Wall time in which nothing but graders was under way.
    #[serde(rename = "time/grade")]
    pub time_grade: f64,
    #[serde(rename = "time/update")]
    pub time_update: f64,
    #[serde(rename = "time/swap")]
    pub time_swap: f64,
    /// `None` when the step saved no checkpoint.
    #[serde(rename = "time/save")]
    pub time_save: Option<f64>,
    /// All of it but saving and evaluating.
    #[serde(rename = "time/step")]
    pub time_step: f64,
    /// What there is to say when rollouts go on during updates.
    #[serde(flatten)]
    pub asynchronous: Option<AsyncReport>,
    /// The evaluation with the weights after this step, when there was one.
    #[serde(flatten)]
    pub evaluation: Option<EvaluationReport>,
}

/// What was known of the rows of a step before it, with `strategy = "frontier"`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FrontierReport {
    /// Never tried.
    #[serde(rename = "rows/untried")]
    pub untried: u64,
    /// Passed in some of their attempts.
    #[serde(rename = "rows/sometimes_passed")]
    pub sometimes: u64,
    /// Passed in all of them.
    #[serde(rename = "rows/always_passed")]
    pub always: u64,
    /// Passed in none.
    #[serde(rename = "rows/never_passed")]
    pub never: u64,
    /// The mean chance, over the rows that were tried, that the step's attempts neither all pass nor all fail.
    #[serde(rename = "rows/chance_of_variance")]
    pub chance_of_variance: Option<f64>,
    /// Rows of the dataset that were tried before the step.
    #[serde(rename = "rows/tried_so_far")]
    pub tried_so_far: u64,
}

/// The numbers of a step that only exist when `max_staleness` is not 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct AsyncReport {
    /// How many versions old the tokens were that were trained on: over the tokens, and the oldest.
    #[serde(rename = "staleness/mean")]
    pub staleness_mean: Option<f64>,
    #[serde(rename = "staleness/max")]
    pub staleness_max: Option<u64>,
    /// `staleness/tokens_<versions>`
    #[serde(flatten, serialize_with = "by_staleness")]
    pub staleness: StalenessHistogram,
    /// Tokens that were too old and masked.
    #[serde(rename = "tokens/masked")]
    pub tokens_masked: u64,
    /// Groups that were too old when they were complete, or became so.
    #[serde(rename = "groups/stale")]
    pub groups_stale: u64,
    /// Seconds in which the learner had no batch.
    #[serde(rename = "time/wait_rollouts")]
    pub time_wait_rollouts: f64,
    /// Seconds in which there was room for rollouts, and none might begin before the next weights.
    #[serde(rename = "time/wait_update")]
    pub time_wait_update: f64,
}

/// Why a step made no update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SkipReason {
    /// The rewards of every group were equal.
    #[serde(rename = "no variance")]
    NoVariance,
    /// No group had the rewards it needs.
    #[serde(rename = "no complete group")]
    NoCompleteGroup,
    /// The groups that could be used hold no sampled token.
    #[serde(rename = "no tokens")]
    NoTokens,
}

/// What `osmosis_core::statistics` says of these rollouts. `range` is where rewards lie, as the config states it.
pub(crate) fn numbers_of<'r>(
    rollouts: impl IntoIterator<Item = &'r RolloutRecord>,
    range: Option<RewardRange>,
) -> RunNumbers {
    let facts: Vec<RolloutFact> = rollouts
        .into_iter()
        .filter_map(RolloutRecord::fact)
        .collect();
    // pass@k is no number of a step, so k stays 1.
    RunNumbers::within(range, 1, &facts)
}

fn by_outcome<S: Serializer>(counts: &OutcomeCounts, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    for kind in osmosis_core::OutcomeKind::ALL {
        map.serialize_entry(&format!("rollouts/{kind}"), &counts.get(kind))?;
    }
    map.end()
}

fn by_staleness<S: Serializer>(
    histogram: &StalenessHistogram,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    for (versions, tokens) in histogram.counts() {
        map.serialize_entry(&format!("staleness/tokens_{versions}"), &tokens)?;
    }
    map.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByDecoding, HeldOutNumbers};

    fn evaluation(reward: f64) -> EvaluationReport {
        EvaluationReport {
            all: ByDecoding {
                sampled: HeldOutNumbers {
                    rollouts: 4,
                    reward_mean: Some(reward),
                    reward_ci95: Some([0.0, 0.5]),
                    ..HeldOutNumbers::default()
                },
                greedy: None,
            },
            ..EvaluationReport::default()
        }
    }

    #[test]
    fn a_step_is_one_flat_object_under_the_names_of_the_contract() {
        let report = StepReport {
            step: 3,
            rollouts: OutcomeCounts {
                scored: 5,
                ..OutcomeCounts::default()
            },
            reward_mean: Some(0.5),
            evaluation: Some(evaluation(0.25)),
            ..StepReport::default()
        };
        let value = serde_json::to_value(&report).unwrap();
        let object = value.as_object().unwrap();
        assert_eq!(object["step"], 3);
        assert_eq!(object["reward/mean"], 0.5);
        assert_eq!(object["rollouts/scored"], 5);
        assert_eq!(object["rollouts/timed_out"], 0);
        assert_eq!(object["eval/reward_mean"], 0.25);
        assert!(!object.contains_key("skipped"));
        assert!(object.values().all(|v| !v.is_object()), "{value}");
    }

    #[test]
    fn an_evaluation_can_be_read_back_from_a_step() {
        let evaluation = evaluation(0.25);
        let report = StepReport {
            evaluation: Some(evaluation.clone()),
            ..StepReport::default()
        };
        let value = serde_json::to_value(&report).unwrap();
        let back: EvaluationReport = serde_json::from_value(value).unwrap();
        assert_eq!(back, evaluation);
    }
}
