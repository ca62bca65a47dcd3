//! The numbers of a run, for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use osmosis_core::OutcomeKind;
use osmosis_core::statistics::Interval;
use osmosis_run::reports::RunReport;
use osmosis_run::withheld::{IN_CONFIG, Withheld};
use owo_colors::Style;

use super::failures;
use super::prices::dollars_text;
use crate::command_line;
use crate::figures::{duration_text, interval, ms_text, number, percent, thousands};
use crate::output::paint;
use crate::workspace::Workspace;

pub(crate) fn render(report: &RunReport, workspace: &Workspace) -> String {
    let numbers = &report.numbers;
    let mut text = String::new();
    let name = report.run_name.as_str();
    let _ = writeln!(text, "\n{}", paint(name, Style::new().bold()));
    let mut row = |label: &str, value: String| {
        let label = paint(&format!("{label:<11}"), Style::new().cyan());
        let _ = writeln!(text, "  {label} {value}");
    };
    row("pass rate", pass_rate(report));
    row("reward", reward(report));
    if numbers.pass_at_k.len() > 1 {
        row("pass@k", shares(&numbers.pass_at_k, "pass@"));
        row("pass^k", shares(&numbers.pass_hat_k, "pass^"));
    }
    row("outcomes", outcomes(report));
    row("model", model_calls(report));
    if report.judge.calls > 0 {
        row(
            "judge",
            format!(
                "{} calls · {} prompt + {} completion tokens",
                thousands(report.judge.calls),
                thousands(report.judge.prompt_tokens),
                thousands(report.judge.completion_tokens),
            ),
        );
    }
    if let Some(cost) = &report.cost {
        row(
            "cost",
            cost.total.map_or_else(
                || "unknown: the model server does not tell its tokens".to_owned(),
                |total| format!("{} for the calls of all attempts", dollars_text(total)),
            ),
        );
    }
    row("time", times(report));
    if let Some(count @ 1..) = numbers.without_model_calls {
        row("note", format!("{count} rollouts never called the model"));
    }
    let withheld = report.withheld_variables.clone().map(Withheld);
    if let Some(text) = withheld.and_then(|names| names.text(IN_CONFIG)) {
        row("withheld", text);
    }
    failures::render(&mut text, report, workspace);
    render_definitions(report, &mut text);
    let _ = writeln!(text, "\n  files       {}", report.output_path);
    let _ = write!(
        text,
        "  one rollout {}",
        command_line::suggest(&["eval", "show", name, "ROW"], workspace)
    );
    text
}

fn pass_rate(report: &RunReport) -> String {
    let numbers = &report.numbers;
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

fn reward(report: &RunReport) -> String {
    let reward = &report.numbers.reward;
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

fn model_calls(report: &RunReport) -> String {
    if let Some(calls_in) = &report.policy_calls_in {
        return format!("not asked: the calls are those of `{calls_in}`");
    }
    let numbers = &report.numbers;
    format!(
        "{} calls · {} prompt{} + {} completion{} tokens",
        thousands(numbers.model_calls),
        thousands(numbers.prompt_tokens),
        part(numbers.cached_tokens, "cached"),
        thousands(numbers.completion_tokens),
        part(numbers.reasoning_tokens, "reasoning"),
    )
}

fn outcomes(report: &RunReport) -> String {
    let counts = &report.numbers.outcomes;
    let mut parts: Vec<String> = OutcomeKind::ALL
        .into_iter()
        .filter(|kind| counts.get(*kind) > 0)
        .map(|kind| {
            let name = kind.as_str().replace('_', " ");
            format!("{name} {}", counts.get(kind))
        })
        .collect();
    let left = report.without_result();
    if left > 0 {
        parts.push(format!("not run yet {left}"));
    }
    parts.join(" · ")
}

fn times(report: &RunReport) -> String {
    let phases = &report.numbers.durations;
    let mut text = match report.duration_ms.filter(|_| !report.already_complete) {
        Some(ms) => format!("{} · ", duration_text(ms as f64 / 1000.0)),
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
    let ran = report.regraded_from.is_none();
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
fn render_definitions(report: &RunReport, text: &mut String) {
    let dim = Style::new().dimmed();
    let numbers = &report.numbers;
    let mut lines = vec![
        "ran: scored, agent failed, timed out, ungraded or rejected; the rest is listed apart"
            .to_owned(),
        "reward: over scored rollouts, the mean of a rollout's kept samples".to_owned(),
    ];
    if numbers.pass_at_k.len() > 1 {
        lines.push(format!(
            "pass@k, pass^k: one of k passes, all of k pass; unbiased, over {} rows",
            numbers.pass_k_rows.values().max().copied().unwrap_or(0)
        ));
    }
    lines.push("[low, high]: 95% interval; the rollouts of a row count as one".to_owned());
    let _ = writeln!(text);
    for line in lines {
        let _ = writeln!(text, "  {}", paint(&line, dim));
    }
}

/// ` (400 cached)`, when it is known.
fn part(tokens: Option<u64>, of: &str) -> String {
    tokens.map_or_else(String::new, |tokens| {
        format!(" ({} {of})", thousands(tokens))
    })
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
