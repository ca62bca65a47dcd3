//! One run in the viewer's list.

use osmosis_core::RunName;
use osmosis_core::statistics::{Interval, OutcomeCounts, RunTally};
use osmosis_store::{RolloutPages, RolloutRecord, RunKind, RunRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::{Curve, HeldOutScore, RunState};
use crate::RunError;
use crate::eval::money::Money;
use crate::runs::{Pinned, ReadRun};

/// Points of a sparkline.
const TREND_POINTS: usize = 40;

/// What a run is for, as commands name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunKindWord {
    Eval,
    Train,
    Serve,
}

impl From<RunKind> for RunKindWord {
    fn from(kind: RunKind) -> Self {
        match kind {
            RunKind::Evaluation => Self::Eval,
            RunKind::Training => Self::Train,
            RunKind::Serving => Self::Serve,
        }
    }
}

/// Which rollouts pass rate and reward of an overview are over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredOn {
    AllRollouts,
    /// The sampled rollouts of a training's last evaluation.
    HeldOutRows,
    /// A training without held-out rows.
    LastStep,
}

/// An item of `GET /api/v1/runs`. What can't be said is `null`, never 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunOverview {
    /// How addresses and commands name it: `NAME`, or `KIND/NAME` where runs of two kinds have the name.
    pub run: String,
    pub run_name: RunName,
    pub kind: RunKindWord,
    pub status: RunState,
    /// The folder of the agent and its grader.
    pub project: Option<String>,
    pub model: Option<String>,
    pub dataset: Option<String>,
    /// Rollouts with a result.
    pub done: u64,
    pub total: u64,
    /// Rollouts under way.
    pub active: u64,
    /// Milliseconds since 1970, as are the next two.
    pub created_at_ms: i64,
    pub finished_at_ms: Option<i64>,
    /// When its last rollout or step ended.
    pub last_result_at_ms: Option<i64>,
    pub outcomes: OutcomeCounts,
    pub measured_on: MeasuredOn,
    pub pass_rate: Option<f64>,
    pub pass_rate_ci95: Option<Interval>,
    pub reward: Option<f64>,
    pub reward_ci95: Option<Interval>,
    pub model_calls: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// In US dollars; `null` without prices.
    pub cost: Option<f64>,
    /// The last step of a training run.
    pub steps: Option<u64>,
    /// Mean rewards over time: of a training by step, else of equal shares of the scored rollouts as they finished.
    pub trend: Vec<f64>,
}

impl RunOverview {
    /// `run` is how it is named in addresses. Reads every rollout with a result once.
    pub async fn of(read: &ReadRun, record: &RunRecord, run: &str) -> Result<Self, RunError> {
        let store = &*read.store;
        let pinned = Pinned::read(&record.pinned)?;
        let counts = store.counts().await?;
        let mut tally = RunTally::new(1).within(pinned.reward_range());
        let mut rewards: Vec<(i64, f64)> = vec![];
        let mut last_result_at_ms = None;
        let each = |rollout: &RolloutRecord| {
            let Some(fact) = rollout.fact() else {
                return;
            };
            tally.add(&fact);
            last_result_at_ms = last_result_at_ms.max(rollout.finished_at_ms);
            if let Some(reward) = fact.reward {
                rewards.push((rollout.finished_at_ms.unwrap_or_default(), reward.get()));
            }
        };
        RolloutPages::finished(store).for_each(each).await?;
        let numbers = tally.numbers();
        let cost = Money::of(None, None, &pinned)?.cost(store).await?;
        let mut overview = Self {
            run: run.to_owned(),
            run_name: record.name.clone(),
            kind: record.kind.into(),
            status: RunState::of(record.status, read.held),
            project: pinned.project().map(str::to_owned),
            model: model_of(&pinned),
            dataset: pinned.dataset().map(str::to_owned),
            done: counts.done,
            total: counts.total(),
            active: counts.leased,
            created_at_ms: record.created_at_ms,
            finished_at_ms: record.finished_at_ms,
            last_result_at_ms,
            outcomes: numbers.outcomes,
            measured_on: MeasuredOn::AllRollouts,
            pass_rate: numbers.pass_rate,
            pass_rate_ci95: numbers.pass_rate_ci95,
            reward: numbers.reward.mean,
            reward_ci95: numbers.reward.ci95,
            model_calls: numbers.model_calls,
            prompt_tokens: numbers.prompt_tokens,
            completion_tokens: numbers.completion_tokens,
            cost: cost.and_then(|cost| cost.report().total),
            steps: None,
            trend: trend(rewards),
        };
        if record.kind == RunKind::Training {
            overview.learn_from(&Curve::of(store).await?);
        }
        Ok(overview)
    }

    /// A training is measured on rows that it does not train on.
    fn learn_from(&mut self, curve: &Curve) {
        self.steps = Some(curve.last_step());
        let rewards: Vec<f64> = curve
            .rewards()
            .into_iter()
            .map(|(_, reward)| reward)
            .collect();
        self.trend = shares(&rewards);
        if let Some(last) = curve.held_out().last() {
            let HeldOutScore {
                reward_mean,
                reward_ci95,
                pass_rate,
                pass_rate_ci95,
                ..
            } = last.sampled;
            self.measured_on = MeasuredOn::HeldOutRows;
            self.reward = reward_mean;
            self.reward_ci95 = reward_ci95.map(Interval::from);
            self.pass_rate = pass_rate;
            self.pass_rate_ci95 = pass_rate_ci95.map(Interval::from);
        } else if let Some(last) = curve.trained().last() {
            self.measured_on = MeasuredOn::LastStep;
            self.reward = last.reward;
            self.pass_rate = last.pass_rate;
            self.reward_ci95 = None;
            self.pass_rate_ci95 = None;
        }
    }
}

/// The model as the config names it, or as a gateway was started with.
fn model_of(pinned: &Pinned) -> Option<String> {
    let named = pinned.model_path().map(str::to_owned);
    named.or_else(|| {
        let name = pinned.settings.get("model.name")?;
        name.as_str().map(str::to_owned)
    })
}

fn trend(mut rewards: Vec<(i64, f64)>) -> Vec<f64> {
    rewards.sort_by_key(|(finished_at_ms, _)| *finished_at_ms);
    let rewards: Vec<f64> = rewards.into_iter().map(|(_, reward)| reward).collect();
    shares(&rewards)
}

/// The means of at most [`TREND_POINTS`] equal shares.
fn shares(values: &[f64]) -> Vec<f64> {
    let points = TREND_POINTS.min(values.len());
    (0..points)
        .map(|point| {
            let share = &values[point * values.len() / points..(point + 1) * values.len() / points];
            share.iter().sum::<f64>() / share.len() as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_has_the_mean_of_each_share_in_order_of_time() {
        assert_eq!(trend(vec![(2, 0.0), (1, 1.0)]), [1.0, 0.0]);
        assert_eq!(shares(&[]), Vec::<f64>::new());
        let many: Vec<f64> = (0..400).map(f64::from).collect();
        let means = shares(&many);
        assert_eq!(means.len(), TREND_POINTS);
        assert_eq!((means[0], means[39]), (4.5, 394.5));
    }
}
