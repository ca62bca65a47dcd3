//! The numbers of a run, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use osmosis_core::failure_groups::{FailureGroup, FailureGroups};
use osmosis_core::statistics::{Interval, RolloutFact, RunNumbers, RunTally, definition};
use osmosis_core::{Outcome, OutcomeKind, RunName};
use osmosis_run::RunError;
use osmosis_store::{JudgeSummary, RolloutPages, RolloutRecord, Store};
use owo_colors::Style;
use serde_json::{Value, json};

use super::failures::{self, RunAgain};
use super::prices::{Cost, dollars_text};
use crate::command_line;
use crate::figures::{duration_text, interval, ms_text, number, percent, thousands};
use crate::output::paint;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, RegradedFrom};
use crate::withheld::{IN_CONFIG, Withheld};
use crate::workspace::Workspace;

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Report {
    name: RunName,
    output_path: camino::Utf8PathBuf,
    resumed: bool,
    /// How long this process ran it; `None` when it only looks.
    duration: Option<Duration>,
    total: u64,
    numbers: RunNumbers,
    judge: JudgeSummary,
    regraded_from: Option<RegradedFrom>,
    failures: Vec<FailureGroup>,
    again: RunAgain,
    workspace: Workspace,
    cost: Option<Cost>,
    /// `None` when this process only looks, or user code is elsewhere.
    withheld: Option<Withheld>,
}

impl Report {
    pub(crate) async fn of(
        store: &dyn Store,
        name: &RunName,
        folder: &RunFolder,
        resumed: bool,
        duration: impl Into<Option<Duration>>,
    ) -> Result<Self, RunError> {
        let pinned = pinned(store).await?;
        let mut tally = RunTally::new(runs_per_row(&pinned)).within(pinned.reward_range());
        let mut judge = JudgeSummary::default();
        let mut failures = FailureGroups::default();
        let mut pages = RolloutPages::finished(store);
        while let Some(page) = pages.next().await? {
            for rollout in &page {
                if let Some(outcome) = &rollout.outcome {
                    tally.add(&fact(rollout, outcome));
                    judge.add(rollout.calls.judge);
                    failures.add(rollout.row_index, rollout.run_index, outcome);
                }
            }
        }
        let again = RunAgain::of(name, &pinned);
        Ok(Self {
            name: name.clone(),
            output_path: folder.path.clone(),
            resumed,
            duration: duration.into(),
            total: store.counts().await?.total(),
            numbers: tally.numbers(),
            judge,
            regraded_from: pinned.regraded_from,
            failures: failures.into_sorted(),
            again,
            workspace: folder.workspace(),
            cost: None,
            withheld: None,
        })
    }

    /// The same with the names of the variables that user code did not get.
    pub(crate) fn with_withheld(self, withheld: Option<&Withheld>) -> Self {
        Self {
            withheld: withheld.cloned(),
            ..self
        }
    }

    /// The same with what it cost.
    pub(crate) fn with_cost(self, cost: Option<Cost>) -> Self {
        Self { cost, ..self }
    }

    /// In US dollars, when it is known.
    pub(crate) fn cost(&self) -> Option<f64> {
        self.cost.as_ref().and_then(Cost::total)
    }

    /// Rollouts without a result, and those that failed for reasons outside the agent.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.infrastructure_failed() > 0 || self.total > self.numbers.outcomes.total()
    }

    pub(crate) fn infrastructure_failed(&self) -> u64 {
        self.numbers.outcomes.infrastructure_failed
    }

    /// The `resource` of `eval submit --json`, and `metrics.json`.
    pub(crate) fn json(&self) -> Value {
        let mut resource = json!({
            "run_name": self.name,
            "output_path": self.output_path,
            "total_rollouts": self.total,
        });
        let numbers = serde_json::to_value(&self.numbers).unwrap_or_default();
        if let (Value::Object(resource), Value::Object(numbers)) = (&mut resource, numbers) {
            resource.extend(numbers);
            resource.insert("resumed".to_owned(), json!(self.resumed));
            resource.insert("cost".to_owned(), json!(self.cost.map(Cost::to_json)));
            resource.insert("judge".to_owned(), json!(self.judge));
            if let Some(from) = &self.regraded_from {
                resource.insert("regraded_from".to_owned(), json!(from.run));
                resource.insert("policy_calls_in".to_owned(), json!(from.calls_in));
                // The policy was asked elsewhere.
                resource.insert("without_model_calls".to_owned(), Value::Null);
            }
            if let Some(duration) = self.duration {
                let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
                resource.insert("duration_ms".to_owned(), json!(ms));
            }
            if let Some(Withheld(names)) = &self.withheld {
                resource.insert("withheld_variables".to_owned(), json!(names));
            }
            let failures: Vec<Value> = self
                .failures
                .iter()
                .map(|group| failures::json_of(group, &self.again, &self.workspace))
                .collect();
            resource.insert("failures".to_owned(), json!(failures));
            resource.insert(
                "definitions".to_owned(),
                json!({
                    "ran": definition::RAN,
                    "pass_rate": definition::PASS_RATE,
                    "reward": definition::REWARD,
                    "ci95": definition::CI95,
                    "ci95_bootstrap": definition::CI95_BOOTSTRAP,
                    "pass_at_k": definition::PASS_AT_K,
                    "pass_hat_k": definition::PASS_HAT_K,
                    "calls": definition::CALLS,
                    "without_model_calls": definition::WITHOUT_MODEL_CALLS,
                    "durations": definition::DURATIONS,
                }),
            );
        }
        resource
    }

    pub(crate) fn render(&self, workspace: &Workspace) -> String {
        let numbers = &self.numbers;
        let mut text = String::new();
        let _ = writeln!(text, "\n{}", paint(self.name.as_str(), Style::new().bold()));
        let mut row = |label: &str, value: String| {
            let label = paint(&format!("{label:<11}"), Style::new().cyan());
            let _ = writeln!(text, "  {label} {value}");
        };
        row("pass rate", self.pass_rate());
        row("reward", self.reward());
        if numbers.pass_at_k.len() > 1 {
            row("pass@k", shares(&numbers.pass_at_k, "pass@"));
            row("pass^k", shares(&numbers.pass_hat_k, "pass^"));
        }
        row("outcomes", self.outcomes());
        row("model", self.model_calls());
        if self.judge.calls > 0 {
            row(
                "judge",
                format!(
                    "{} calls · {} prompt + {} completion tokens",
                    thousands(self.judge.calls),
                    thousands(self.judge.prompt_tokens),
                    thousands(self.judge.completion_tokens),
                ),
            );
        }
        if let Some(cost) = &self.cost {
            row(
                "cost",
                cost.total().map_or_else(
                    || "unknown: the model server does not tell its tokens".to_owned(),
                    |total| format!("{} for the calls of all attempts", dollars_text(total)),
                ),
            );
        }
        row("time", self.times());
        if numbers.without_model_calls > 0 && self.regraded_from.is_none() {
            row(
                "note",
                format!(
                    "{} rollouts never called the model",
                    numbers.without_model_calls
                ),
            );
        }
        if let Some(text) = self.withheld.as_ref().and_then(|it| it.text(IN_CONFIG)) {
            row("withheld", text);
        }
        failures::render(&mut text, &self.failures, &self.again, workspace);
        self.render_definitions(&mut text);
        let _ = writeln!(text, "\n  files       {}", self.output_path);
        let _ = write!(
            text,
            "  one rollout {}",
            command_line::suggest(&["eval", "show", self.name.as_str(), "ROW"], workspace)
        );
        text
    }

    fn pass_rate(&self) -> String {
        let numbers = &self.numbers;
        match numbers.pass_rate {
            None => "none: no rollout ran".to_owned(),
            Some(rate) => format!(
                "{}{}   {} passed of {} that ran",
                percent(rate),
                interval_of(numbers.pass_rate_ci95, numbers.rows, percent),
                numbers.passed,
                numbers.ran
            ),
        }
    }

    fn reward(&self) -> String {
        let reward = &self.numbers.reward;
        match reward.mean {
            None => "none: nothing was scored".to_owned(),
            Some(mean) => format!(
                "mean {}{}   min {} · median {} · max {} over {} scored",
                number(mean),
                interval_of(reward.ci95, reward.rows, number),
                number(reward.min.unwrap_or(mean)),
                number(reward.median.unwrap_or(mean)),
                number(reward.max.unwrap_or(mean)),
                reward.count
            ),
        }
    }

    fn model_calls(&self) -> String {
        if let Some(from) = &self.regraded_from {
            return format!("not asked: the calls are those of `{}`", from.calls_in);
        }
        let numbers = &self.numbers;
        format!(
            "{} calls · {} prompt{} + {} completion{} tokens",
            thousands(numbers.model_calls),
            thousands(numbers.prompt_tokens),
            part(numbers.cached_tokens, "cached"),
            thousands(numbers.completion_tokens),
            part(numbers.reasoning_tokens, "reasoning"),
        )
    }

    fn outcomes(&self) -> String {
        let mut parts: Vec<String> = OutcomeKind::ALL
            .into_iter()
            .filter(|kind| self.numbers.outcomes.get(*kind) > 0)
            .map(|kind| {
                let name = kind.as_str().replace('_', " ");
                format!("{name} {}", self.numbers.outcomes.get(kind))
            })
            .collect();
        let left = self.total - self.numbers.outcomes.total();
        if left > 0 {
            parts.push(format!("not run yet {left}"));
        }
        parts.join(" · ")
    }

    fn times(&self) -> String {
        let phases = &self.numbers.durations;
        let mut text = match self.duration {
            Some(duration) => format!("{} · ", duration_text(duration.as_secs_f64())),
            None => String::new(),
        };
        let phase = |name: &str, numbers: &osmosis_core::statistics::DurationNumbers| {
            numbers.p50.map(|p50| {
                format!(
                    "{name} {} (p90 {})",
                    ms_text(p50),
                    ms_text(numbers.p90.unwrap_or(p50))
                )
            })
        };
        let ran = self.regraded_from.is_none();
        let parts: Vec<String> = [
            phase("queue", &phases.queue),
            phase("agent", &phases.agent).filter(|_| ran),
            phase("model", &phases.model).filter(|_| ran),
            phase("grade", &phases.grade),
        ]
        .into_iter()
        .flatten()
        .collect();
        text.push_str(&parts.join(" · "));
        text
    }

    /// What the numbers count, beside them.
    fn render_definitions(&self, text: &mut String) {
        let dim = Style::new().dimmed();
        let mut lines = vec![
            "ran: scored, agent failed, timed out, ungraded or rejected; the rest is listed apart"
                .to_owned(),
            "reward: over scored rollouts, the mean of a rollout's kept samples".to_owned(),
        ];
        if self.numbers.pass_at_k.len() > 1 {
            lines.push(format!(
                "pass@k, pass^k: one of k passes, all of k pass; unbiased, over {} rows",
                self.numbers
                    .pass_k_rows
                    .values()
                    .max()
                    .copied()
                    .unwrap_or(0)
            ));
        }
        lines.push("[low, high]: 95% interval; the rollouts of a row count as one".to_owned());
        let _ = writeln!(text);
        for line in lines {
            let _ = writeln!(text, "  {}", paint(&line, dim));
        }
    }
}

/// ` (400 cached)`, when it is known.
fn part(tokens: Option<u64>, of: &str) -> String {
    tokens.map_or_else(String::new, |tokens| {
        format!(" ({} {of})", thousands(tokens))
    })
}

async fn pinned(store: &dyn Store) -> Result<Pinned, RunError> {
    match store.run().await? {
        Some(run) => Pinned::read(&run.pinned),
        None => Ok(Pinned::default()),
    }
}

/// How many rollouts each row has, from what the run is pinned to.
fn runs_per_row(pinned: &Pinned) -> u32 {
    pinned.rollouts_per_row().unwrap_or(1)
}

fn fact(rollout: &RolloutRecord, outcome: &Outcome) -> RolloutFact {
    RolloutFact {
        row_index: rollout.row_index,
        run_index: rollout.run_index,
        kind: outcome.kind(),
        reward: outcome.reward(),
        passed: outcome.passed(),
        durations: rollout.durations,
        model_calls: rollout.calls.model_calls,
        prompt_tokens: rollout.calls.prompt_tokens,
        completion_tokens: rollout.calls.completion_tokens,
        cached_tokens: rollout.calls.cached_tokens,
        reasoning_tokens: rollout.calls.reasoning_tokens,
    }
}

/// The interval; where there is none, why: nothing is certain because all rows agree.
fn interval_of(found: Option<Interval>, rows: u64, show: fn(f64) -> String) -> String {
    match (found, rows) {
        (Some(_), _) => interval(found, show),
        (None, 0 | 1) => " (one row: no interval)".to_owned(),
        (None, _) => format!(" (all {rows} rows agree: no interval)"),
    }
}

fn shares(by_k: &BTreeMap<u32, Option<f64>>, label: &str) -> String {
    let shown: Vec<String> = by_k
        .iter()
        // Of many, the first, the powers of two and the last tell the curve.
        .filter(|(k, _)| {
            by_k.len() <= 8 || k.is_power_of_two() || by_k.keys().next_back() == Some(k)
        })
        .filter_map(|(k, share)| share.map(|share| format!("{label}{k} {}", percent(share))))
        .collect();
    shown.join(" · ")
}
