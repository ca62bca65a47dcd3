//! The numbers of a training run over its steps, as they are in the store.

use osmosis_core::staleness::StalenessHistogram;
use osmosis_store::Store;
use osmosis_train::{EvaluationReport, StepReport};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::HeldOutPoint;
use crate::{RunError, RunErrorKind};

/// All steps so far.
#[derive(Debug, Default)]
pub struct Curve {
    pub steps: Vec<StepNumbers>,
}

/// What is shown of one step; names as in `metrics.jsonl`. Step 0 is the evaluation before training.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StepNumbers {
    pub step: u64,
    #[serde(rename = "reward/mean")]
    pub reward: Option<f64>,
    pub pass_rate: Option<f64>,
    pub entropy: Option<f64>,
    pub clip_fraction: Option<f64>,
    pub kl: Option<f64>,
    #[serde(rename = "logprob_mismatch/max")]
    pub mismatch: Option<f64>,
    #[serde(rename = "tokens/sampled")]
    pub tokens_sampled: u64,
    #[serde(rename = "tokens/trained")]
    pub tokens_trained: u64,
    pub tokens_per_second: Option<f64>,
    #[serde(rename = "groups/used")]
    pub groups_used: u64,
    #[serde(rename = "groups/no_variance")]
    pub groups_without_variance: u64,
    /// Of those without variance, the ones whose attempts sampled the very same tokens.
    #[serde(rename = "groups/identical")]
    pub groups_identical: u64,
    #[serde(rename = "groups/incomplete")]
    pub groups_incomplete: u64,
    #[serde(rename = "rollouts/scored")]
    pub scored: u64,
    #[serde(rename = "rollouts/agent_failed")]
    pub agent_failed: u64,
    #[serde(rename = "rollouts/timed_out")]
    pub timed_out: u64,
    #[serde(rename = "rollouts/ungraded")]
    pub ungraded: u64,
    #[serde(rename = "rollouts/rejected")]
    pub rejected: u64,
    #[serde(rename = "rollouts/infrastructure_failed")]
    pub infrastructure_failed: u64,
    #[serde(rename = "rollouts/cancelled")]
    pub cancelled: u64,
    /// Of the tokens that were trained on; none where nothing can be stale. So are the next three.
    #[serde(rename = "staleness/mean")]
    pub staleness_mean: Option<f64>,
    #[serde(rename = "staleness/max")]
    pub staleness_max: Option<u64>,
    #[serde(rename = "time/wait_rollouts")]
    pub wait_rollouts_seconds: Option<f64>,
    #[serde(rename = "time/wait_update")]
    pub wait_update_seconds: Option<f64>,
    #[serde(rename = "groups/stale")]
    pub groups_stale: u64,
    #[serde(rename = "rollouts/stale")]
    pub rollouts_stale: u64,
    #[serde(rename = "tokens/masked")]
    pub tokens_masked: u64,
    /// `staleness/tokens_N`: tokens by the versions that they were behind.
    #[serde(flatten, deserialize_with = "by_staleness")]
    pub staleness: StalenessHistogram,
    /// Why there was no update.
    pub skipped: Option<String>,
    #[serde(rename = "time/rollout")]
    pub rollout_seconds: f64,
    #[serde(rename = "time/grade")]
    pub grade_seconds: f64,
    #[serde(rename = "time/update")]
    pub update_seconds: f64,
    #[serde(rename = "time/swap")]
    pub swap_seconds: f64,
    #[serde(rename = "time/save")]
    pub save_seconds: Option<f64>,
    /// Held-out rows, where they were evaluated.
    #[serde(flatten, deserialize_with = "evaluation")]
    pub evaluation: Option<EvaluationReport>,
}

impl Curve {
    pub async fn of(store: &dyn Store) -> Result<Self, RunError> {
        let mut steps = vec![];
        for record in store.steps().await? {
            let numbers: StepNumbers = record
                .metrics
                .read()
                .map_err(|error| RunError::failed(RunErrorKind::RunDamaged, error.to_string()))?;
            steps.push(StepNumbers {
                step: record.step,
                ..numbers
            });
        }
        Ok(Self { steps })
    }

    /// Steps of training, without the evaluation before.
    pub fn trained(&self) -> impl Iterator<Item = &StepNumbers> {
        self.steps.iter().filter(|step| step.step > 0)
    }

    pub fn last_step(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.step)
    }

    /// Mean training reward by step, where there is one.
    pub fn rewards(&self) -> Vec<(u64, f64)> {
        self.trained()
            .filter_map(|step| Some((step.step, step.reward?)))
            .collect()
    }

    /// The part of a step's rollouts that passed, of all that ran, by step.
    pub fn pass_rates(&self) -> Vec<(u64, f64)> {
        self.trained()
            .filter_map(|step| Some((step.step, step.pass_rate?)))
            .collect()
    }

    pub fn held_out(&self) -> Vec<HeldOutPoint> {
        self.steps
            .iter()
            .filter_map(StepNumbers::held_out)
            .collect()
    }

    /// Whether rollouts went on during updates.
    pub fn is_asynchronous(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| step.wait_rollouts_seconds.is_some())
    }

    /// All tokens that were trained on, by the versions they were behind.
    pub fn staleness(&self) -> StalenessHistogram {
        let mut all = StalenessHistogram::default();
        for step in &self.steps {
            all.merge(&step.staleness);
        }
        all
    }

    pub fn sum(&self, of: impl Fn(&StepNumbers) -> f64) -> f64 {
        self.steps.iter().map(of).sum()
    }

    pub fn count(&self, of: impl Fn(&StepNumbers) -> u64) -> u64 {
        self.steps.iter().map(of).sum()
    }
}

impl StepNumbers {
    pub fn of_step(report: &StepReport) -> Self {
        Self::read(serde_json::to_value(report))
    }

    fn read(value: serde_json::Result<Value>) -> Self {
        // Both sides are types of ours; the tests compare them.
        value.and_then(serde_json::from_value).unwrap_or_default()
    }

    pub fn held_out(&self) -> Option<HeldOutPoint> {
        let evaluation = self.evaluation.as_ref()?;
        Some(HeldOutPoint::of(self.step, evaluation))
    }

    /// Rollouts that ran and have no score.
    pub fn failed(&self) -> u64 {
        self.agent_failed + self.timed_out + self.ungraded + self.rejected
    }

    pub fn ran(&self) -> u64 {
        self.scored + self.failed()
    }

    /// Rollouts to learn from that are part of the step.
    pub fn rollouts(&self) -> u64 {
        self.ran() + self.infrastructure_failed + self.cancelled
    }

    pub fn eval_seconds(&self) -> f64 {
        self.evaluation
            .as_ref()
            .map_or(0.0, |evaluation| evaluation.time)
    }
}

fn evaluation<'de, D: Deserializer<'de>>(rest: D) -> Result<Option<EvaluationReport>, D::Error> {
    let metrics = serde_json::Map::<String, Value>::deserialize(rest)?;
    Ok(EvaluationReport::read(&metrics))
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

#[cfg(test)]
mod tests {
    use osmosis_core::statistics::OutcomeCounts;
    use osmosis_train::{AsyncReport, ByDecoding, HeldOutNumbers};

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
        let evaluation = EvaluationReport {
            all: ByDecoding {
                sampled: HeldOutNumbers {
                    rollouts: 8,
                    reward_mean: Some(0.75),
                    reward_ci95: Some([0.5, 1.0]),
                    infrastructure_failed: 1,
                    ..HeldOutNumbers::default()
                },
                greedy: Some(HeldOutNumbers::default()),
            },
            unseen_phrasings: None,
            time: 2.5,
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
            rollouts: OutcomeCounts {
                scored: 5,
                agent_failed: 1,
                timed_out: 2,
                infrastructure_failed: 3,
                cancelled: 4,
                ..OutcomeCounts::default()
            },
            evaluation: Some(evaluation.clone()),
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
        assert_eq!((numbers.ran(), numbers.failed()), (8, 3));
        assert_eq!(numbers.rollouts(), report.rollouts.total());
        assert!((numbers.eval_seconds() - 2.5).abs() < 1e-9);
        let point = numbers.held_out().unwrap();
        assert_eq!(point, HeldOutPoint::of(3, &evaluation));
        assert_eq!(point.sampled.reward_mean, Some(0.75));
        assert_eq!(point.sampled.rollouts, 8);
        assert_eq!(
            StepNumbers::of_step(&StepReport::default()).held_out(),
            None
        );
    }
}
