//! The numbers of a training run over its steps, as they are in the store.

use osmosis_core::staleness::StalenessHistogram;
use osmosis_core::statistics::Interval;
use osmosis_store::Store;
use osmosis_train::{EvaluationReport, StepReport};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::error::CliError;

/// All steps so far.
#[derive(Debug, Default)]
pub(crate) struct Curve {
    pub(crate) steps: Vec<StepNumbers>,
}

/// What is shown of one step; names as in `metrics.jsonl`. Step 0 is the evaluation before training.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct StepNumbers {
    pub(crate) step: u64,
    #[serde(rename = "reward/mean")]
    pub(crate) reward: Option<f64>,
    pub(crate) pass_rate: Option<f64>,
    pub(crate) entropy: Option<f64>,
    pub(crate) clip_fraction: Option<f64>,
    pub(crate) kl: Option<f64>,
    #[serde(rename = "logprob_mismatch/max")]
    pub(crate) mismatch: Option<f64>,
    #[serde(rename = "tokens/sampled")]
    pub(crate) tokens_sampled: u64,
    #[serde(rename = "tokens/trained")]
    pub(crate) tokens_trained: u64,
    pub(crate) tokens_per_second: Option<f64>,
    #[serde(rename = "groups/used")]
    pub(crate) groups_used: u64,
    #[serde(rename = "groups/no_variance")]
    pub(crate) groups_without_variance: u64,
    #[serde(rename = "groups/incomplete")]
    pub(crate) groups_incomplete: u64,
    #[serde(rename = "rollouts/infrastructure_failed")]
    pub(crate) infrastructure_failed: u64,
    /// Of the tokens that were trained on; none where nothing can be stale. So are the next three.
    #[serde(rename = "staleness/mean")]
    pub(crate) staleness_mean: Option<f64>,
    #[serde(rename = "staleness/max")]
    pub(crate) staleness_max: Option<u64>,
    #[serde(rename = "time/wait_rollouts")]
    pub(crate) wait_rollouts_seconds: Option<f64>,
    #[serde(rename = "time/wait_update")]
    pub(crate) wait_update_seconds: Option<f64>,
    #[serde(rename = "groups/stale")]
    pub(crate) groups_stale: u64,
    #[serde(rename = "rollouts/stale")]
    pub(crate) rollouts_stale: u64,
    #[serde(rename = "tokens/masked")]
    pub(crate) tokens_masked: u64,
    /// `staleness/tokens_N`: tokens by the versions that they were behind.
    #[serde(flatten, deserialize_with = "by_staleness")]
    pub(crate) staleness: StalenessHistogram,
    /// Why there was no update.
    pub(crate) skipped: Option<String>,
    #[serde(rename = "time/rollout")]
    pub(crate) rollout_seconds: f64,
    #[serde(rename = "time/grade")]
    pub(crate) grade_seconds: f64,
    #[serde(rename = "time/update")]
    pub(crate) update_seconds: f64,
    #[serde(rename = "time/swap")]
    pub(crate) swap_seconds: f64,
    #[serde(rename = "time/save")]
    pub(crate) save_seconds: Option<f64>,
    #[serde(rename = "time/eval")]
    pub(crate) eval_seconds: Option<f64>,
    #[serde(rename = "eval/reward_mean")]
    pub(crate) held_out_reward: Option<f64>,
    #[serde(rename = "eval/reward_ci95")]
    pub(crate) held_out_ci95: Option<[f64; 2]>,
    #[serde(rename = "eval/pass_rate")]
    pub(crate) held_out_pass_rate: Option<f64>,
    #[serde(rename = "eval/rollouts")]
    pub(crate) held_out_rollouts: u64,
    #[serde(rename = "eval/infrastructure_failed")]
    pub(crate) held_out_infrastructure_failed: u64,
}

/// Held-out rows, evaluated with the weights after a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HeldOutPoint {
    pub(crate) step: u64,
    pub(crate) mean: f64,
    pub(crate) interval: Option<Interval>,
    pub(crate) pass_rate: Option<f64>,
    pub(crate) rollouts: u64,
}

impl Curve {
    pub(crate) async fn of(store: &dyn Store) -> Result<Self, CliError> {
        let mut steps = vec![];
        for record in store.steps().await? {
            let numbers: StepNumbers = record
                .metrics
                .read()
                .map_err(|error| CliError::failed("run_damaged", error.to_string()))?;
            steps.push(StepNumbers {
                step: record.step,
                ..numbers
            });
        }
        Ok(Self { steps })
    }

    /// Steps of training, without the evaluation before.
    pub(crate) fn trained(&self) -> impl Iterator<Item = &StepNumbers> {
        self.steps.iter().filter(|step| step.step > 0)
    }

    pub(crate) fn last_step(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.step)
    }

    /// Mean training reward by step, where there is one.
    pub(crate) fn rewards(&self) -> Vec<(u64, f64)> {
        self.trained()
            .filter_map(|step| Some((step.step, step.reward?)))
            .collect()
    }

    pub(crate) fn held_out(&self) -> Vec<HeldOutPoint> {
        self.steps
            .iter()
            .filter_map(StepNumbers::held_out)
            .collect()
    }

    /// Whether rollouts went on during updates.
    pub(crate) fn is_asynchronous(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| step.wait_rollouts_seconds.is_some())
    }

    /// All tokens that were trained on, by the versions they were behind.
    pub(crate) fn staleness(&self) -> StalenessHistogram {
        let mut all = StalenessHistogram::default();
        for step in &self.steps {
            all.merge(&step.staleness);
        }
        all
    }

    pub(crate) fn sum(&self, of: impl Fn(&StepNumbers) -> f64) -> f64 {
        self.steps.iter().map(of).sum()
    }

    pub(crate) fn count(&self, of: impl Fn(&StepNumbers) -> u64) -> u64 {
        self.steps.iter().map(of).sum()
    }
}

impl StepNumbers {
    pub(crate) fn of_step(report: &StepReport) -> Self {
        Self::read(serde_json::to_value(report))
    }

    pub(crate) fn of_evaluation(step: u64, report: &EvaluationReport) -> Self {
        Self {
            step,
            ..Self::read(serde_json::to_value(report))
        }
    }

    fn read(value: serde_json::Result<Value>) -> Self {
        // Both sides are types of ours; the tests compare them.
        value.and_then(serde_json::from_value).unwrap_or_default()
    }

    pub(crate) fn held_out(&self) -> Option<HeldOutPoint> {
        Some(HeldOutPoint {
            step: self.step,
            mean: self.held_out_reward?,
            interval: self.held_out_ci95.map(|[low, high]| Interval { low, high }),
            pass_rate: self.held_out_pass_rate,
            rollouts: self.held_out_rollouts,
        })
    }
}

/// What stands under `staleness/tokens_N`, of all that the other fields leave over.
fn by_staleness<'de, D: Deserializer<'de>>(rest: D) -> Result<StalenessHistogram, D::Error> {
    let mut histogram = StalenessHistogram::default();
    for (name, value) in serde_json::Map::<String, Value>::deserialize(rest)? {
        let age = name.strip_prefix("staleness/tokens_");
        if let (Some(age), Some(tokens)) = (age.and_then(|age| age.parse().ok()), value.as_u64()) {
            histogram.add(age, tokens);
        }
    }
    Ok(histogram)
}

impl HeldOutPoint {
    pub(crate) fn json(&self) -> Value {
        json!({
            "step": self.step,
            "reward": {"mean": self.mean, "ci95": self.interval.map(|i| [i.low, i.high])},
            "pass_rate": self.pass_rate,
            "rollouts": self.rollouts,
        })
    }
}

#[cfg(test)]
mod tests {
    use osmosis_train::AsyncReport;

    use super::*;

    #[test]
    fn the_names_of_a_step_are_those_of_the_trainer() {
        let mut staleness = StalenessHistogram::default();
        staleness.add(0, 2);
        staleness.add(2, 4);
        let asynchronous = AsyncReport {
            staleness_mean: staleness.mean(),
            staleness_max: staleness.max(),
            staleness: staleness.clone(),
            tokens_masked: 5,
            groups_stale: 1,
            time_wait_rollouts: 0.5,
            time_wait_update: 0.25,
        };
        let report = StepReport {
            step: 3,
            reward_mean: Some(0.5),
            pass_rate: Some(0.25),
            tokens_sampled: 7,
            tokens_trained: 6,
            groups_used: 2,
            groups_no_variance: 1,
            groups_incomplete: 4,
            time_rollout: 1.0,
            time_grade: 2.0,
            time_update: 3.0,
            time_swap: 4.0,
            logprob_mismatch_max: Some(1e-6),
            asynchronous: Some(asynchronous),
            evaluation: Some(EvaluationReport {
                reward_mean: Some(0.75),
                reward_ci95: Some([0.5, 1.0]),
                rollouts: 8,
                ..EvaluationReport::default()
            }),
            ..StepReport::default()
        };
        let numbers = StepNumbers::of_step(&report);
        assert_eq!(numbers.step, 3);
        assert_eq!(numbers.staleness, staleness);
        assert_eq!(numbers.staleness_mean, staleness.mean());
        assert_eq!(numbers.staleness_max, Some(2));
        assert_eq!((numbers.tokens_masked, numbers.groups_stale), (5, 1));
        assert_eq!(numbers.wait_rollouts_seconds, Some(0.5));
        assert_eq!(numbers.wait_update_seconds, Some(0.25));
        assert_eq!(numbers.reward, Some(0.5));
        assert_eq!(numbers.pass_rate, Some(0.25));
        assert_eq!((numbers.tokens_sampled, numbers.tokens_trained), (7, 6));
        assert_eq!(numbers.groups_used, 2);
        assert_eq!(numbers.groups_without_variance, 1);
        assert_eq!(numbers.groups_incomplete, 4);
        assert!((numbers.rollout_seconds - 1.0).abs() < 1e-9);
        assert!((numbers.swap_seconds - 4.0).abs() < 1e-9);
        assert_eq!(numbers.mismatch, Some(1e-6));
        let point = numbers.held_out().unwrap();
        assert_eq!((point.step, point.rollouts), (3, 8));
        assert_eq!(
            point.interval,
            Some(Interval {
                low: 0.5,
                high: 1.0
            })
        );
    }
}
