//! The report as one page.

use std::fmt::Write as _;

use osmosis_core::statistics::{Interval, Verdict};

use super::super::{ChangedRows, ComparedWith};
use super::figures::{self, Headline};
use super::safe_text::html as text;
use super::{HistogramBar, ReportedRollout, SharedReport};
use crate::figures::{number, thousands};

const STYLE: &str = include_str!("page.css");

/// Of the histogram: a phone's, so that its letters are not made smaller there.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 120.0;

/// Groups of failures that are shown.
const MOST: usize = 20;
/// Rows of a list that are shown.
const MOST_ROWS: usize = 10;

pub(super) fn page(report: &SharedReport) -> String {
    let name = text(report.run.run_name.as_str());
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{name}: evaluation report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    head(report, &mut page);
    gates(report, &mut page);
    cards(report, &mut page);
    if let Some(comparison) = &report.comparison {
        for compared in &comparison.others {
            comparison_section(comparison.first.run_name.as_str(), compared, &mut page);
        }
    }
    outcomes(report, &mut page);
    histogram(&report.reward_histogram, &mut page);
    failures(report, &mut page);
    lowest(report, &mut page);
    definitions(report, &mut page);
    let _ = writeln!(
        page,
        "<footer class=\"soft small\">Made by <code>osmosis eval report {name}</code>. A file without scripts; prompts \
         and answers are quoted as they were recorded.</footer>\n</body>\n</html>"
    );
    page
}

fn head(report: &SharedReport, page: &mut String) {
    let _ = writeln!(page, "<h1>{}</h1>", text(report.run.run_name.as_str()));
    let facts = [
        ("model", report.model.as_deref()),
        ("dataset", report.dataset.as_deref()),
        ("project", report.project.as_deref()),
        ("begun", Some(report.created_at.as_str())),
        ("status", Some(report.status.as_str())),
    ];
    page.push_str("<div class=\"facts small\">");
    for (name, value) in facts {
        if let Some(value) = value {
            let _ = write!(
                page,
                "<div><span class=\"soft\">{name}</span> {}</div>",
                text(value)
            );
        }
    }
    page.push_str("</div>\n");
    let left = report.run.without_result();
    if report.run.is_incomplete() {
        let _ = writeln!(
            page,
            "<p class=\"verdict inconclusive\">Incomplete: {} rollouts have no result, and {} failed for reasons outside \
             the agent.</p>",
            thousands(left),
            thousands(report.run.infrastructure_failed())
        );
    }
}

fn gates(report: &SharedReport, page: &mut String) {
    if report.run.is_incomplete() {
        return;
    }
    for result in report.run.gates.iter().flatten() {
        let (class, word) = if result.holds {
            ("better", "passed")
        } else {
            ("worse", "failed")
        };
        let _ = writeln!(
            page,
            "<p class=\"verdict {class}\">Gate {word}: {}</p>",
            text(&result.text())
        );
    }
}

fn cards(report: &SharedReport, page: &mut String) {
    page.push_str("<div class=\"cards\">\n");
    for headline in figures::headlines(report) {
        let Headline {
            label,
            value,
            interval,
            note,
        } = &headline;
        let _ = write!(
            page,
            "<div class=\"card\"><div class=\"soft small\">{label}</div><div class=\"value\">{}</div>",
            text(value)
        );
        let numbers = &report.run.numbers;
        if let (&"Pass rate", Some(rate)) = (label, numbers.pass_rate) {
            track(rate, numbers.pass_rate_ci95, page);
        }
        if let Some(interval) = interval {
            let _ = write!(page, "<div class=\"small\">95%: {}</div>", text(interval));
        }
        let _ = writeln!(page, "<div class=\"soft small\">{}</div></div>", text(note));
    }
    page.push_str("</div>\n");
}

/// A share and its interval between 0 and 1.
fn track(share: f64, interval: Option<Interval>, page: &mut String) {
    let x = |share: f64| 4.0 + 192.0 * share.clamp(0.0, 1.0);
    page.push_str(
        "<svg viewBox=\"0 0 200 14\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"track\" x=\"4\" y=\"6\" width=\"192\" height=\"2\"/>",
    );
    if let Some(interval) = interval {
        let (low, high) = (x(interval.low), x(interval.high));
        let _ = write!(
            page,
            "<rect class=\"span\" x=\"{low:.1}\" y=\"3\" width=\"{:.1}\" height=\"8\" rx=\"2\"/>",
            (high - low).max(1.0)
        );
    }
    let _ = write!(
        page,
        "<rect class=\"point\" x=\"{:.1}\" y=\"1\" width=\"3\" height=\"12\"/></svg>",
        x(share) - 1.5
    );
}

fn comparison_section(first: &str, compared: &ComparedWith, page: &mut String) {
    let class = match compared.verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::NoDifference => "same",
        Verdict::Inconclusive => "inconclusive",
    };
    let _ = writeln!(
        page,
        "<h2>Compared with <code>{}</code></h2>\n<p class=\"verdict {class}\">{}</p>",
        text(first),
        text(&compared.summary)
    );
    page.push_str(
        "<div class=\"wide\"><table>\n<tr><th></th><th>before</th><th>now</th><th>difference (95%)</th>\
         <th>p, adjusted</th></tr>\n",
    );
    for change in figures::changes(compared) {
        let cells = change.cells(text).join("</td><td>");
        let _ = writeln!(page, "<tr><td>{cells}</td></tr>");
    }
    page.push_str("</table></div>\n");
    for (name, rows) in figures::changed_rows(compared) {
        changed_rows(name, rows, page);
    }
    for caution in &compared.cautions {
        let _ = writeln!(page, "<p class=\"soft small\">Note: {}</p>", text(caution));
    }
}

fn changed_rows(name: &str, rows: &ChangedRows, page: &mut String) {
    if rows.count == 0 {
        return;
    }
    let _ = writeln!(
        page,
        "<h3>{} rows {name}</h3>\n<div class=\"wide narrow\"><table>\n<tr><th>row</th><th>passed before</th>\
         <th>passed now</th></tr>",
        thousands(rows.count)
    );
    for row in rows.items.iter().take(MOST_ROWS) {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{} of {}</td><td>{} of {}</td></tr>",
            row.row_index, row.first.passed, row.first.ran, row.second.passed, row.second.ran
        );
    }
    page.push_str("</table></div>\n");
    if let Some(first) = rows.items.first() {
        let _ = writeln!(
            page,
            "<p class=\"soft small\">To see the first of them: <code>{}</code></p>",
            text(&first.show)
        );
    }
    if let Some(all) = rows
        .rows
        .as_deref()
        .filter(|_| rows.count > MOST_ROWS as u64)
    {
        let _ = writeln!(
            page,
            "<p class=\"soft small\">All of them: <code>--rows {}</code></p>",
            text(all)
        );
    }
}

fn outcomes(report: &SharedReport, page: &mut String) {
    let outcomes = figures::outcomes(report);
    let total: u64 = outcomes.iter().map(|(_, count)| count).sum();
    page.push_str("<h2>Outcomes</h2>\n");
    if total == 0 {
        page.push_str("<p class=\"soft\">No rollout has a result.</p>\n");
        return;
    }
    page.push_str(
        "<div class=\"wide narrow\"><table>\n<tr><th>outcome</th><th class=\"count\">rollouts</th>\
         <th class=\"count\">share</th></tr>\n",
    );
    for (name, count) in outcomes {
        let _ = writeln!(
            page,
            "<tr><td>{name}</td><td class=\"count\">{}</td><td class=\"count\">{:.1}%</td></tr>",
            thousands(count),
            100.0 * count as f64 / total as f64
        );
    }
    page.push_str("</table></div>\n");
}

fn histogram(bars: &[HistogramBar], page: &mut String) {
    let Some(most) = bars.iter().map(|bar| bar.count).max() else {
        return;
    };
    let step = WIDTH / bars.len() as f64;
    let width = (step - 4.0).clamp(2.0, 60.0);
    page.push_str("<h2>Rewards</h2>\n<div class=\"chart\">");
    let _ = write!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} 160\" role=\"img\" aria-label=\"How many rollouts got which reward\">"
    );
    // Labels of many bars would run into each other.
    let every = bars.len().div_ceil(6);
    for (place, bar) in bars.iter().enumerate() {
        let height = HEIGHT * bar.count as f64 / most as f64;
        let middle = step * (place as f64 + 0.5);
        let (x, y) = (middle - width / 2.0, 16.0 + HEIGHT - height);
        let label = if bar.low.total_cmp(&bar.high).is_eq() {
            number(bar.low)
        } else {
            format!("{} to {}", number(bar.low), number(bar.high))
        };
        let _ = write!(
            page,
            "<rect class=\"bar\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
             <title>{}: {} rollouts</title></rect>",
            text(&label),
            thousands(bar.count)
        );
        if bars.len() <= 12 && bar.count > 0 {
            let _ = write!(
                page,
                "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                y - 4.0,
                bar.count
            );
        }
        if place % every == 0 {
            let _ = write!(
                page,
                "<text x=\"{middle:.1}\" y=\"152\" text-anchor=\"middle\">{}</text>",
                text(&number(bar.low))
            );
        }
    }
    let _ = writeln!(
        page,
        "<line x1=\"0\" y1=\"{0}\" x2=\"{WIDTH}\" y2=\"{0}\"/></svg></div>",
        16.0 + HEIGHT
    );
    page.push_str("<p class=\"soft small\">Scored rollouts by reward.</p>\n");
}

fn failures(report: &SharedReport, page: &mut String) {
    let groups = &report.run.failures;
    if groups.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Failures</h2>\n<div class=\"wide\"><table>\n<tr><th class=\"count\">rollouts</th><th>outcome</th>\
         <th>error</th><th>first</th></tr>\n",
    );
    for group in groups.iter().take(MOST) {
        let frame = group.frame.as_ref().map_or_else(String::new, |frame| {
            format!("<div class=\"soft small\">at {}</div>", text(frame))
        });
        let _ = writeln!(
            page,
            "<tr><td class=\"count\">{}</td><td>{}</td><td><pre>{}</pre>{frame}</td><td>{}</td></tr>",
            thousands(group.count),
            group.outcome.as_str().replace('_', " "),
            text(&group.error),
            text(group.first.as_deref().unwrap_or(""))
        );
    }
    page.push_str("</table></div>\n");
    if groups.len() > MOST {
        let _ = writeln!(
            page,
            "<p class=\"soft small\">And {} other kinds.</p>",
            groups.len() - MOST
        );
    }
}

fn lowest(report: &SharedReport, page: &mut String) {
    if report.lowest.is_empty() {
        return;
    }
    let shown = report.lowest.len() as u64;
    let of = if report.not_passed > shown {
        format!(" ({shown} of {})", thousands(report.not_passed))
    } else {
        String::new()
    };
    let _ = writeln!(page, "<h2>Rollouts that did not pass{of}</h2>");
    for rollout in &report.lowest {
        one(rollout, page);
    }
}

fn one(rollout: &ReportedRollout, page: &mut String) {
    let reward = match rollout.reward {
        Some(reward) => format!("reward {}", number(reward)),
        None => rollout.outcome.as_str().replace('_', " "),
    };
    let _ = writeln!(
        page,
        "<section class=\"rollout\"><header><b>Row {}</b><span>{reward}</span><code class=\"soft\">{}</code></header>\n\
         <dl class=\"text\">",
        text(&rollout.rollout),
        text(&rollout.show)
    );
    for (name, value) in [
        ("error", &rollout.error),
        ("prompt", &rollout.prompt),
        ("answer", &rollout.answer),
        ("ground truth", &rollout.ground_truth),
    ] {
        if let Some(value) = value {
            let _ = writeln!(page, "<dt>{name}</dt><dd><pre>{}</pre></dd>", text(value));
        }
    }
    page.push_str("</dl></section>\n");
}

fn definitions(report: &SharedReport, page: &mut String) {
    page.push_str("<h2>What the numbers mean</h2>\n<dl class=\"definitions small\">\n");
    for (name, meaning) in figures::definitions(report) {
        let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", text(meaning));
    }
    page.push_str("</dl>\n");
}
