//! What a training came to.

mod conclusion;
mod curve;
mod demo;
mod ending;
mod held_out;
mod stored_rollouts;

use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::RunName;
use osmosis_core::config::{RecipeReport, TrainConfig};
use osmosis_core::staleness::StalenessHistogram;
use osmosis_store::{RunRecord, RunStatus, Store};
use osmosis_train::checkpoints::{self, Checkpoint, Which};
use osmosis_train::{EndCause, TrainEnd, UnusedGroups};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use conclusion::{NoUpdateCause, TrainingConclusion};
pub use curve::{Curve, StepNumbers};
pub use demo::DemoReport;
pub(super) use ending::recorded_end;
pub use ending::{EndCauseWord, FinalEvaluationWord, TrainingEnd};
pub use held_out::{HeldOutPoint, HeldOutScore, HeldOutScores, NamedScore};
pub use stored_rollouts::{RolloutCounts, TrainingRollouts};

use self::conclusion::Evidence;
use self::stored_rollouts::{CutAnswers, StoredRollouts};
use super::call_survey::{CallSurvey, KeptCalls};
use super::{FailureReport, RunRecordReport, TruncationReport};
use crate::RunError;
use crate::run_folder::RunFolder;
use crate::runs::Pinned;
use crate::withheld::Withheld;

/// The best of many is partly the luckiest of them.
const OPTIMISTIC: &str = "chosen on the held-out rows, so its score on them is optimistic";

/// The `resource` of `train submit --json`, and `metrics.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingReport {
    pub run_name: RunName,
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
    /// `[training] recipe`, with the keys that the config sets otherwise; left out without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<RecipeReport>,
    /// Why it can't be said who wrote the records; left out of a run whose records are authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unauthenticated: Option<String>,
    /// The last step so far.
    pub steps: u64,
    /// How it ended; `null` while it goes on, after a `kill -9`, and for runs of older versions.
    #[serde(default)]
    pub end: Option<TrainingEnd>,
    pub steps_without_update: u64,
    /// The first evaluation on held-out rows; `null` without any.
    pub before: Option<HeldOutPoint>,
    /// The last one; `null` with a single one.
    pub after: Option<HeldOutPoint>,
    pub reward_curve: Vec<TrainedStep>,
    pub held_out_curve: Vec<HeldOutPoint>,
    /// The checkpoint with the highest pass rate on held-out rows; `null` without held-out rows.
    pub best: Option<BestCheckpoint>,
    /// Counted in the store, over all rollouts, those that are part of no step too.
    pub rollouts: TrainingRollouts,
    pub tokens: TokenCounts,
    /// Those after the last step too.
    pub groups: GroupCounts,
    /// Rollouts of training and of evaluations that failed for reasons outside the agent.
    pub infrastructure_failed: u64,
    /// Rollouts of training and of evaluations that failed alike, the most frequent first.
    #[serde(default)]
    pub failures: Vec<FailureReport>,
    /// Whether the policy was updated, why it was not or why training ended early, and what to do; left out before there is something to conclude from, and
    /// when another process trains the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<TrainingConclusion>,
    /// Answers that ended at the token limit, in training and in evaluations; left out while the run goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<TruncationReport>,
    /// `null` where nothing can be stale.
    pub staleness: Option<StalenessReport>,
    pub seconds: PhaseSeconds,
    pub checkpoints: Vec<SavedCheckpoint>,
    /// The reward curve as a picture.
    #[schemars(with = "String")]
    pub curve_path: Utf8PathBuf,
    /// What the run was begun on; `null` for runs from before it was recorded.
    pub processor: Option<String>,
    /// Whether this process went on with a run that another began; left out when it only looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<bool>,
    /// `true` when the run was complete before, and nothing was run; else left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub already_complete: bool,
    /// How long this process trained; left out when it only looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Names of variables that user code did not get; left out when this process only looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld_variables: Option<Vec<String>>,
    /// The same as `duration_ms`, not rounded.
    #[serde(skip)]
    pub duration: Option<Duration>,
}

/// A step of training with rollouts that ran.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainedStep {
    pub step: u64,
    /// The mean over scored rollouts.
    pub reward: Option<f64>,
    /// Passed / all that ran.
    pub pass_rate: Option<f64>,
    pub ran: u64,
    pub scored: u64,
    /// Those that ran and have no reward.
    pub failed: u64,
    pub infrastructure_failed: u64,
}

/// A checkpoint that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SavedCheckpoint {
    pub step: u64,
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
}

/// `run:NAME@best`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BestCheckpoint {
    pub step: u64,
    #[schemars(with = "String")]
    pub path: Utf8PathBuf,
    /// What to keep in mind.
    pub note: String,
}

/// Tokens of training, without those of evaluations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenCounts {
    pub sampled: u64,
    pub trained: u64,
}

/// What became of the groups: the rollouts of one row in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupCounts {
    pub used: u64,
    /// All of their rewards are equal.
    pub no_variance: u64,
    pub incomplete: u64,
}

/// Tokens by the versions they were behind, and what was too old.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StalenessReport {
    /// By staleness: 0 for those of the version that was updated.
    pub tokens: StalenessHistogram,
    pub mean: Option<f64>,
    pub max: Option<u64>,
    pub groups_discarded: u64,
    pub rollouts_dropped: u64,
    pub tokens_masked: u64,
    pub seconds_waiting: SecondsWaiting,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecondsWaiting {
    /// The learner waited for rollouts.
    pub rollouts: f64,
    /// Rollouts waited for an update.
    pub update: f64,
}

/// Where the time went.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseSeconds {
    pub rollout: f64,
    pub grade: f64,
    pub update: f64,
    pub swap: f64,
    pub save: f64,
    pub evaluation: f64,
}

/// What a training says of itself, as far as there is something to conclude from.
async fn conclude(
    store: &dyn Store,
    curve: &Curve,
    stored: &StoredRollouts,
    end: Option<&TrainEnd>,
    (name, folder): (&RunName, &RunFolder),
) -> Result<Option<TrainingConclusion>, RunError> {
    let Some(record) = store.run().await? else {
        return Ok(None);
    };
    let attempts = &stored.attempts;
    let trained_outside = Pinned::read(&record.pinned)?.trainer.is_some();
    // Before the first step there is something to say only when training gave up.
    let failed = record.status != RunStatus::Running && attempts.ran > 0 && attempts.scored == 0;
    let gave_up = failed || ended_flat(end);
    if trained_outside || (curve.last_step() == 0 && !gave_up) {
        return Ok(None);
    }
    let cut = if conclusion::updates(curve) == 0 || ended_flat(end) {
        attempts.cut_answers(store).await?
    } else {
        CutAnswers::default()
    };
    let workspace = folder.workspace();
    let evidence = Evidence::of(curve, attempts, end, cut, name, &workspace);
    Ok(Some(evidence.conclusion()))
}

/// Whether training ended because there was nothing more to learn.
fn ended_flat(end: Option<&TrainEnd>) -> bool {
    end.is_some_and(|end| matches!(end.cause(), EndCause::NoVariance { .. }))
}

/// The moment after which attempts tell why there was nothing to learn: any, or when the last update is what was learned
/// before, after the last batch.
async fn evidence_since(
    store: &dyn Store,
    curve: &Curve,
    end: Option<&TrainEnd>,
) -> Result<i64, RunError> {
    if conclusion::updates(curve) == 0 || !ended_flat(end) {
        return Ok(i64::MIN);
    }
    let batches = store.batches().await?;
    Ok(batches.last().map_or(i64::MIN, |batch| batch.formed_at_ms))
}

/// The kind of processor that a run was begun on.
pub async fn begun_on(store: &dyn Store) -> Result<Option<String>, RunError> {
    let Some(record) = store.run().await? else {
        return Ok(None);
    };
    Ok(Pinned::read(&record.pinned)?.remembered.processor)
}

impl BestCheckpoint {
    /// Of a run; without held-out rows there is none.
    pub fn of(folder: &RunFolder) -> Option<Self> {
        let best = checkpoints::resolve(&folder.path, Which::Best).ok()?;
        Some(Self {
            step: best.step,
            path: best.folder,
            note: OPTIMISTIC.to_owned(),
        })
    }
}

impl TrainingReport {
    pub async fn of(
        store: &dyn Store,
        name: &RunName,
        folder: &RunFolder,
    ) -> Result<Self, RunError> {
        let curve = Curve::of(store).await?;
        let end = recorded_end(store).await?;
        let end = end.as_ref();
        let since = evidence_since(store, &curve, end).await?;
        let stored = StoredRollouts::of(store, since).await?;
        let conclusion = conclude(store, &curve, &stored, end, (name, folder)).await?;
        let infrastructure_failed = stored.infrastructure_failed();
        let in_steps = curve.count(StepNumbers::rollouts);
        let rollouts = TrainingRollouts {
            in_no_step: stored.training.finished().saturating_sub(in_steps),
            training: stored.training,
            held_out: stored.held_out,
        };
        let run = store.run().await?;
        let pinned = match &run {
            Some(run) => Pinned::read(&run.pinned)?,
            None => Pinned::default(),
        };
        let failures = stored.failures.into_sorted();
        let held_out_curve = curve.held_out();
        let after = (held_out_curve.len() > 1).then(|| held_out_curve.last().cloned());
        let saved = checkpoints::list(&folder.path)?.into_iter();
        Ok(Self {
            run_name: name.clone(),
            output_path: folder.path.clone(),
            recipe: run.as_ref().and_then(recipe_of),
            unauthenticated: store.authenticity().missing(),
            steps: curve.last_step(),
            end: end.map(TrainingEnd::of),
            steps_without_update: curve
                .trained()
                .filter(|step| step.skipped.is_some())
                .count() as u64,
            before: held_out_curve.first().cloned(),
            after: after.flatten(),
            reward_curve: curve.trained().filter_map(TrainedStep::of).collect(),
            held_out_curve,
            best: BestCheckpoint::of(folder),
            tokens: TokenCounts {
                sampled: rollouts.training.completion_tokens,
                trained: curve.count(|step| step.tokens_trained),
            },
            rollouts,
            groups: GroupCounts::of(&curve, end),
            infrastructure_failed,
            failures: failures
                .iter()
                .map(|group| FailureReport::in_training(group, name, &pinned, &folder.workspace()))
                .collect(),
            conclusion,
            truncated: KeptCalls::read(folder).truncated,
            staleness: curve
                .is_asynchronous()
                .then(|| StalenessReport::of(&curve, end)),
            seconds: PhaseSeconds {
                rollout: curve.sum(|step| step.rollout_seconds),
                grade: curve.sum(|step| step.grade_seconds),
                update: curve.sum(|step| step.update_seconds),
                swap: curve.sum(|step| step.swap_seconds),
                save: curve.sum(|step| step.save_seconds.unwrap_or(0.0)),
                evaluation: curve.sum(StepNumbers::eval_seconds),
            },
            checkpoints: saved
                .map(|Checkpoint { step, folder }| SavedCheckpoint { step, path: folder })
                .collect(),
            curve_path: folder.curve(),
            processor: pinned.remembered.processor,
            resumed: None,
            already_complete: false,
            duration_ms: None,
            withheld_variables: None,
            duration: None,
        })
    }

    /// The same by the process that trained: whether it went on with the run of another, and for how long.
    #[must_use]
    pub fn ran_here(self, resumed: bool, duration: impl Into<Option<Duration>>) -> Self {
        let duration = duration.into();
        let in_ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            resumed: Some(resumed),
            duration_ms: duration.map(in_ms),
            duration,
            ..self
        }
    }

    /// The same, of a run that perhaps was complete before, so that nothing was run.
    #[must_use]
    pub fn found_complete(self, already_complete: bool) -> Self {
        Self {
            already_complete,
            ..self
        }
    }

    /// The same with how the answers ended. It reads the bodies of all calls, which the process that trained does
    /// once, at the end.
    pub async fn with_calls(self, store: &dyn Store) -> Result<Self, RunError> {
        let survey = CallSurvey::of_run(store, &Pinned::default()).await?;
        Ok(Self {
            truncated: Some(survey.truncation()),
            ..self
        })
    }

    /// The same with the names of the variables that user code did not get.
    #[must_use]
    pub fn with_withheld(self, Withheld(names): &Withheld) -> Self {
        Self {
            withheld_variables: Some(names.clone()),
            ..self
        }
    }

    /// Whether it ended without a single update, so that its model is the one it started with.
    pub fn made_no_update(&self) -> bool {
        let conclusion = self.conclusion.as_ref();
        conclusion.is_some_and(|conclusion| conclusion.updates == 0)
    }

    /// Mean training reward by step, where there is one.
    pub fn rewards(&self) -> Vec<(u64, f64)> {
        let steps = self.reward_curve.iter();
        steps
            .filter_map(|step| Some((step.step, step.reward?)))
            .collect()
    }

    /// The part of a step's rollouts that passed, of all that ran, by step.
    pub fn pass_rates(&self) -> Vec<(u64, f64)> {
        let steps = self.reward_curve.iter();
        steps
            .filter_map(|step| Some((step.step, step.pass_rate?)))
            .collect()
    }
}

/// By the config that the run recorded; one of an older version, which can't be read, has none.
fn recipe_of(run: &RunRecord) -> Option<RecipeReport> {
    let config = TrainConfig::parse("config.toml".into(), &run.config_toml).ok()?;
    config.training.recipe_report()
}

impl TrainedStep {
    /// `None` for a step without a rollout that ran.
    fn of(step: &StepNumbers) -> Option<Self> {
        (step.reward.is_some() || step.pass_rate.is_some()).then(|| Self {
            step: step.step,
            reward: step.reward,
            pass_rate: step.pass_rate,
            ran: step.ran(),
            scored: step.scored,
            failed: step.failed(),
            infrastructure_failed: step.infrastructure_failed,
        })
    }
}

impl GroupCounts {
    fn of(curve: &Curve, end: Option<&TrainEnd>) -> Self {
        let unused = end.map(TrainEnd::unused).unwrap_or_default();
        Self {
            used: curve.count(|step| step.groups_used),
            no_variance: curve.count(|step| step.groups_without_variance) + unused.no_variance,
            incomplete: curve.count(|step| step.groups_incomplete) + unused.incomplete,
        }
    }
}

impl From<UnusedGroups> for GroupCounts {
    fn from(unused: UnusedGroups) -> Self {
        Self {
            used: 0,
            no_variance: unused.no_variance,
            incomplete: unused.incomplete,
        }
    }
}

impl StalenessReport {
    fn of(curve: &Curve, end: Option<&TrainEnd>) -> Self {
        let tokens = curve.staleness();
        let unused = end.map(TrainEnd::unused).unwrap_or_default();
        Self {
            mean: tokens.mean(),
            max: tokens.max(),
            tokens,
            groups_discarded: curve.count(|step| step.groups_stale) + unused.stale,
            rollouts_dropped: curve.count(|step| step.rollouts_stale),
            tokens_masked: curve.count(|step| step.tokens_masked),
            seconds_waiting: SecondsWaiting {
                rollouts: curve.sum(|step| step.wait_rollouts_seconds.unwrap_or(0.0)),
                update: curve.sum(|step| step.wait_update_seconds.unwrap_or(0.0)),
            },
        }
    }
}

/// The `data` of `train info --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingInfo {
    #[serde(flatten)]
    pub report: TrainingReport,
    #[serde(flatten)]
    pub record: RunRecordReport,
}
