//! One run beside the first of a comparison.

use osmosis_core::RewardRange;
use osmosis_core::statistics::{
    Comparison, Endpoint, Finding, OutcomeCounts, PairedDifference, RewardBounds, RowPair,
    RowValues, RunComparison, Verdict,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::changed_rows::{ChangedRows, Shown};
use super::facts::{Difference, differences};
use super::pairing::Paired;
use super::run_rows::{ComparedRun, RowResult, RunRows, Usage};
use super::summary;
use crate::workspace::Workspace;

/// An item of `others` in `eval compare --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedWith {
    #[serde(flatten)]
    pub run: ComparedRun,
    pub verdict: Verdict,
    /// The verdict with its reason.
    pub finding: Finding,
    /// The answer in a sentence or two.
    pub summary: String,
    pub rows: PairedRows,
    pub pass_rate: Option<Endpoint>,
    /// Rollouts that ran without being scored / ran.
    pub failures: Option<Endpoint>,
    pub reward: Option<Endpoint>,
    /// Whether the reward can decide between the runs.
    pub reward_decides: bool,
    /// Rollouts of the shared rows that failed outside the agent or were cancelled; `null` without any.
    pub lost: Option<LostRollouts>,
    pub usage: UsageDifference,
    /// Rows that pass more often in this run.
    pub fixed: ChangedRows,
    pub broken: ChangedRows,
    pub failing_more: ChangedRows,
    pub failing_less: ChangedRows,
    /// Rows with the same passes and a higher reward.
    pub reward_up: ChangedRows,
    pub reward_down: ChangedRows,
    /// What the two runs were pinned to, where it differs.
    pub differences: Vec<Difference>,
    /// What to keep in mind: missing results, other rows, another yardstick.
    pub cautions: Vec<String>,
    /// How the rollouts of the shared rows ended, in the first run and in this one.
    #[serde(skip)]
    pub shared_outcomes: (OutcomeCounts, OutcomeCounts),
}

/// Rollouts that failed outside the agent or were cancelled: they are in no number, and may be others than the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostRollouts {
    pub first: u64,
    pub second: u64,
    /// So many of them would turn the verdict, if those of the one run had passed and those of the other had not;
    /// `null` when all of them would not.
    pub turn_verdict: Option<u64>,
}

/// Which rows were compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PairedRows {
    /// Rows that both runs have.
    pub shared: u64,
    /// Of these, the ones that ran in both.
    pub compared: u64,
    pub only_in_first: u64,
    pub only_in_this: u64,
    pub found_by: FoundBy,
}

/// How rows of the two runs were found to be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    /// The datasets are the same file.
    Index,
    /// They differ, and the rows hold the same.
    Content,
}

/// What a rollout takes, on average; empty when one of the runs only grades.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsageDifference {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_calls: Option<PairedDifference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<PairedDifference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<PairedDifference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ms: Option<PairedDifference>,
}

/// A number of a rollout.
type OfUsage = fn(&Usage) -> f64;

/// A comparison whose p values do not yet pay for those of the others.
#[derive(Debug)]
pub(super) struct Findings {
    /// Pass rate, failures and reward, tested.
    pub(super) tested: RunComparison,
    rows: Vec<RowPair>,
    rewards: RewardBounds,
    compared: ComparedWith,
}

impl Findings {
    pub(super) fn of(
        first: &RunRows,
        second: &RunRows,
        paired: &Paired,
        workspace: &Workspace,
    ) -> Self {
        let tested = |one: &RowResult, other: &RowResult| RowPair {
            first: one.tested(),
            second: other.tested(),
        };
        let failed = |row: &RowResult| row.outcomes.failed() as f64 / row.ran() as f64;
        let rate = |row: &RowResult| row.passed as f64 / row.ran() as f64;
        let mean = |row: &RowResult| row.reward().unwrap_or_default();
        let ran = || {
            paired
                .rows(first, second)
                .filter(|(one, other)| one.ran() > 0 && other.ran() > 0)
        };
        // Those whose passes changed are listed already; where not the same rollouts were scored, means tell nothing.
        let scored = || {
            ran().filter(|(one, other)| {
                let sides = [one, other];
                let throughout = sides
                    .iter()
                    .all(|row| !row.rewards.is_empty() && row.outcomes.failed() + row.lost() == 0);
                throughout && (rate(one) - rate(other)).abs() < 1e-12
            })
        };
        // Sums in another order differ in their last digits.
        let apart = |one: f64, other: f64| {
            let difference = other - one;
            if difference.abs() <= 1e-12 * one.abs() {
                0.0
            } else {
                difference
            }
        };
        let rows: Vec<RowPair> = paired
            .rows(first, second)
            .map(|(one, other)| tested(one, other))
            .collect();
        let mut outcomes = (OutcomeCounts::default(), OutcomeCounts::default());
        for (one, other) in paired.rows(first, second) {
            outcomes.0.merge(&one.outcomes);
            outcomes.1.merge(&other.outcomes);
        }
        let shown = Shown {
            run: second.name.as_str(),
            workspace,
        };
        let changed =
            |by: &dyn Fn(&RowResult, &RowResult) -> f64| ChangedRows::of(ran(), shown, by);
        let rewarded =
            |by: &dyn Fn(&RowResult, &RowResult) -> f64| ChangedRows::of(scored(), shown, by);
        // A run that only grades has no calls and times of its own.
        let has_usage =
            first.pinned.regraded_from.is_none() && second.pinned.regraded_from.is_none();
        let usage = |of: OfUsage| {
            let values = |row: &RowResult| row.usage.iter().map(of).collect();
            let rows: Vec<RowValues> = paired
                .rows(first, second)
                .map(|(one, other)| RowValues {
                    first: values(one),
                    second: values(other),
                })
                .collect();
            let compared = has_usage.then(|| Comparison::of_means(&rows, None));
            compared.flatten().map(|compared| compared.difference)
        };
        let differences = differences(&first.pinned, &second.pinned);
        let rewards = reward_bounds(first, second);
        let tested = RunComparison::of(&rows, rewards);
        let compared = ComparedWith {
            run: second.report(),
            verdict: tested.verdict(),
            finding: tested.finding(),
            summary: String::new(),
            rows: PairedRows {
                shared: paired.len() as u64,
                compared: ran().count() as u64,
                only_in_first: paired.only_first,
                only_in_this: paired.only_second,
                found_by: if paired.by_content {
                    FoundBy::Content
                } else {
                    FoundBy::Index
                },
            },
            pass_rate: tested.pass,
            failures: tested.failures,
            reward: tested.reward,
            reward_decides: tested.reward_decides,
            lost: None,
            usage: UsageDifference {
                model_calls: usage(|usage| usage.model_calls as f64),
                prompt_tokens: usage(|usage| usage.prompt_tokens as f64),
                completion_tokens: usage(|usage| usage.completion_tokens as f64),
                agent_ms: usage(|usage| usage.agent_ms),
            },
            fixed: changed(&|one, other| apart(rate(one), rate(other))),
            broken: changed(&|one, other| apart(rate(other), rate(one))),
            failing_more: changed(&|one, other| apart(failed(one), failed(other))),
            failing_less: changed(&|one, other| apart(failed(other), failed(one))),
            reward_up: rewarded(&|one, other| apart(mean(one), mean(other))),
            reward_down: rewarded(&|one, other| apart(mean(other), mean(one))),
            cautions: cautions(first, second, paired, &differences),
            differences,
            shared_outcomes: outcomes,
        };
        Self {
            tested,
            rows,
            rewards,
            compared,
        }
    }

    /// Several runs beside the first: each p value pays for the others.
    pub(super) fn adjusted(found: Vec<Self>) -> Vec<ComparedWith> {
        let mut tested: Vec<RunComparison> = found.iter().map(|f| f.tested.clone()).collect();
        RunComparison::adjust(&mut tested);
        let adjusted = found.into_iter().zip(tested).map(|(findings, tested)| {
            let mut compared = ComparedWith {
                verdict: tested.verdict(),
                finding: tested.finding(),
                pass_rate: tested.pass,
                failures: tested.failures,
                reward: tested.reward,
                reward_decides: tested.reward_decides,
                lost: findings.lost(&tested),
                ..findings.compared
            };
            compared.summary = summary::text(&compared, tested.rows_changed());
            compared
        });
        adjusted.collect()
    }

    fn lost(&self, tested: &RunComparison) -> Option<LostRollouts> {
        let (first, second) = &self.compared.shared_outcomes;
        let lost = |outcomes: &OutcomeCounts| outcomes.total() - outcomes.ran();
        let turns = tested.finding() == Finding::LostRollouts;
        (lost(first) + lost(second) > 0).then(|| LostRollouts {
            first: lost(first),
            second: lost(second),
            turn_verdict: turns
                .then(|| RunComparison::lost_to_turn(&self.rows, self.rewards))
                .flatten(),
        })
    }
}

/// Where the rewards of both runs lie: in the smallest range that holds the declared ranges of both.
fn reward_bounds(first: &RunRows, second: &RunRows) -> RewardBounds {
    let declared = |run: &RunRows| run.pinned.reward_range();
    let both = |one: RewardRange, other: RewardRange| {
        RewardRange::new(one.low().min(other.low()), one.high().max(other.high())).ok()
    };
    let implied = |run: &RunRows| {
        let binary = run.has_binary_rewards();
        declared(run).or(binary.then_some(RewardRange::UNIT))
    };
    if let (Some(one), Some(other)) = (declared(first), declared(second)) {
        both(one, other).map_or(RewardBounds::Unknown, RewardBounds::Declared)
    } else if let (Some(one), Some(other)) = (implied(first), implied(second)) {
        both(one, other).map_or(RewardBounds::Unknown, RewardBounds::Implied)
    } else {
        RewardBounds::Unknown
    }
}

fn cautions(
    first: &RunRows,
    second: &RunRows,
    paired: &Paired,
    differences: &[Difference],
) -> Vec<String> {
    let mut cautions = vec![];
    for run in [first, second] {
        if run.missing() > 0 {
            cautions.push(format!(
                "`{}` is {}: {} of its {} rollouts have no result yet; only what is there is compared",
                run.name,
                run.status,
                run.missing(),
                run.counts.total()
            ));
        }
        let lost = run.outcomes.infrastructure_failed + run.outcomes.cancelled;
        if lost > 0 {
            cautions.push(format!(
                "{lost} rollouts of `{}` failed outside the agent or were cancelled, and are in no number; \
                 `osmosis eval resume {}` runs them again",
                run.name, run.name
            ));
        }
    }
    if paired.by_content {
        cautions
            .push("the datasets differ; only rows with the same content are compared".to_owned());
    } else if paired.only_first + paired.only_second > 0 {
        cautions.push(format!(
            "the runs took different rows: {} only in `{}`, {} only in `{}`; the {} they share are compared",
            paired.only_first,
            first.name,
            paired.only_second,
            second.name,
            paired.len()
        ));
    }
    let of_facts = differences.iter();
    let mut of_facts: Vec<String> = of_facts.filter_map(|d| d.caution.clone()).collect();
    of_facts.dedup();
    cautions.extend(of_facts);
    cautions
}
