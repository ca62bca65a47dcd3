//! What a comparison of two runs comes to.

use osmosis_core::statistics::{
    Cluster, OutcomeCounts, Pair, PairedDifference, RowPair, RunComparison,
};
use osmosis_core::{RewardRange, RunName};
use serde_json::{Value, json};

use super::changed_rows::ChangedRows;
use super::facts::{Difference, differences, has_usage};
use super::pairing::Paired;
use super::run_rows::{ComparedRun, RowResult};
use crate::workspace::Workspace;

/// Rows that must change for a test to be able to speak of a difference: 2 / 2^6 is the first at most 5%.
pub(super) const LEAST_CHANGED: u64 = 6;

#[derive(Debug)]
pub(super) struct Findings {
    pub(super) first: RunName,
    pub(super) second: RunName,
    run: Value,
    /// Rows that both have, and of these the ones that ran in both.
    pub(super) shared: u64,
    pub(super) compared: u64,
    pub(super) only_first: u64,
    pub(super) only_second: u64,
    pub(super) by_content: bool,
    /// Pass rate, failures and reward, tested.
    pub(super) tested: RunComparison,
    /// How the rollouts of the shared rows ended, in both runs.
    pub(super) outcomes: (OutcomeCounts, OutcomeCounts),
    pub(super) usage: Vec<(Usage, PairedDifference)>,
    pub(super) fixed: ChangedRows,
    pub(super) broken: ChangedRows,
    pub(super) failing_more: ChangedRows,
    pub(super) failing_less: ChangedRows,
    pub(super) reward_up: ChangedRows,
    pub(super) reward_down: ChangedRows,
    pub(super) differences: Vec<Difference>,
    /// What to keep in mind: missing results, other rows, another yardstick.
    pub(super) cautions: Vec<String>,
}

/// A number of a row, as how many rollouts it is over and its sum.
type OfRow = fn(&RowResult) -> Cluster;

/// What a rollout costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    ModelCalls,
    PromptTokens,
    CompletionTokens,
    AgentTime,
}

impl Usage {
    const ALL: [Self; 4] = [
        Self::ModelCalls,
        Self::PromptTokens,
        Self::CompletionTokens,
        Self::AgentTime,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ModelCalls => "model_calls",
            Self::PromptTokens => "prompt_tokens",
            Self::CompletionTokens => "completion_tokens",
            Self::AgentTime => "agent_ms",
        }
    }

    fn value(self) -> OfRow {
        match self {
            Self::ModelCalls => |row| (row.ran, row.model_calls as f64),
            Self::PromptTokens => |row| (row.ran, row.prompt_tokens as f64),
            Self::CompletionTokens => |row| (row.ran, row.completion_tokens as f64),
            Self::AgentTime => |row| (row.ran, row.agent_ms),
        }
    }
}

impl Findings {
    pub(super) fn of(first: &ComparedRun, second: &ComparedRun, paired: &Paired) -> Self {
        let pairs = |value: OfRow| -> Vec<Pair> {
            let both = paired.rows(first, second);
            both.map(|(one, other)| Pair {
                first: value(one),
                second: value(other),
            })
            .collect()
        };
        let tested = |one: &RowResult, other: &RowResult| RowPair {
            first: one.tested(),
            second: other.tested(),
        };
        let failed = |row: &RowResult| row.tested().failed() as f64 / row.ran as f64;
        let rate = |row: &RowResult| row.passed as f64 / row.ran as f64;
        let mean = |row: &RowResult| row.reward_sum / row.scored as f64;
        let ran = || {
            paired
                .rows(first, second)
                .filter(|(one, other)| one.ran > 0 && other.ran > 0)
        };
        // Those whose passes changed are listed already; where not the same rollouts were scored, means tell nothing.
        let scored = || {
            ran().filter(|(one, other)| {
                let pair = tested(one, other);
                let scored = one.scored > 0 && other.scored > 0 && pair.is_scored_alike();
                scored && (rate(one) - rate(other)).abs() < 1e-12
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
        let differences = differences(&first.pinned, &second.pinned);
        Self {
            first: first.name.clone(),
            second: second.name.clone(),
            run: second.json(),
            shared: paired.len() as u64,
            compared: ran().count() as u64,
            only_first: paired.only_first,
            only_second: paired.only_second,
            by_content: paired.by_content,
            tested: RunComparison::of(&rows, reward_range(first, second)),
            outcomes,
            usage: Usage::ALL
                .into_iter()
                .filter(|_| has_usage(&first.pinned) && has_usage(&second.pinned))
                .filter_map(|usage| Some((usage, PairedDifference::of(&pairs(usage.value()))?)))
                .collect(),
            fixed: ChangedRows::of(ran(), |one, other| apart(rate(one), rate(other))),
            broken: ChangedRows::of(ran(), |one, other| apart(rate(other), rate(one))),
            failing_more: ChangedRows::of(ran(), |one, other| apart(failed(one), failed(other))),
            failing_less: ChangedRows::of(ran(), |one, other| apart(failed(other), failed(one))),
            reward_up: ChangedRows::of(scored(), |one, other| apart(mean(one), mean(other))),
            reward_down: ChangedRows::of(scored(), |one, other| apart(mean(other), mean(one))),
            cautions: cautions(first, second, paired, &differences),
            differences,
        }
    }

    /// How many rows changed, when they are too few for any test.
    pub(super) fn too_few_changed(&self) -> Option<u64> {
        Some(self.tested.rows_changed()).filter(|changed| *changed < LEAST_CHANGED)
    }

    /// The largest share of rows that may differ in truth although none was seen to: with that share, 5% of
    /// samples of so many rows show nothing.
    pub(super) fn unseen_share(&self) -> f64 {
        1.0 - 0.05f64.powf(1.0 / self.compared.max(1) as f64)
    }

    pub(super) fn json(&self, workspace: &Workspace) -> Value {
        let run = self.second.as_str();
        let usage: serde_json::Map<String, Value> = self
            .usage
            .iter()
            .map(|(usage, difference)| (usage.name().to_owned(), json!(difference)))
            .collect();
        let mut value = self.run.clone();
        let found = json!({
            "verdict": self.tested.verdict(),
            "finding": self.tested.finding(),
            "summary": super::render::summary(self),
            "rows": {
                "shared": self.shared, "compared": self.compared,
                "only_in_first": self.only_first, "only_in_this": self.only_second,
                "found_by": if self.by_content { "content" } else { "index" },
            },
            "pass_rate": self.tested.pass,
            "failures": self.tested.failures,
            "reward": self.tested.reward,
            "reward_decides": self.tested.reward_decides,
            "usage": usage,
            "fixed": self.fixed.json(run, workspace),
            "broken": self.broken.json(run, workspace),
            "failing_more": self.failing_more.json(run, workspace),
            "failing_less": self.failing_less.json(run, workspace),
            "reward_up": self.reward_up.json(run, workspace),
            "reward_down": self.reward_down.json(run, workspace),
            "differences": self.differences.iter().map(Difference::json).collect::<Vec<Value>>(),
            "cautions": self.cautions,
        });
        if let (Some(value), Value::Object(found)) = (value.as_object_mut(), found) {
            value.extend(found);
        }
        value
    }
}

/// Where the rewards of both runs lie: the smallest range that holds the ranges of both.
fn reward_range(first: &ComparedRun, second: &ComparedRun) -> Option<RewardRange> {
    let (one, other) = (first.reward_range()?, second.reward_range()?);
    RewardRange::new(one.low().min(other.low()), one.high().max(other.high())).ok()
}

fn cautions(
    first: &ComparedRun,
    second: &ComparedRun,
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
                "{lost} rollouts of `{}` failed outside the agent or were cancelled, and count for nothing; \
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
    let mut told: Vec<&str> = differences.iter().filter_map(Difference::caution).collect();
    told.dedup();
    cautions.extend(told.into_iter().map(str::to_owned));
    cautions
}
