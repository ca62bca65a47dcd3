//! What training came to, for people.

use std::fmt::Write as _;

use osmosis_run::RunError;
use osmosis_run::reports::{HeldOutPoint, TrainingReport};
use osmosis_run::withheld::{IN_CONFIG, Withheld};
use owo_colors::Style;

use super::chart::chart;
use super::held_out_point::numbers_text;
use super::svg::{Lines, svg};
use crate::command_line;
use crate::eval::failures;
use crate::eval::report::truncation_text;
use crate::figures::{duration_text, number, percent, seconds_text, thousands};
use crate::output::paint;
use crate::run_folder::replace_file;
use crate::workspace::Workspace;

/// More evaluations than these are shown by their first and last ones.
const MOST_EVALUATIONS: usize = 12;

/// Draws the curve into the run's folder.
pub(crate) fn write_curve(report: &TrainingReport) -> Result<(), RunError> {
    let lines = Lines {
        rewards: report.rewards(),
        pass_rates: report.pass_rates(),
        held_out: report.held_out_curve.clone(),
    };
    let picture = svg(report.run_name.as_str(), &lines);
    replace_file(&report.curve_path, |file| {
        std::io::Write::write_all(file, picture.as_bytes())
    })
}

pub(crate) fn render(report: &TrainingReport, workspace: &Workspace) -> String {
    let mut text = String::new();
    let name = report.run_name.as_str();
    let _ = writeln!(text, "\n{}", paint(name, Style::new().bold()));
    text.push_str(&charts(report));
    let mut row = |label: &str, value: String| {
        let label = paint(&format!("{label:<11}"), Style::new().cyan());
        let _ = writeln!(text, "  {label} {value}");
    };
    match (&report.before, &report.after) {
        (Some(before), after) => {
            for (label, point) in [("before", Some(before)), ("after", after.as_ref())] {
                let scores = point.into_iter().flat_map(HeldOutPoint::all);
                for (place, one) in scores.enumerate() {
                    let label = if place == 0 { label } else { "" };
                    row(label, format!("{}: {}", one.name, numbers_text(&one.score)));
                }
            }
            if let Some(text) = not_evaluated(report, after.as_ref().unwrap_or(before)) {
                row("", text);
            }
        }
        (None, _) => row(
            "held out",
            "none: set `eval_fraction` or `eval_dataset` in [training]".to_owned(),
        ),
    }
    if let Some(best) = &report.best {
        let (step, note) = (best.step, &best.note);
        row("best", format!("step {step} (`@best`), {note}"));
    }
    if let Some(text) = training_text(report) {
        row("training", text);
    }
    if let Some(text) = report.truncated.and_then(truncation_text) {
        row("cut", text);
    }
    if let Some(recipe) = &report.recipe {
        row("recipe", recipe.to_string());
    }
    row("steps", steps_text(report));
    row(
        "tokens",
        format!(
            "{} sampled · {} trained on",
            thousands(report.tokens.sampled),
            thousands(report.tokens.trained)
        ),
    );
    row("time", times(report));
    if let Some(text) = staleness_text(report) {
        row("staleness", text);
    }
    if report.infrastructure_failed > 0 {
        let count = thousands(report.infrastructure_failed);
        row(
            "note",
            format!("{count} rollouts failed for reasons outside the agent"),
        );
    }
    let withheld = report.withheld_variables.clone().map(Withheld);
    if let Some(text) = withheld.and_then(|names| names.text(IN_CONFIG)) {
        row("withheld", text);
    }
    row("checkpoints", checkpoints_text(report));
    row("curve", report.curve_path.to_string());
    row("files", report.output_path.to_string());
    row(
        "rollouts",
        command_line::suggest(&["train", "show", name, "ROW"], workspace),
    );
    failures::render_groups(&mut text, &report.failures, ["train", name], workspace);
    text.push_str(&conclusion(report));
    if !report.made_no_update() && !report.checkpoints.is_empty() {
        text.push_str(&next(report, workspace));
    }
    text
}

/// Why planned steps are missing, or why the policy is the one that training started with, and what to do about it.
fn conclusion(report: &TrainingReport) -> String {
    let mut text = String::new();
    let early = report.end.as_ref().filter(|end| end.is_early());
    let (summary, advice) = match (&report.conclusion, early) {
        (Some(conclusion), early) if early.is_some() || conclusion.cause.is_some() => {
            (&conclusion.summary, conclusion.advice.as_slice())
        }
        (None, Some(early)) => (&early.summary, [].as_slice()),
        (_, _) => return text,
    };
    let summary = paint(summary, Style::new().yellow().bold());
    let _ = writeln!(text, "\n  {summary}");
    for advice in advice {
        let _ = writeln!(text, "  - {advice}");
    }
    text
}

/// The last evaluation is of other weights than the last ones.
fn not_evaluated(report: &TrainingReport, last: &HeldOutPoint) -> Option<String> {
    (last.step < report.steps).then(|| {
        format!(
            "the last evaluation is {}, not of the weights after step {}",
            last.when(),
            report.steps
        )
    })
}

/// Training and evaluations over the steps.
fn charts(report: &TrainingReport) -> String {
    let (rewards, pass_rates) = (report.rewards(), report.pass_rates());
    let mut text = String::new();
    let mut draw = |title: &str, points: &[(u64, f64)]| {
        if !points.is_empty() {
            let _ = writeln!(text, "  {title}\n{}\n", chart(points));
        }
    };
    // As it is with rewards of 0 and 1 when nothing fails.
    if rewards == pass_rates {
        draw(
            "mean reward of each step, which is its pass rate too",
            &rewards,
        );
    } else {
        draw("mean reward of each step, of what was scored", &rewards);
        draw("pass rate of each step, of all that ran", &pass_rates);
    }
    let points = &report.held_out_curve;
    if points.len() > 1 {
        text.push_str(&held_out_table(points));
        text.push('\n');
    }
    text
}

/// `reward 0.2 → 0.8 · pass 20.0% → 80.0% · 3 of 240 rollouts failed`.
fn training_text(report: &TrainingReport) -> Option<String> {
    let ends = |points: &[(u64, f64)], show: fn(f64) -> String| {
        let (first, last) = (points.first()?.1, points.last()?.1);
        Some(format!("{} → {}", show(first), show(last)))
    };
    let all = &report.rollouts.training;
    let mean = |of_all: Option<f64>, show: fn(f64) -> String| {
        of_all.map_or_else(|| "none".to_owned(), show)
    };
    if all.ran == 0 {
        return None;
    }
    // Without a step, the numbers of all rollouts.
    let pass = ends(&report.pass_rates(), percent).unwrap_or_else(|| mean(all.pass_rate, percent));
    let reward = ends(&report.rewards(), number).unwrap_or_else(|| mean(all.reward_mean, number));
    let (failed, ran) = (thousands(all.failed), thousands(all.ran));
    let mut text = format!("reward {reward} · pass {pass} · {failed} of {ran} rollouts failed");
    let in_no_step = report.rollouts.in_no_step;
    if in_no_step > 0 {
        let of = thousands(all.finished());
        let _ = write!(
            text,
            " · {} of {of} are part of no step",
            thousands(in_no_step)
        );
    }
    Some(text)
}

/// What to type next.
fn next(report: &TrainingReport, workspace: &Workspace) -> String {
    let model = format!("run:{}@latest", report.run_name);
    let evaluate = command_line::suggest(&["eval", "submit", "CFG"], workspace);
    let serve = command_line::suggest(&["gateway", "--model", &model], workspace);
    format!(
        "\n  Evaluate it with model_path = \"{model}\" in [experiment] of CFG:\n    {evaluate}\n  \
         Serve it to any OpenAI client:\n    {serve}"
    )
}

fn steps_text(report: &TrainingReport) -> String {
    let steps = match report.end.as_ref().filter(|end| end.is_early()) {
        Some(end) => format!("{} of {}", report.steps, end.planned_steps),
        None => report.steps.to_string(),
    };
    let mut text = format!(
        "{steps} · groups: {} used, {} without variance, {} incomplete",
        thousands(report.groups.used),
        thousands(report.groups.no_variance),
        thousands(report.groups.incomplete),
    );
    let skipped = report.steps_without_update;
    if skipped > 0 {
        let _ = write!(text, " · {skipped} steps made no update");
    }
    text
}

fn times(report: &TrainingReport) -> String {
    let mut parts = vec![];
    if let Some(duration) = report.duration {
        parts.push(duration_text(duration.as_secs_f64()));
    }
    let mut part = |name: &str, seconds: f64| {
        if seconds > 0.0 {
            parts.push(format!("{name} {}", seconds_text(seconds)));
        }
    };
    let seconds = &report.seconds;
    part("rollout", seconds.rollout);
    part("grade", seconds.grade);
    part("update", seconds.update);
    part("swap", seconds.swap);
    part("save", seconds.save);
    part("evaluation", seconds.evaluation);
    parts.join(" · ")
}

/// `0: 60.0% · 1: 40.0% of tokens · 2 groups too old · waited 3 s for rollouts, 1 s for updates`.
fn staleness_text(report: &TrainingReport) -> Option<String> {
    let staleness = report.staleness.as_ref()?;
    let all = staleness.tokens.tokens();
    if all == 0 {
        return None;
    }
    let shares: Vec<String> = staleness
        .tokens
        .counts()
        .map(|(age, tokens)| format!("{age}: {}", percent(tokens as f64 / all as f64)))
        .collect();
    let mut text = format!("{} of tokens", shares.join(" · "));
    let too_old = staleness.groups_discarded;
    if too_old > 0 {
        let _ = write!(text, " · {} groups too old", thousands(too_old));
    }
    let masked = staleness.tokens_masked;
    if masked > 0 {
        let _ = write!(text, " · {} tokens masked", thousands(masked));
    }
    let _ = write!(
        text,
        " · waited {} for rollouts, {} for updates",
        seconds_text(staleness.seconds_waiting.rollouts),
        seconds_text(staleness.seconds_waiting.update),
    );
    Some(text)
}

fn checkpoints_text(report: &TrainingReport) -> String {
    let folder = report.output_path.join("checkpoints");
    let steps: Vec<String> = report
        .checkpoints
        .iter()
        .map(|saved| saved.step.to_string())
        .collect();
    match steps.len() {
        0 if report.made_no_update() => "none: no update was made".to_owned(),
        0 => "none yet".to_owned(),
        1..=8 => format!("steps {} in {folder}", steps.join(", ")),
        count => format!(
            "{count} from step {} to {} in {folder}",
            steps[0],
            steps[count - 1],
        ),
    }
}

/// The evaluations on held-out rows, a line each.
fn held_out_table(points: &[HeldOutPoint]) -> String {
    let mut text = String::from(
        "  held-out rows        sampled                    greedy\n\
         \x20   step      pass    reward  failed      pass    reward  failed\n",
    );
    let half = MOST_EVALUATIONS / 2;
    let left_out = half..points.len().saturating_sub(half);
    for (place, point) in points.iter().enumerate() {
        if points.len() > MOST_EVALUATIONS && left_out.contains(&place) {
            if place == half {
                text.push_str("       …\n");
            }
            continue;
        }
        let _ = write!(text, "{:>8}", point.step);
        for numbers in [Some(&point.sampled), point.greedy.as_ref()] {
            let shown = |value: Option<f64>, show: fn(f64) -> String| {
                value.map_or_else(|| "-".to_owned(), show)
            };
            let _ = write!(
                text,
                "{:>10}{:>10}{:>8}",
                shown(numbers.and_then(|n| n.pass_rate), percent),
                shown(numbers.and_then(|n| n.reward_mean), |mean| format!(
                    "{mean:.3}"
                )),
                numbers.map_or_else(|| "-".to_owned(), |n| thousands(n.failed)),
            );
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::held_out_point::tests::point;
    use super::*;

    #[test]
    fn evaluations_are_a_table_of_sampled_and_greedy() {
        let mut points = vec![point(0, 0.125, None)];
        points.extend(
            (1..=20).map(|n| point(10 * n, 0.125 + n as f64 / 25.0, Some(0.05 * n as f64))),
        );
        insta::assert_snapshot!(held_out_table(&points));
    }
}
