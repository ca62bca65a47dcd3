//! A comparison for people.

use std::collections::BTreeSet;
use std::fmt::Write;

use osmosis_core::statistics::{Comparison, Endpoint, PairedDifference, PairedTest, Verdict};
use osmosis_core::{OutcomeKind, RunName};
use osmosis_run::reports::{
    ChangedRow, ChangedRows, ComparedWith, Difference, RowSide, failed_counts, p_text, points,
    signed, signed_one,
};
use owo_colors::Style;
use serde_json::{Map, Value};

use crate::figures::{ms_text, number, percent};
use crate::output::paint;

/// How a number is written.
type NumberText = fn(f64) -> String;

/// Rows that are named in each list.
const MOST_ROWS: usize = 10;
/// Longest value of a difference that is shown in a line.
const VALUE_WIDTH: usize = 60;

pub(super) const DEFINITIONS: &str = "
  Rows are compared with themselves: the rollouts of a row in one run with its rollouts in the other.
  pass rate: passed / all that ran · failures: ran without being scored · reward: over scored rollouts
  [low, high]: 95% interval by row · p: chance of a difference at least as large if there were none, adjusted for
  the number of tests";

pub(super) fn text(first: &RunName, compared: &ComparedWith) -> String {
    let mut text = String::new();
    let bold = Style::new().bold();
    let title = format!("{first} → {}", compared.run.run_name);
    let _ = writeln!(text, "\n{}", paint(&title, bold));
    let mut row = |label: &str, value: &str| {
        let label = paint(&format!("{label:<11}"), Style::new().cyan());
        let _ = writeln!(text, "  {label} {value}");
    };
    row("rows", &rows(first, compared));
    match &compared.pass_rate {
        None => row("pass rate", "nothing to compare: no row ran in both"),
        Some(pass) => row("pass rate", &share_line(pass)),
    }
    row("failures", &failures_line(compared));
    let kinds = kinds_line(compared);
    if !kinds.is_empty() {
        row("", &kinds);
    }
    match &compared.reward {
        None => row("reward", "nothing to compare: no row was scored in both"),
        Some(reward) => row("reward", &reward_line(reward, compared.reward_decides)),
    }
    let usage = &compared.usage;
    let shown: [(_, &str, &str, NumberText); 4] = [
        (&usage.model_calls, "model calls", "", number),
        (&usage.prompt_tokens, "prompt", " tokens", one_decimal),
        (
            &usage.completion_tokens,
            "completion",
            " tokens",
            one_decimal,
        ),
        (&usage.agent_ms, "agent time", "", ms_text),
    ];
    for (difference, label, unit, show) in shown {
        if let Some(difference) = difference {
            row(label, &usage_line(difference, unit, show));
        }
    }
    for (place, difference) in compared.differences.iter().enumerate() {
        let label = if place == 0 { "differs" } else { "" };
        row(label, &difference_line(difference));
    }
    for caution in &compared.cautions {
        let label = paint("note       ", Style::new().yellow());
        let _ = writeln!(text, "  {label} {caution}");
    }
    let style = match compared.verdict {
        Verdict::Better => bold.green(),
        Verdict::Worse => bold.red(),
        Verdict::NoDifference => bold,
        Verdict::Inconclusive => bold.yellow(),
    };
    let _ = writeln!(text, "\n  {}", paint(&compared.summary, style));
    let mut list = |name: &str, said: &str, changed: &ChangedRows, line: fn(&RowSide) -> String| {
        push_rows(&mut text, name, said, changed, |row| {
            let change = format!("{} → {}", line(&row.first), line(&row.second));
            format!("{change:<16} {}", row.show)
        });
    };
    list("fixed", "pass more often", &compared.fixed, passes);
    list("broken", "pass less often", &compared.broken, passes);
    list(
        "fails more",
        "fail more often",
        &compared.failing_more,
        failures,
    );
    list(
        "fails less",
        "fail less often",
        &compared.failing_less,
        failures,
    );
    list(
        "higher",
        "same passes, higher reward",
        &compared.reward_up,
        mean,
    );
    list(
        "lower",
        "same passes, lower reward",
        &compared.reward_down,
        mean,
    );
    text.trim_end().to_owned()
}

/// The failures of both runs, also when there are none.
fn failures_line(compared: &ComparedWith) -> String {
    let counts = failed_counts(compared);
    match &compared.failures {
        Some(failures) if !failures.comparison.is_same() => {
            let difference = failures.comparison.difference.difference;
            format!(
                "{counts}   {}{}   {}",
                points(difference),
                interval(&failures.comparison, |share| signed_one(100.0 * share)),
                tested_by(failures)
            )
        }
        Some(_) | None => counts,
    }
}

/// What kinds of failures they are, and what failed outside the agent.
fn kinds_line(compared: &ComparedWith) -> String {
    let (first, second) = &compared.shared_outcomes;
    let kinds: Vec<String> = OutcomeKind::ALL
        .into_iter()
        .filter(|kind| *kind != OutcomeKind::Scored && first.get(*kind) + second.get(*kind) > 0)
        .map(|kind| {
            let name = kind.as_str().replace('_', " ");
            let apart = if kind.ran() { "" } else { " (in no rate)" };
            format!("{name} {} → {}{apart}", first.get(kind), second.get(kind))
        })
        .collect();
    kinds.join(" · ")
}

fn rows(first: &RunName, compared: &ComparedWith) -> String {
    let rows = &compared.rows;
    let mut text = format!("{} compared", rows.compared);
    if rows.compared < rows.shared {
        let _ = write!(
            text,
            " · {} without a rollout that ran in both",
            rows.shared - rows.compared
        );
    }
    for (count, run) in [
        (rows.only_in_first, first),
        (rows.only_in_this, &compared.run.run_name),
    ] {
        if count > 0 {
            let _ = write!(text, " · {count} only in {run}");
        }
    }
    text
}

/// Of what has parts, a model's identity for example, the parts that differ.
fn difference_line(difference: &Difference) -> String {
    let (first, second) = (&difference.first, &difference.second);
    let (Value::Object(before), Value::Object(now)) = (first, second) else {
        return format!("{}: {} → {}", difference.fact, short(first), short(second));
    };
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let parts = names.into_iter().filter_map(|name| {
        let side = |side: &Map<String, Value>| side.get(name).cloned().unwrap_or_default();
        let (old, new) = (side(before), side(now));
        (old != new).then(|| format!("{name} {} → {}", short(&old), short(&new)))
    });
    format!(
        "{}: {}",
        difference.fact,
        parts.collect::<Vec<_>>().join(", ")
    )
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let width = if is_digest { 12 } else { VALUE_WIDTH };
    if text.chars().count() <= width {
        return text;
    }
    let start: String = text.chars().take(width).collect();
    format!("{start}…")
}

fn share_line(share: &Endpoint) -> String {
    let difference = &share.comparison.difference;
    format!(
        "{} → {}   {}{}   {}",
        percent(difference.first),
        percent(difference.second),
        points(difference.difference),
        interval(&share.comparison, |share| signed_one(100.0 * share)),
        tested_by(share)
    )
}

fn reward_line(reward: &Endpoint, decides: bool) -> String {
    let difference = &reward.comparison.difference;
    let over = if decides {
        "scored in both"
    } else {
        "with scored rollouts in both, which are not the same rollouts: not part of the verdict"
    };
    format!(
        "{} → {}   {}{}   {} over {} {over}",
        number(difference.first),
        number(difference.second),
        signed(difference.difference),
        interval(&reward.comparison, signed),
        tested_by(reward),
        rows_text(difference.rows)
    )
}

/// The p value and where it comes from.
fn tested_by(endpoint: &Endpoint) -> String {
    match endpoint.p_adjusted {
        Some(_) => format!(
            "{} ({})",
            p_text(endpoint.p_adjusted.unwrap_or(endpoint.comparison.p)),
            test_text(endpoint.comparison.test)
        ),
        None => "not tested apart from the pass rate".to_owned(),
    }
}

fn usage_line(difference: &PairedDifference, unit: &str, show: fn(f64) -> String) -> String {
    let (first, second) = (show(difference.first), show(difference.second));
    let mut text = format!("{first} → {second}{unit} per rollout");
    if difference.difference.abs() < 1e-9 {
        text.push_str("   same");
    } else if difference.first > 0.0 {
        let share = |value: f64| signed_one(100.0 * value / difference.first);
        let _ = write!(text, "   {}%", share(difference.difference));
        if let Some(interval) = difference.ci95 {
            let _ = write!(text, " [{}, {}]", share(interval.low), share(interval.high));
        }
    }
    text
}

fn push_rows(
    text: &mut String,
    name: &str,
    said: &str,
    changed: &ChangedRows,
    line: impl Fn(&ChangedRow) -> String,
) {
    if changed.count == 0 {
        return;
    }
    let label = paint(&format!("{name:<11}"), Style::new().bold());
    let _ = writeln!(text, "\n  {label} {}: {said}", rows_text(changed.count));
    for row in changed.items.iter().take(MOST_ROWS) {
        let _ = writeln!(text, "    row {:<7} {}", row.row_index, line(row));
    }
    if changed.count > MOST_ROWS as u64
        && let Some(rows) = &changed.rows
    {
        let all = if rows.len() > 200 {
            "`--json` names them all".to_owned()
        } else {
            format!("all: {rows}")
        };
        let _ = writeln!(
            text,
            "    and {} more; {all}",
            changed.count - MOST_ROWS as u64
        );
    }
}

fn rows_text(count: u64) -> String {
    format!("{count} {}", if count == 1 { "row" } else { "rows" })
}

fn passes(row: &RowSide) -> String {
    format!("{}/{}", row.passed, row.ran)
}

fn failures(row: &RowSide) -> String {
    format!("{}/{}", row.failed, row.ran)
}

fn mean(row: &RowSide) -> String {
    row.reward.map_or_else(|| "none".to_owned(), number)
}

fn one_decimal(count: f64) -> String {
    format!("{count:.1}")
}

fn test_text(test: PairedTest) -> &'static str {
    match test {
        PairedTest::McnemarExact => "McNemar, exact",
        PairedTest::SignFlipExact => "sign flips by row, exact",
        PairedTest::SignFlip => "sign flips by row",
        PairedTest::Permutation => "permutations by row",
    }
}

/// The interval, or why there is none where something changed.
fn interval(comparison: &Comparison, show: fn(f64) -> String) -> String {
    match comparison.difference {
        PairedDifference { ci95: Some(i), .. } => format!(" [{}, {}]", show(i.low), show(i.high)),
        PairedDifference { rows: 1, .. } => " (one row: no interval)".to_owned(),
        _ if comparison.is_same() => String::new(),
        _ => " (all rows differ alike: no interval)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_that_is_missing_is_no_certainty() {
        use osmosis_core::statistics::RowValues;
        let pair = |first: f64, second: f64| RowValues {
            first: vec![first / 2.0; 2],
            second: vec![second / 2.0; 2],
        };
        let told = |rows: &[RowValues]| interval(&Comparison::of_shares(rows).unwrap(), signed);
        assert_eq!(told(&[pair(0.0, 2.0)]), " (one row: no interval)");
        assert_eq!(
            told(&[pair(0.0, 2.0), pair(0.0, 2.0)]),
            " (all rows differ alike: no interval)"
        );
        assert_eq!(told(&[pair(1.0, 1.0), pair(2.0, 2.0)]), "");
        assert!(told(&[pair(0.0, 2.0), pair(1.0, 2.0)]).starts_with(" ["));
    }

    #[test]
    fn long_values_and_digests_are_cut() {
        let difference = |first: Value, second: Value| {
            difference_line(&Difference {
                fact: "f".to_owned(),
                first,
                second,
                caution: None,
            })
        };
        assert_eq!(difference(1.into(), Value::Null), "f: 1 → none");
        assert_eq!(
            difference("a".into(), "0".repeat(64).into()),
            "f: a → 000000000000…"
        );
    }

    #[test]
    fn of_a_models_identity_only_the_parts_that_differ_are_told() {
        let identity =
            |digest: &str| serde_json::json!({"script_sha256": digest.repeat(64), "seed": 0});
        let difference = Difference {
            fact: "model".to_owned(),
            first: identity("a"),
            second: identity("b"),
            caution: None,
        };
        assert_eq!(
            difference_line(&difference),
            "model: script_sha256 aaaaaaaaaaaa… → bbbbbbbbbbbb…"
        );
    }
}
