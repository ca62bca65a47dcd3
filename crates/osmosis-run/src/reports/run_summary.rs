//! One run in a list of runs.

use camino::Utf8PathBuf;
use osmosis_core::RunTag;
use osmosis_store::{OutcomeTally, RunKind, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{RunState, StepNumbers};
use crate::RunError;
use crate::eval::money::Money;
use crate::figures::time_text;
use crate::runs::{Pinned, ReadRun};

/// An item of `eval list --json` and `train list --json`. What is not known is `null`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    pub run_name: String,
    pub status: RunState,
    /// Rollouts with a result.
    pub done: u64,
    /// All of its rollouts.
    pub total: u64,
    /// In UTC: `2026-01-31 12:00:00Z`.
    pub created_at: String,
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
    /// The last step of a training run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// `model_path` of the config.
    #[serde(default)]
    pub model: Option<String>,
    /// `dataset` of the config.
    #[serde(default)]
    pub dataset: Option<String>,
    /// Passed / all that ran, so far; of a training run, in its last step.
    #[serde(default)]
    pub pass_rate: Option<f64>,
    /// The mean over scored rollouts, so far; of a training run, in its last step.
    #[serde(default)]
    pub reward: Option<f64>,
    /// In US dollars; `null` without prices.
    #[serde(default)]
    pub cost: Option<f64>,
    /// The run whose samples this one grades, when it ran none itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regraded_from: Option<String>,
    /// What people marked it with.
    #[serde(default)]
    pub tags: Vec<RunTag>,
    /// The id that `run restore` takes, of a run that is archived; left out for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_id: Option<String>,
}

impl RunSummary {
    /// `None` for a run that was never begun.
    pub async fn of(run: &ReadRun) -> Result<Option<Self>, RunError> {
        let ReadRun {
            folder,
            store,
            held,
        } = run;
        let store = &**store;
        let Some(record) = store.run().await? else {
            return Ok(None);
        };
        let counts = store.counts().await?;
        let pinned = Pinned::read(&record.pinned)?;
        let scores = match record.kind {
            RunKind::Training => Scores::of_training(store).await?,
            // Not of `metrics.json`, which carries no authentication code.
            RunKind::Evaluation | RunKind::Serving => Scores::of_store(store, &pinned).await?,
        };
        Ok(Some(Self {
            run_name: folder.name().to_owned(),
            status: RunState::of(record.status, *held),
            done: counts.done,
            total: counts.total(),
            created_at: time_text(record.created_at_ms),
            output_path: folder.path.clone(),
            steps: scores.steps,
            model: pinned.model_path().map(str::to_owned),
            dataset: pinned.dataset().map(str::to_owned),
            pass_rate: scores.pass_rate,
            reward: scores.reward,
            cost: scores.cost,
            regraded_from: pinned.regraded_from.map(|from| from.run),
            tags: folder.labels().await.tags.into_iter().collect(),
            archive_id: None,
        }))
    }
}

/// The numbers of a summary that need more than the run's record.
#[derive(Debug, Default)]
struct Scores {
    pass_rate: Option<f64>,
    reward: Option<f64>,
    cost: Option<f64>,
    steps: Option<u64>,
}

impl Scores {
    async fn of_store(store: &dyn Store, pinned: &Pinned) -> Result<Self, RunError> {
        let tallies = store.tally().await?;
        let ran = tallies.iter().filter(|tally| tally.kind.ran());
        let ran: u64 = ran.map(|tally| tally.rollouts).sum();
        let passed: u64 = tallies.iter().map(|tally| tally.passed).sum();
        let scored = tallies
            .iter()
            .find(|tally| tally.kind == osmosis_core::OutcomeKind::Scored);
        let mean = |tally: &OutcomeTally| tally.reward_sum / tally.rollouts as f64;
        let money = Money::of(None, None, pinned)?;
        let cost = money.cost(store).await?;
        Ok(Self {
            pass_rate: (ran > 0).then(|| passed as f64 / ran as f64),
            reward: scored.map(mean),
            cost: cost.and_then(|cost| cost.total()),
            steps: None,
        })
    }

    async fn of_training(store: &dyn Store) -> Result<Self, RunError> {
        let last = store.steps().await?.pop();
        let step = last.as_ref().map_or(0, |step| step.step);
        // A step that this version can't read has no numbers here.
        let numbers = last.and_then(|step| step.metrics.read::<StepNumbers>().ok());
        let numbers = numbers.unwrap_or_default();
        Ok(Self {
            pass_rate: numbers.pass_rate,
            reward: numbers.reward,
            cost: None,
            steps: Some(step),
        })
    }
}
