//! What an evaluation came to.

use std::time::Duration;

use camino::Utf8PathBuf;
use osmosis_core::failure_groups::FailureGroups;
use osmosis_core::statistics::{RunNumbers, RunTally, definition};
use osmosis_core::{JsonText, RunName};
use osmosis_store::{JudgeSummary, RolloutPages, RolloutRecord, RunRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::call_survey::{CallSurvey, KeptCalls};
use super::failures::RunAgain;
use super::worst_rows::WorstRows;
use super::{
    CostReport, FactChanges, FailureReport, FlipsReport, Gate, GateResult, NodeState, RunState,
    SamplingReport, TruncationReport, WorstRow,
};
use crate::RunError;
use crate::figures::time_text;
use crate::run_folder::RunFolder;
use crate::runs::Pinned;
use crate::withheld::Withheld;

/// The `resource` of `eval submit --json`, and `metrics.json`. What can't be said is `null`, never 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunReport {
    pub run_name: RunName,
    #[schemars(with = "String")]
    pub output_path: Utf8PathBuf,
    /// Why it can't be said who wrote the records; left out of a run whose records are authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unauthenticated: Option<String>,
    /// Rollouts with and without a result.
    pub total_rollouts: u64,
    #[serde(flatten)]
    pub numbers: RunNumbers,
    /// Whether this process went on with a run that another began; left out when it only looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<bool>,
    /// `true` when the run was complete before, and nothing was run; else left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub already_complete: bool,
    /// `null` without prices.
    pub cost: Option<CostReport>,
    pub judge: JudgeSummary,
    /// The run whose samples this one grades, when it ran none itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regraded_from: Option<String>,
    /// The run that has the policy's calls, when this one only grades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_calls_in: Option<String>,
    /// How long this process ran it; left out when it only looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Names of variables that user code did not get; left out when this process only looks, or user code is
    /// elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld_variables: Option<Vec<String>>,
    /// Which sampling parameters the model was asked with, and who chose them; left out of a run that only
    /// grades, and while a run goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingReport>,
    /// Answers that ended at the token limit; left out likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<TruncationReport>,
    pub failures: Vec<FailureReport>,
    /// The rows that did worst, of those with rollouts that ran and did not pass; few of them.
    #[serde(default)]
    pub worst_rows: Vec<WorstRow>,
    pub definitions: RunDefinitions,
    /// What became of each `--fail-under`; left out without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<Vec<GateResult>>,
    /// Of a run that only grades: what differs from how its source was graded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<FactChanges>,
    /// Of a run that only grades: every grade that is not what it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flips: Option<FlipsReport>,
}

/// What the numbers count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunDefinitions {
    pub ran: String,
    pub pass_rate: String,
    pub reward: String,
    pub ci95: String,
    pub ci95_bootstrap: String,
    pub pass_at_k: String,
    pub pass_hat_k: String,
    pub calls: String,
    pub without_model_calls: String,
    pub durations: String,
}

impl Default for RunDefinitions {
    fn default() -> Self {
        Self {
            ran: definition::RAN.to_owned(),
            pass_rate: definition::PASS_RATE.to_owned(),
            reward: definition::REWARD.to_owned(),
            ci95: definition::CI95.to_owned(),
            ci95_bootstrap: definition::CI95_BOOTSTRAP.to_owned(),
            pass_at_k: definition::PASS_AT_K.to_owned(),
            pass_hat_k: definition::PASS_HAT_K.to_owned(),
            calls: definition::CALLS.to_owned(),
            without_model_calls: definition::WITHOUT_MODEL_CALLS.to_owned(),
            durations: definition::DURATIONS.to_owned(),
        }
    }
}

impl RunReport {
    /// What the run has come to so far. Reads every rollout with a result once.
    pub async fn of(
        store: &dyn Store,
        name: &RunName,
        folder: &RunFolder,
    ) -> Result<Self, RunError> {
        let pinned = match store.run().await? {
            Some(run) => Pinned::read(&run.pinned)?,
            None => Pinned::default(),
        };
        let runs_per_row = pinned.rollouts_per_row().unwrap_or(1);
        let mut tally = RunTally::new(runs_per_row).within(pinned.reward_range());
        let mut judge = JudgeSummary::default();
        let mut failures = FailureGroups::default();
        let mut worst = WorstRows::default();
        let each = |rollout: &RolloutRecord| {
            if let (Some(outcome), Some(fact)) = (&rollout.outcome, rollout.fact()) {
                tally.add(&fact);
                judge.add(rollout.calls.judge);
                failures.add(rollout.row_index, rollout.run_index, outcome);
                worst.add(rollout, outcome);
            }
        };
        RolloutPages::finished(store).for_each(each).await?;
        let again = RunAgain::of(name, &pinned, folder.workspace());
        let failures = failures.into_sorted();
        let mut numbers = tally.numbers();
        if pinned.regraded_from.is_some() {
            // The policy was asked elsewhere.
            numbers.without_model_calls = None;
        }
        Ok(Self {
            run_name: name.clone(),
            output_path: folder.path.clone(),
            unauthenticated: store.authenticity().missing(),
            total_rollouts: store.counts().await?.total(),
            numbers,
            resumed: None,
            already_complete: false,
            cost: None,
            judge,
            regraded_from: pinned.regraded_from.as_ref().map(|from| from.run.clone()),
            policy_calls_in: pinned.regraded_from.map(|from| from.calls_in),
            duration_ms: None,
            withheld_variables: None,
            sampling: None,
            truncated: None,
            failures: failures
                .iter()
                .map(|group| FailureReport::of(group, &again))
                .collect(),
            worst_rows: worst.into_rows(name.as_str(), &folder.workspace()),
            definitions: RunDefinitions::default(),
            gates: None,
            changes: None,
            flips: None,
        })
    }

    /// The same by the process that ran it: whether it went on with the run of another, and for how long.
    #[must_use]
    pub fn ran_here(self, resumed: bool, duration: Duration) -> Self {
        Self {
            resumed: Some(resumed),
            duration_ms: Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
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

    /// The same with what the policy's calls asked for, and how their answers ended. It reads the bodies of all
    /// calls, which the process that ran them does once, at the end.
    pub async fn with_calls(self, store: &dyn Store, pinned: &Pinned) -> Result<Self, RunError> {
        let survey = CallSurvey::of_run(store, pinned).await?;
        Ok(Self {
            sampling: Some(survey.sampling()),
            truncated: Some(survey.truncation()),
            ..self
        })
    }

    /// The same with what the process that ran it wrote down of its calls, if it has.
    #[must_use]
    pub fn with_calls_of(self, folder: &RunFolder) -> Self {
        let KeptCalls {
            sampling,
            truncated,
        } = KeptCalls::read(folder);
        Self {
            sampling,
            truncated,
            ..self
        }
    }

    /// The same with the names of the variables that user code did not get.
    #[must_use]
    pub fn with_withheld(self, withheld: Option<&Withheld>) -> Self {
        Self {
            withheld_variables: withheld.map(|Withheld(names)| names.clone()),
            ..self
        }
    }

    /// The same with what it cost.
    #[must_use]
    pub fn with_cost(self, cost: Option<CostReport>) -> Self {
        Self { cost, ..self }
    }

    /// The same with what became of these gates.
    #[must_use]
    pub fn judged_by(self, gates: &[Gate]) -> Self {
        let results: Vec<GateResult> = gates.iter().map(|gate| gate.judge(&self.numbers)).collect();
        Self {
            gates: (!results.is_empty()).then_some(results),
            ..self
        }
    }

    /// The same with what differs from how the source was graded.
    #[must_use]
    pub fn with_changes(self, changes: FactChanges) -> Self {
        Self {
            changes: Some(changes),
            ..self
        }
    }

    /// Whether every gate that it was judged by holds.
    pub fn gates_hold(&self) -> bool {
        let mut results = self.gates.iter().flatten();
        results.all(|result| result.holds)
    }

    /// In US dollars, when it is known.
    pub fn total_cost(&self) -> Option<f64> {
        self.cost.as_ref().and_then(|cost| cost.total)
    }

    /// Whether rollouts have no result, or failed for reasons outside the agent.
    pub fn is_incomplete(&self) -> bool {
        self.infrastructure_failed() > 0 || self.without_result() > 0
    }

    pub fn without_result(&self) -> u64 {
        let with_result = self.numbers.outcomes.total();
        self.total_rollouts.saturating_sub(with_result)
    }

    /// Rollouts with a result that did not pass, whatever the reason.
    pub fn not_passed(&self) -> u64 {
        let with_result = self.numbers.outcomes.total();
        with_result.saturating_sub(self.numbers.passed)
    }

    pub fn infrastructure_failed(&self) -> u64 {
        self.numbers.outcomes.infrastructure_failed
    }
}

/// What the run's own record says of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecordReport {
    pub status: RunState,
    /// In UTC: `2026-01-31 12:00:00Z`.
    pub created_at: String,
    /// What a resume must find unchanged, as it was recorded.
    pub pinned: JsonText,
    /// The config file as it was.
    pub config: String,
}

impl RunRecordReport {
    /// `held`: whether a living process writes to the run.
    pub fn of(record: &RunRecord, held: bool) -> Self {
        Self {
            status: RunState::of(record.status, held),
            created_at: time_text(record.created_at_ms),
            pinned: record.pinned.clone(),
            config: record.config_toml.clone(),
        }
    }
}

/// The `data` of `eval info --json`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
pub struct RunInfo {
    #[serde(flatten)]
    pub report: RunReport,
    #[serde(flatten)]
    pub record: RunRecordReport,
    /// The nodes that work on it, or did not long ago and did not leave in order; left out when there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeState>,
}

impl Serialize for RunInfo {
    /// The definitions, or else the gates, stand before the cost: they always did, and the order of keys is
    /// kept.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct InOrder<'a> {
            run_name: &'a RunName,
            output_path: &'a Utf8PathBuf,
            #[serde(skip_serializing_if = "Option::is_none")]
            unauthenticated: &'a Option<String>,
            total_rollouts: u64,
            #[serde(flatten)]
            numbers: &'a RunNumbers,
            #[serde(skip_serializing_if = "Option::is_none")]
            gates: &'a Option<Vec<GateResult>>,
            #[serde(rename = "definitions", skip_serializing_if = "Option::is_none")]
            definitions_without_gates: Option<&'a RunDefinitions>,
            cost: &'a Option<CostReport>,
            judge: &'a JudgeSummary,
            #[serde(skip_serializing_if = "Option::is_none")]
            regraded_from: &'a Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            policy_calls_in: &'a Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            sampling: &'a Option<SamplingReport>,
            #[serde(skip_serializing_if = "Option::is_none")]
            truncated: &'a Option<TruncationReport>,
            failures: &'a [FailureReport],
            worst_rows: &'a [WorstRow],
            #[serde(rename = "definitions", skip_serializing_if = "Option::is_none")]
            definitions_with_gates: Option<&'a RunDefinitions>,
            #[serde(flatten)]
            record: &'a RunRecordReport,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            nodes: &'a [NodeState],
        }

        let Self {
            report,
            record,
            nodes,
        } = self;
        let definitions = Some(&report.definitions);
        InOrder {
            run_name: &report.run_name,
            output_path: &report.output_path,
            unauthenticated: &report.unauthenticated,
            total_rollouts: report.total_rollouts,
            numbers: &report.numbers,
            gates: &report.gates,
            definitions_without_gates: definitions.filter(|_| report.gates.is_none()),
            cost: &report.cost,
            judge: &report.judge,
            regraded_from: &report.regraded_from,
            policy_calls_in: &report.policy_calls_in,
            sampling: &report.sampling,
            truncated: &report.truncated,
            failures: &report.failures,
            worst_rows: &report.worst_rows,
            definitions_with_gates: definitions.filter(|_| report.gates.is_some()),
            record,
            nodes,
        }
        .serialize(serializer)
    }
}
