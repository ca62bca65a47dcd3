//! A comparison for people.

use std::fmt::Write;

use osmosis_core::OutcomeKind;
use osmosis_core::statistics::{
    Comparison, Endpoint, Finding, PairedDifference, PairedTest, Verdict,
};
use owo_colors::Style;

use super::changed_rows::{ChangedRows, show};
use super::findings::{Findings, LEAST_CHANGED, Usage};
use super::run_rows::RowResult;
use crate::figures::{ms_text, number, percent};
use crate::output::paint;
use crate::workspace::Workspace;

/// Rows that are named in each list.
const MOST_ROWS: usize = 10;

pub(super) const DEFINITIONS: &str = "
  Rows are compared with themselves: the rollouts of a row in one run with its rollouts in the other.
  pass rate: passed / all that ran · failures: ran without being scored · reward: over scored rollouts
  [low, high]: 95% interval by row · p: chance of a difference at least as large if there were none, adjusted for
  the number of tests";

pub(super) fn text(findings: &Findings, workspace: &Workspace) -> String {
    let mut text = String::new();
    let bold = Style::new().bold();
    let title = format!("{} → {}", findings.first, findings.second);
    let _ = writeln!(text, "\n{}", paint(&title, bold));
    let mut row = |label: &str, value: &str| {
        let label = paint(&format!("{label:<11}"), Style::new().cyan());
        let _ = writeln!(text, "  {label} {value}");
    };
    row("rows", &rows(findings));
    let tested = &findings.tested;
    match &tested.pass {
        None => row("pass rate", "nothing to compare: no row ran in both"),
        Some(pass) => row("pass rate", &share_line(pass)),
    }
    row("failures", &failures_line(findings));
    let kinds = kinds_line(findings);
    if !kinds.is_empty() {
        row("", &kinds);
    }
    match &tested.reward {
        None => row("reward", "nothing to compare: no row was scored in both"),
        Some(reward) => row("reward", &reward_line(reward, tested.reward_decides)),
    }
    for (usage, difference) in &findings.usage {
        let (label, unit, show): (&str, &str, fn(f64) -> String) = match usage {
            Usage::ModelCalls => ("model calls", "", number),
            Usage::PromptTokens => ("prompt", " tokens", one_decimal),
            Usage::CompletionTokens => ("completion", " tokens", one_decimal),
            Usage::AgentTime => ("agent time", "", ms_text),
        };
        row(label, &usage_line(difference, unit, show));
    }
    for (place, difference) in findings.differences.iter().enumerate() {
        row(if place == 0 { "differs" } else { "" }, &difference.line());
    }
    for caution in &findings.cautions {
        let label = paint("note       ", Style::new().yellow());
        let _ = writeln!(text, "  {label} {caution}");
    }
    let style = match tested.verdict() {
        Verdict::Better => bold.green(),
        Verdict::Worse => bold.red(),
        Verdict::NoDifference => bold,
        Verdict::Inconclusive => bold.yellow(),
    };
    let _ = writeln!(text, "\n  {}", paint(&summary(findings), style));
    let second = findings.second.as_str();
    let mut list =
        |name: &str, said: &str, changed: &ChangedRows, line: fn(&RowResult) -> String| {
            push_rows(&mut text, name, said, changed, |(one, other)| {
                let change = format!("{} → {}", line(one), line(other));
                format!("{change:<16} {}", show(second, other.row_index, workspace))
            });
        };
    list("fixed", "pass more often", &findings.fixed, passes);
    list("broken", "pass less often", &findings.broken, passes);
    list(
        "fails more",
        "fail more often",
        &findings.failing_more,
        failures,
    );
    list(
        "fails less",
        "fail less often",
        &findings.failing_less,
        failures,
    );
    list(
        "higher",
        "same passes, higher reward",
        &findings.reward_up,
        mean,
    );
    list(
        "lower",
        "same passes, lower reward",
        &findings.reward_down,
        mean,
    );
    text.trim_end().to_owned()
}

/// The answer in a sentence or two.
pub(super) fn summary(findings: &Findings) -> String {
    let second = &findings.second;
    let evidence = || evidence(findings);
    match findings.tested.finding() {
        Finding::NothingToCompare => {
            "Inconclusive: nothing to compare, no row ran in both runs.".to_owned()
        }
        Finding::Identical => format!(
            "No difference: all {} compared rows have the same passes and rewards. (A change in up to {} of \
             rows could go unseen with so many.)",
            findings.compared,
            percent(findings.unseen_share())
        ),
        Finding::NoDifference => {
            let mut text = format!("No difference that these rows can tell: {}.", evidence());
            if let Some(changed) = findings.too_few_changed() {
                let _ = write!(
                    text,
                    " ({} changed; fewer than {LEAST_CHANGED} can always be chance.)",
                    rows_text(changed)
                );
            }
            text
        }
        Finding::Better => format!(
            "`{second}` is better: {}.{}",
            evidence(),
            and_fails(findings)
        ),
        Finding::Worse => format!(
            "`{second}` is worse: {}.{}",
            evidence(),
            and_fails(findings)
        ),
        Finding::Mixed => format!(
            "Inconclusive: `{second}` moved in opposite directions: {}.",
            evidence()
        ),
        Finding::FailuresDiffer => format!(
            "Inconclusive: {}, and the pass rates differ by no more than chance: {}.{}",
            fails(findings).unwrap_or_default(),
            evidence(),
            survivors(findings)
        ),
        Finding::RewardNotComparable => format!(
            "Inconclusive: the rewards differ, but not the same rollouts were scored in both runs, and the pass \
             rates differ by no more than chance: {}.{}",
            evidence(),
            survivors(findings)
        ),
    }
}

/// The numbers that can decide.
fn evidence(findings: &Findings) -> String {
    let tested = &findings.tested;
    let mut parts = vec![];
    if let Some(pass) = &tested.pass {
        let difference = pass.comparison.difference.difference;
        parts.push(format!("pass rate {} ({})", points(difference), p_of(pass)));
    }
    if let (Some(reward), true) = (&tested.reward, tested.reward_decides) {
        let difference = reward.comparison.difference.difference;
        parts.push(format!("reward {} ({})", signed(difference), p_of(reward)));
    }
    parts.join(", ")
}

/// Which run fails more often, where that is no chance.
fn fails(findings: &Findings) -> Option<String> {
    let failures = findings.tested.failures.as_ref()?;
    let word = match (failures.is_up(), failures.is_down()) {
        (true, _) => "more",
        (_, true) => "less",
        (false, false) => return None,
    };
    Some(format!(
        "`{}` fails {word} often, {} ({})",
        findings.second,
        failed_counts(findings),
        p_of(failures)
    ))
}

fn and_fails(findings: &Findings) -> String {
    fails(findings).map_or_else(String::new, |fails| format!(" But {fails}."))
}

/// What a difference in reward is worth when not the same rollouts were scored.
fn survivors(findings: &Findings) -> String {
    let Some(reward) = &findings.tested.reward else {
        return String::new();
    };
    format!(
        " The reward, {}, is over scored rollouts only and decides nothing: what failed has none.",
        signed(reward.comparison.difference.difference)
    )
}

fn failed_counts(findings: &Findings) -> String {
    let (first, second) = &findings.outcomes;
    format!(
        "{} of {} → {} of {}",
        first.failed(),
        first.ran(),
        second.failed(),
        second.ran()
    )
}

/// The failures of both runs, also when there are none.
fn failures_line(findings: &Findings) -> String {
    let counts = failed_counts(findings);
    match &findings.tested.failures {
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
fn kinds_line(findings: &Findings) -> String {
    let (first, second) = &findings.outcomes;
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

fn rows(findings: &Findings) -> String {
    let mut text = format!("{} compared", findings.compared);
    if findings.compared < findings.shared {
        let _ = write!(
            text,
            " · {} without a rollout that ran in both",
            findings.shared - findings.compared
        );
    }
    for (count, run) in [
        (findings.only_first, &findings.first),
        (findings.only_second, &findings.second),
    ] {
        if count > 0 {
            let _ = write!(text, " · {count} only in {run}");
        }
    }
    text
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
        "with scored rollouts in both, which are not the same rollouts: decides nothing"
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
            p_of(endpoint),
            test_text(endpoint.comparison.test)
        ),
        None => "not tested apart from the pass rate".to_owned(),
    }
}

fn p_of(endpoint: &Endpoint) -> String {
    p_text(endpoint.p_adjusted.unwrap_or(endpoint.comparison.p))
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
    line: impl Fn(&(RowResult, RowResult)) -> String,
) {
    if changed.count == 0 {
        return;
    }
    let label = paint(&format!("{name:<11}"), Style::new().bold());
    let _ = writeln!(text, "\n  {label} {}: {said}", rows_text(changed.count));
    for pair in changed.largest.iter().take(MOST_ROWS) {
        let _ = writeln!(text, "    row {:<7} {}", pair.1.row_index, line(pair));
    }
    if changed.count > MOST_ROWS as u64
        && let Some(rows) = &changed.rows
    {
        let all = rows.to_string();
        let all = if all.len() > 200 {
            "`--json` names them all".to_owned()
        } else {
            format!("all: {all}")
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

fn passes(row: &RowResult) -> String {
    format!("{}/{}", row.passed, row.ran)
}

fn failures(row: &RowResult) -> String {
    format!("{}/{}", row.tested().failed(), row.ran)
}

fn mean(row: &RowResult) -> String {
    number(row.reward_sum / row.scored as f64)
}

fn one_decimal(count: f64) -> String {
    format!("{count:.1}")
}

fn test_text(test: PairedTest) -> &'static str {
    match test {
        PairedTest::McnemarExact => "McNemar, exact",
        PairedTest::SignFlipExact => "sign flips by row, exact",
        PairedTest::SignFlip => "sign flips by row",
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

fn p_text(p: f64) -> String {
    if p < 0.001 {
        "p < 0.001".to_owned()
    } else {
        format!("p {}", number(p))
    }
}

fn points(share: f64) -> String {
    format!("{} points", signed_one(100.0 * share))
}

fn signed_one(value: f64) -> String {
    // No `-0.0`.
    format!("{:+.1}", if value.abs() < 0.05 { 0.0 } else { value })
}

fn signed(value: f64) -> String {
    let text = number(value.abs());
    if text == "0" {
        return "+0".to_owned();
    }
    format!("{}{text}", if value < 0.0 { '-' } else { '+' })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_that_is_missing_is_no_certainty() {
        use osmosis_core::statistics::Pair;
        let pair = |first: f64, second: f64| Pair {
            first: (2, first),
            second: (2, second),
        };
        let told = |pairs: &[Pair]| interval(&Comparison::of_shares(pairs).unwrap(), signed);
        assert_eq!(told(&[pair(0.0, 2.0)]), " (one row: no interval)");
        assert_eq!(
            told(&[pair(0.0, 2.0), pair(0.0, 2.0)]),
            " (all rows differ alike: no interval)"
        );
        assert_eq!(told(&[pair(1.0, 1.0), pair(2.0, 2.0)]), "");
        assert!(told(&[pair(0.0, 2.0), pair(1.0, 2.0)]).starts_with(" ["));
    }

    #[test]
    fn differences_read_well() {
        assert_eq!(points(0.1), "+10.0 points");
        assert_eq!(points(-0.0001), "+0.0 points");
        assert_eq!(signed(-0.25), "-0.25");
        assert_eq!(signed(0.0001), "+0");
        assert_eq!(p_text(0.0001), "p < 0.001");
        assert_eq!(p_text(0.0312), "p 0.031");
        assert_eq!(p_text(1.0), "p 1");
    }
}
