//! The numbers of a run, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use osmosis_core::statistics::{RolloutFact, RunNumbers, RunTally, definition};
use osmosis_core::{Outcome, OutcomeKind, RunName};
use osmosis_store::{JudgeSummary, RolloutPages, RolloutRecord, Store};
use owo_colors::Style;
use serde_json::{Value, json};

use crate::command_line;
use crate::error::CliError;
use crate::figures::{duration_text, interval, ms_text, number, percent, thousands};
use crate::output::paint;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, RegradedFrom};
use crate::workspace::Workspace;

/// Kinds of failure that are listed, most frequent first.
const MOST_FAILURES: usize = 10;
/// A failure's text in the list is cut here.
const FAILURE_WIDTH: usize = 100;

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
}

/// Rollouts that failed alike.
#[derive(Debug)]
struct FailureGroup {
    kind: OutcomeKind,
    text: String,
    count: u64,
    /// `ROW.RUN` of the first.
    first: String,
}

impl Report {
    pub(crate) async fn of(
        store: &dyn Store,
        name: &RunName,
        folder: &RunFolder,
        resumed: bool,
        duration: impl Into<Option<Duration>>,
    ) -> Result<Self, CliError> {
        let pinned = match store.run().await? {
            Some(run) => Pinned::read(&run.pinned)?,
            None => Pinned(serde_json::Map::new()),
        };
        let mut tally = RunTally::new(runs_per_row(&pinned));
        let mut judge = JudgeSummary::default();
        let mut failures: BTreeMap<(OutcomeKind, String), FailureGroup> = BTreeMap::new();
        let mut pages = RolloutPages::finished(store);
        while let Some(page) = pages.next().await? {
            for rollout in &page {
                if let Some(outcome) = &rollout.outcome {
                    tally.add(&fact(rollout, outcome));
                    judge.add(rollout.calls.judge);
                    note_failure(&mut failures, rollout, outcome);
                }
            }
        }
        let mut failures: Vec<FailureGroup> = failures.into_values().collect();
        failures.sort_by_key(|group| std::cmp::Reverse(group.count));
        Ok(Self {
            name: name.clone(),
            output_path: folder.path.clone(),
            resumed,
            duration: duration.into(),
            total: store.counts().await?.total(),
            numbers: tally.numbers(),
            judge,
            regraded_from: RegradedFrom::of(&pinned),
            failures,
        })
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
            let failures: Vec<Value> = self
                .failures
                .iter()
                .map(|group| {
                    json!({"outcome": group.kind, "error": group.text, "count": group.count,
                           "first": group.first})
                })
                .collect();
            resource.insert("failures".to_owned(), json!(failures));
            resource.insert(
                "definitions".to_owned(),
                json!({
                    "ran": definition::RAN,
                    "pass_rate": definition::PASS_RATE,
                    "reward": definition::REWARD,
                    "ci95": definition::CI95,
                    "pass_at_k": definition::PASS_AT_K,
                    "pass_hat_k": definition::PASS_HAT_K,
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
                calls_text(
                    self.judge.calls,
                    self.judge.prompt_tokens,
                    self.judge.completion_tokens,
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
        self.render_failures(&mut text, workspace);
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
                interval(numbers.pass_rate_ci95, percent),
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
                interval(reward.ci95, number),
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
        calls_text(
            numbers.model_calls,
            numbers.prompt_tokens,
            numbers.completion_tokens,
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

    fn render_failures(&self, text: &mut String, workspace: &Workspace) {
        if self.failures.is_empty() {
            return;
        }
        let _ = writeln!(text, "\n  {}", paint("failures", Style::new().red().bold()));
        for group in self.failures.iter().take(MOST_FAILURES) {
            let name = group.kind.as_str().replace('_', " ");
            let _ = writeln!(text, "  {:>5} × {name}: {}", group.count, cut(&group.text));
            let command = command_line::suggest(
                &["eval", "show", self.name.as_str(), &group.first],
                workspace,
            );
            let _ = writeln!(text, "          {}", paint(&command, Style::new().dimmed()));
        }
        let unseen = self.failures.len().saturating_sub(MOST_FAILURES);
        if unseen > 0 {
            let _ = writeln!(text, "          and {unseen} other kinds, see index.jsonl");
        }
    }
}

/// How many rollouts each row has, from what the run is pinned to.
fn runs_per_row(pinned: &Pinned) -> u32 {
    let n = pinned.number("evaluation.n").unwrap_or(1);
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn calls_text(calls: u64, prompt_tokens: u64, completion_tokens: u64) -> String {
    format!(
        "{} calls · {} prompt + {} completion tokens",
        thousands(calls),
        thousands(prompt_tokens),
        thousands(completion_tokens)
    )
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
    }
}

fn note_failure(
    failures: &mut BTreeMap<(OutcomeKind, String), FailureGroup>,
    rollout: &RolloutRecord,
    outcome: &Outcome,
) {
    let Some(text) = outcome.explanation() else {
        return;
    };
    let kind = outcome.kind();
    failures
        .entry((kind, text.clone()))
        .or_insert_with(|| FailureGroup {
            kind,
            text,
            count: 0,
            first: format!("{}.{}", rollout.row_index, rollout.run_index),
        })
        .count += 1;
}

fn cut(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= FAILURE_WIDTH {
        return line.to_owned();
    }
    let start: String = line.chars().take(FAILURE_WIDTH).collect();
    format!("{start}…")
}

fn shares(by_k: &BTreeMap<u32, Option<f64>>, label: &str) -> String {
    let shown: Vec<String> = by_k
        .iter()
        // The first, the powers of two and the last tell the curve.
        .filter(|(k, _)| k.is_power_of_two() || by_k.keys().next_back() == Some(k))
        .filter_map(|(k, share)| share.map(|share| format!("{label}{k} {}", percent(share))))
        .collect();
    shown.join(" · ")
}
