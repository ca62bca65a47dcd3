//! What training came to, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use osmosis_core::RunName;
use osmosis_run::RunError;
use osmosis_store::Store;
use osmosis_train::checkpoints::{self, Checkpoint, Which};
use owo_colors::Style;
use serde_json::{Value, json};

use super::chart::chart;
use super::curve::{Curve, StepNumbers};
use super::held_out_point::{HeldOutPoint, numbers_text};
use super::svg::{Lines, svg};
use crate::command_line;
use crate::figures::{duration_text, number, percent, seconds_text, thousands};
use crate::output::paint;
use crate::run_folder::{RunFolder, replace_file};
use crate::runs::Pinned;
use crate::withheld::{IN_CONFIG, Withheld};
use crate::workspace::Workspace;

/// More evaluations than these are shown by their first and last ones.
const MOST_EVALUATIONS: usize = 12;
/// The best of many is partly the luckiest of them.
const OPTIMISTIC: &str = "chosen on the held-out rows, so its score on them is optimistic";

/// The kind of processor that a run was begun on.
pub(crate) async fn begun_on(store: &dyn Store) -> Result<Option<String>, RunError> {
    let Some(record) = store.run().await? else {
        return Ok(None);
    };
    Ok(Pinned::read(&record.pinned)?.remembered.processor)
}

#[derive(Debug)]
pub(crate) struct Report {
    name: RunName,
    folder: RunFolder,
    resumed: bool,
    /// How long this process trained; `None` when it only looks.
    duration: Option<Duration>,
    curve: Curve,
    checkpoints: Vec<Checkpoint>,
    /// `run:NAME@best`
    best: Option<Checkpoint>,
    /// What the run was begun on; `None` for runs from before it was recorded.
    processor: Option<String>,
    /// `None` when this process only looks.
    withheld: Option<Withheld>,
}

impl Report {
    pub(crate) async fn of(
        store: &dyn Store,
        name: &RunName,
        folder: &RunFolder,
        resumed: bool,
        duration: Option<Duration>,
    ) -> Result<Self, RunError> {
        Ok(Self {
            withheld: None,
            processor: begun_on(store).await?,
            name: name.clone(),
            folder: folder.clone(),
            resumed,
            duration,
            curve: Curve::of(store).await?,
            checkpoints: checkpoints::list(&folder.path)?,
            // Without held-out rows there is none.
            best: checkpoints::resolve(&folder.path, Which::Best).ok(),
        })
    }

    /// The same with the names of the variables that user code did not get.
    pub(crate) fn with_withheld(self, withheld: &Withheld) -> Self {
        Self {
            withheld: Some(withheld.clone()),
            ..self
        }
    }

    /// The first and the last evaluation on held-out rows. With a single one there is no after.
    pub(crate) fn before(&self) -> Option<HeldOutPoint> {
        self.curve.held_out().into_iter().next()
    }

    pub(crate) fn after(&self) -> Option<HeldOutPoint> {
        let mut points = self.curve.held_out();
        let last = points.pop();
        last.filter(|_| !points.is_empty())
    }

    /// How long this process trained.
    pub(crate) fn duration(&self) -> Option<Duration> {
        self.duration
    }

    /// The kind of processor that the run was begun on.
    pub(crate) fn processor(&self) -> Option<&str> {
        self.processor.as_deref()
    }

    pub(crate) fn steps(&self) -> u64 {
        self.curve.last_step()
    }

    /// Draws the curve into the run's folder.
    pub(crate) fn write_curve(&self) -> Result<(), RunError> {
        let lines = Lines {
            rewards: self.curve.rewards(),
            pass_rates: self.curve.pass_rates(),
            held_out: self.curve.held_out(),
        };
        let picture = svg(self.name.as_str(), &lines);
        replace_file(&self.folder.curve(), |file| {
            std::io::Write::write_all(file, picture.as_bytes())
        })
    }

    /// The `resource` of `train submit --json`, and `metrics.json`.
    pub(crate) fn json(&self) -> Value {
        let curve = &self.curve;
        let rewards: Vec<Value> = curve
            .trained()
            .filter(|step| step.reward.is_some() || step.pass_rate.is_some())
            .map(|step| {
                json!({
                    "step": step.step,
                    "reward": step.reward,
                    "pass_rate": step.pass_rate,
                    "ran": step.ran(),
                    "scored": step.scored,
                    "failed": step.failed(),
                    "infrastructure_failed": step.infrastructure_failed,
                })
            })
            .collect();
        let best = self
            .best
            .as_ref()
            .map(|best| json!({"step": best.step, "path": best.folder, "note": OPTIMISTIC}));
        let held_out: Vec<Value> = curve.held_out().iter().map(HeldOutPoint::json).collect();
        let checkpoints: Vec<Value> = self
            .checkpoints
            .iter()
            .map(|saved| json!({"step": saved.step, "path": saved.folder}))
            .collect();
        let mut resource = json!({
            "run_name": self.name,
            "output_path": self.folder.path,
            "steps": self.steps(),
            "steps_without_update": self.steps_without_update(),
            "before": self.before().map(|point| point.json()),
            "after": self.after().map(|point| point.json()),
            "reward_curve": rewards,
            "held_out_curve": held_out,
            "best": best,
            "tokens": {
                "sampled": curve.count(|step| step.tokens_sampled),
                "trained": curve.count(|step| step.tokens_trained),
            },
            "groups": {
                "used": curve.count(|step| step.groups_used),
                "no_variance": curve.count(|step| step.groups_without_variance),
                "incomplete": curve.count(|step| step.groups_incomplete),
            },
            "infrastructure_failed": self.infrastructure_failed(),
            "staleness": self.staleness_json(),
            "seconds": {
                "rollout": curve.sum(|step| step.rollout_seconds),
                "grade": curve.sum(|step| step.grade_seconds),
                "update": curve.sum(|step| step.update_seconds),
                "swap": curve.sum(|step| step.swap_seconds),
                "save": curve.sum(|step| step.save_seconds.unwrap_or(0.0)),
                "evaluation": curve.sum(StepNumbers::eval_seconds),
            },
            "checkpoints": checkpoints,
            "curve_path": self.folder.curve(),
            "processor": self.processor,
            "resumed": self.resumed,
        });
        if let (Some(map), Some(duration)) = (resource.as_object_mut(), self.duration) {
            let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            map.insert("duration_ms".to_owned(), json!(ms));
        }
        if let (Some(Withheld(names)), Value::Object(map)) = (&self.withheld, &mut resource) {
            map.insert("withheld_variables".to_owned(), json!(names));
        }
        resource
    }

    pub(crate) fn render(&self, workspace: &Workspace) -> String {
        let curve = &self.curve;
        let mut text = String::new();
        let _ = writeln!(text, "\n{}", paint(self.name.as_str(), Style::new().bold()));
        text.push_str(&self.charts());
        let mut row = |label: &str, value: String| {
            let label = paint(&format!("{label:<11}"), Style::new().cyan());
            let _ = writeln!(text, "  {label} {value}");
        };
        match (self.before(), self.after()) {
            (Some(before), after) => {
                let labels = if after.is_some() {
                    ["before", "after"]
                } else {
                    ["held out", ""]
                };
                for (label, point) in labels.into_iter().zip([Some(before), after]) {
                    for (place, one) in point.iter().flat_map(HeldOutPoint::all).enumerate() {
                        let label = if place == 0 { label } else { "" };
                        row(
                            label,
                            format!("{}: {}", one.name, numbers_text(&one.numbers)),
                        );
                    }
                }
            }
            (None, _) => row(
                "held out",
                "none: set `eval_fraction` or `eval_dataset` in [training]".to_owned(),
            ),
        }
        if let Some(best) = &self.best {
            let step = best.step;
            row("best", format!("step {step} (`@best`), {OPTIMISTIC}"));
        }
        if let Some(text) = self.training_text() {
            row("training", text);
        }
        row("steps", self.steps_text());
        row(
            "tokens",
            format!(
                "{} sampled · {} trained on",
                thousands(curve.count(|step| step.tokens_sampled)),
                thousands(curve.count(|step| step.tokens_trained))
            ),
        );
        row("time", self.times());
        if let Some(text) = self.staleness_text() {
            row("staleness", text);
        }
        if self.infrastructure_failed() > 0 {
            let count = thousands(self.infrastructure_failed());
            row(
                "note",
                format!("{count} rollouts failed for reasons outside the agent"),
            );
        }
        if let Some(text) = self.withheld.as_ref().and_then(|it| it.text(IN_CONFIG)) {
            row("withheld", text);
        }
        row("checkpoints", self.checkpoints_text());
        row("curve", self.folder.curve().to_string());
        row("files", self.folder.path.to_string());
        row(
            "rollouts",
            command_line::suggest(&["train", "show", self.name.as_str(), "ROW"], workspace),
        );
        if !self.checkpoints.is_empty() {
            text.push_str(&self.next(workspace));
        }
        text
    }

    /// Training and evaluations over the steps.
    fn charts(&self) -> String {
        let (rewards, pass_rates) = (self.curve.rewards(), self.curve.pass_rates());
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
        let points = self.curve.held_out();
        if points.len() > 1 {
            text.push_str(&held_out_table(&points));
            text.push('\n');
        }
        text
    }

    /// `reward 0.2 → 0.8 · pass 20.0% → 80.0% · 3 of 240 rollouts failed`.
    fn training_text(&self) -> Option<String> {
        let ends = |points: &[(u64, f64)], show: fn(f64) -> String| {
            let (first, last) = (points.first()?.1, points.last()?.1);
            Some(format!("{} → {}", show(first), show(last)))
        };
        let pass = ends(&self.curve.pass_rates(), percent)?;
        let reward = ends(&self.curve.rewards(), number).unwrap_or_else(|| "none".to_owned());
        let failed = thousands(self.curve.count(StepNumbers::failed));
        let ran = thousands(self.curve.count(StepNumbers::ran));
        Some(format!(
            "reward {reward} · pass {pass} · {failed} of {ran} rollouts failed"
        ))
    }

    /// What to type next.
    fn next(&self, workspace: &Workspace) -> String {
        let model = format!("run:{}@latest", self.name);
        let evaluate = command_line::suggest(&["eval", "submit", "CFG"], workspace);
        let serve = command_line::suggest(&["gateway", "--model", &model], workspace);
        format!(
            "\n  Evaluate it with model_path = \"{model}\" in [experiment] of CFG:\n    {evaluate}\n  \
             Serve it to any OpenAI client:\n    {serve}"
        )
    }

    fn steps_without_update(&self) -> u64 {
        self.curve
            .trained()
            .filter(|step| step.skipped.is_some())
            .count() as u64
    }

    fn infrastructure_failed(&self) -> u64 {
        self.curve.count(StepNumbers::all_infrastructure_failed)
    }

    fn steps_text(&self) -> String {
        let curve = &self.curve;
        let mut text = format!(
            "{} · groups: {} used, {} without variance, {} incomplete",
            self.steps(),
            thousands(curve.count(|step| step.groups_used)),
            thousands(curve.count(|step| step.groups_without_variance)),
            thousands(curve.count(|step| step.groups_incomplete)),
        );
        let skipped = self.steps_without_update();
        if skipped > 0 {
            let _ = write!(text, " · {skipped} steps made no update");
        }
        text
    }

    fn times(&self) -> String {
        let curve = &self.curve;
        let mut parts = vec![];
        if let Some(duration) = self.duration {
            parts.push(duration_text(duration.as_secs_f64()));
        }
        let mut part = |name: &str, seconds: f64| {
            if seconds > 0.0 {
                parts.push(format!("{name} {}", seconds_text(seconds)));
            }
        };
        part("rollout", curve.sum(|step| step.rollout_seconds));
        part("grade", curve.sum(|step| step.grade_seconds));
        part("update", curve.sum(|step| step.update_seconds));
        part("swap", curve.sum(|step| step.swap_seconds));
        part("save", curve.sum(|step| step.save_seconds.unwrap_or(0.0)));
        part("evaluation", curve.sum(StepNumbers::eval_seconds));
        parts.join(" · ")
    }

    /// Tokens by the versions they were behind, and what was too old; null where nothing can be.
    fn staleness_json(&self) -> Value {
        let curve = &self.curve;
        let histogram = curve.staleness();
        if !curve.is_asynchronous() {
            return Value::Null;
        }
        json!({
            "tokens": histogram,
            "mean": histogram.mean(),
            "max": histogram.max(),
            "groups_discarded": curve.count(|step| step.groups_stale),
            "rollouts_dropped": curve.count(|step| step.rollouts_stale),
            "tokens_masked": curve.count(|step| step.tokens_masked),
            "seconds_waiting": {
                "rollouts": curve.sum(|step| step.wait_rollouts_seconds.unwrap_or(0.0)),
                "update": curve.sum(|step| step.wait_update_seconds.unwrap_or(0.0)),
            },
        })
    }

    /// `0: 60.0% · 1: 40.0% of tokens · 2 groups too old · waited 3 s for rollouts, 1 s for updates`.
    fn staleness_text(&self) -> Option<String> {
        let curve = &self.curve;
        let histogram = curve.staleness();
        let all = histogram.tokens();
        if !curve.is_asynchronous() || all == 0 {
            return None;
        }
        let shares: Vec<String> = histogram
            .counts()
            .map(|(age, tokens)| format!("{age}: {}", percent(tokens as f64 / all as f64)))
            .collect();
        let mut text = format!("{} of tokens", shares.join(" · "));
        let too_old = curve.count(|step| step.groups_stale);
        if too_old > 0 {
            let _ = write!(text, " · {} groups too old", thousands(too_old));
        }
        let masked = curve.count(|step| step.tokens_masked);
        if masked > 0 {
            let _ = write!(text, " · {} tokens masked", thousands(masked));
        }
        let _ = write!(
            text,
            " · waited {} for rollouts, {} for updates",
            seconds_text(curve.sum(|step| step.wait_rollouts_seconds.unwrap_or(0.0))),
            seconds_text(curve.sum(|step| step.wait_update_seconds.unwrap_or(0.0))),
        );
        Some(text)
    }

    fn checkpoints_text(&self) -> String {
        let steps: Vec<String> = self
            .checkpoints
            .iter()
            .map(|saved| saved.step.to_string())
            .collect();
        match steps.len() {
            0 => "none yet".to_owned(),
            1..=8 => format!(
                "steps {} in {}",
                steps.join(", "),
                self.folder.checkpoints()
            ),
            count => format!(
                "{count} from step {} to {} in {}",
                steps[0],
                steps[count - 1],
                self.folder.checkpoints()
            ),
        }
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
        for numbers in [Some(point.sampled()), point.greedy()] {
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
