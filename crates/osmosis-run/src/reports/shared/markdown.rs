//! The report as a comment of a pull request.

use std::fmt::Write as _;

use osmosis_core::statistics::Verdict;

use super::super::{ChangedRows, ComparedWith};
use super::SharedReport;
use super::figures;
use super::safe_text::{fenced, markdown as line};
use crate::figures::{number, thousands};

/// Groups of failures, and rollouts, that are named. A comment has 65,536 characters at most.
const MOST: usize = 5;
/// Rows of a list that are named.
const MOST_ROWS: usize = 30;

pub(super) fn text(report: &SharedReport) -> String {
    let mut out = String::new();
    let run = &report.run;
    let _ = writeln!(out, "### Evaluation `{}`\n", run.run_name);
    if run.is_incomplete() {
        let _ = writeln!(
            out,
            "> **Incomplete:** {} rollouts have no result, and {} failed for reasons outside the agent.\n",
            thousands(run.without_result()),
            thousands(run.infrastructure_failed())
        );
    }
    gates(report, &mut out);
    if let Some(comparison) = &report.comparison {
        for compared in &comparison.others {
            compare(comparison.first.run_name.as_str(), compared, &mut out);
        }
    }
    out.push_str("| | | 95% interval | |\n|---|---:|---|---|\n");
    for headline in figures::headlines(report) {
        let _ = writeln!(
            out,
            "| {} | **{}** | {} | {} |",
            headline.label,
            line(&headline.value),
            line(headline.interval.as_deref().unwrap_or("")),
            line(&headline.note)
        );
    }
    let outcomes = figures::outcomes(report).into_iter();
    let outcomes: Vec<String> = outcomes
        .map(|(name, count)| format!("{name} {}", thousands(count)))
        .collect();
    let _ = writeln!(out, "\nOutcomes: {}", outcomes.join(" · "));
    let facts = [
        ("model", report.model.as_deref()),
        ("dataset", report.dataset.as_deref()),
        ("project", report.project.as_deref()),
    ];
    let facts = facts.into_iter();
    let facts: Vec<String> = facts
        .filter_map(|(name, value)| Some(format!("{name} {}", line(value?))))
        .collect();
    let _ = writeln!(
        out,
        "\n{} · begun {}",
        facts.join(" · "),
        line(&report.created_at)
    );
    failures(report, &mut out);
    lowest(report, &mut out);
    out.push_str("\n<details><summary>What the numbers mean</summary>\n\n");
    for (name, meaning) in figures::definitions(report) {
        let _ = writeln!(out, "- **{name}**: {}", line(meaning));
    }
    out.push_str("\n</details>\n");
    out
}

fn gates(report: &SharedReport, out: &mut String) {
    let results: Vec<_> = report.run.gates.iter().flatten().collect();
    if results.is_empty() || report.run.is_incomplete() {
        return;
    }
    let word = if report.run.gates_hold() {
        "Gate passed"
    } else {
        "Gate failed"
    };
    let _ = writeln!(out, "**{word}**\n");
    for result in results {
        let word = if result.holds { "passed" } else { "failed" };
        let _ = writeln!(out, "- {word}: {}", line(&result.text()));
    }
    out.push('\n');
}

fn compare(first: &str, compared: &ComparedWith, out: &mut String) {
    let verdict = match compared.verdict {
        Verdict::Better => "Better",
        Verdict::Worse => "Worse",
        Verdict::NoDifference => "No difference",
        Verdict::Inconclusive => "Inconclusive",
    };
    let _ = writeln!(
        out,
        "**{verdict}**, compared with `{first}`: {}\n",
        line(&compared.summary)
    );
    out.push_str("| | before | now | difference (95%) | p, adjusted |\n|---|---:|---:|---|---|\n");
    for change in figures::changes(compared) {
        let cells = change.cells(line).join(" | ");
        let _ = writeln!(out, "| {cells} |");
    }
    out.push('\n');
    for (name, rows) in figures::changed_rows(compared) {
        changed(name, rows, out);
    }
    for caution in &compared.cautions {
        let _ = writeln!(out, "Note: {}\n", line(caution));
    }
}

fn changed(name: &str, rows: &ChangedRows, out: &mut String) {
    if rows.count == 0 {
        return;
    }
    let items = rows.items.iter().take(MOST_ROWS);
    let named: Vec<String> = items.map(|row| row.row_index.to_string()).collect();
    let more = if rows.count > named.len() as u64 {
        " and more"
    } else {
        ""
    };
    let _ = writeln!(
        out,
        "{} rows {name}: {}{more}\n",
        thousands(rows.count),
        named.join(", ")
    );
}

fn failures(report: &SharedReport, out: &mut String) {
    let groups = &report.run.failures;
    if groups.is_empty() {
        return;
    }
    let count: u64 = groups.iter().map(|group| group.count).sum();
    let _ = writeln!(
        out,
        "\n<details><summary>Failures: {}, of {}</summary>\n",
        thousands(count),
        match groups.len() {
            1 => "one kind".to_owned(),
            kinds => format!("{kinds} kinds"),
        }
    );
    for group in groups.iter().take(MOST) {
        let _ = writeln!(
            out,
            "{} × {}, first in {}\n\n{}\n",
            thousands(group.count),
            group.outcome.as_str().replace('_', " "),
            line(group.first.as_deref().unwrap_or("?")),
            fenced(&group.error)
        );
    }
    out.push_str("</details>\n");
}

fn lowest(report: &SharedReport, out: &mut String) {
    if report.lowest.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n<details><summary>Rollouts that did not pass: {} of {} shown</summary>\n",
        report.lowest.len().min(MOST),
        thousands(report.not_passed)
    );
    for rollout in report.lowest.iter().take(MOST) {
        let reward = match rollout.reward {
            Some(reward) => format!("reward {}", number(reward)),
            None => rollout.outcome.as_str().replace('_', " "),
        };
        let _ = writeln!(out, "**Row {}**, {reward}\n", line(&rollout.rollout));
        for (name, value) in [
            ("error", &rollout.error),
            ("prompt", &rollout.prompt),
            ("answer", &rollout.answer),
            ("ground truth", &rollout.ground_truth),
        ] {
            if let Some(value) = value {
                let _ = writeln!(out, "{name}\n\n{}\n", fenced(value));
            }
        }
    }
    out.push_str("</details>\n");
}
