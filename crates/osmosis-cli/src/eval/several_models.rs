//! `eval submit --model A,B`: one run for each model, and one table with the comparisons.

use std::fmt::Write as _;
use std::sync::Arc;

use camino::Utf8Path;
use osmosis_core::RunName;
use osmosis_engine::RunEnd;
use osmosis_run::life::Lived;
use osmosis_run::notices::{NoNotices, Notices};
use osmosis_run::reports::{EvalDryRun, ModelDryRuns, ModelRun, ModelRunsReport};
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::RunKind;
use owo_colors::Style;

use super::gates;
use super::prices::dollars_text;
use super::submit::EvalCommand;
use crate::arguments::SubmitArguments;
use crate::command_line;
use crate::error::Exit;
use crate::figures::{duration_text, interval, number, percent};
use crate::output::{Output, paint};
use crate::runs::{fresh_name, given_name};
use crate::workspace::{Workspace, WorkspaceChoice};

pub(super) async fn submit(
    arguments: &SubmitArguments,
    name: Option<RunName>,
    workspace: &WorkspaceChoice,
    output: &Output,
    notices: &Arc<dyn Notices>,
) -> Result<Exit, RunError> {
    check(arguments)?;
    let models = &arguments.models;
    let command = async |model: &str, name, notices: &Arc<dyn Notices>| {
        EvalCommand::of(arguments, Some(model), name, workspace, output, notices).await
    };
    // A wrong name is told before the first model has run for an hour. What is loaded is let go of: not
    // every machine has room for all of them.
    let mut base = name;
    let quiet: Arc<dyn Notices> = Arc::new(NoNotices);
    for model in models {
        notices.step(format_args!("Checking {model}"));
        let checked = command(model, None, &quiet).await?;
        let plan = &checked.evaluation.plan;
        plan.ready.shut_down();
        if base.is_none() {
            base = Some(fresh_name(
                plan.stem(),
                &plan.workspace,
                RunKind::Evaluation,
            )?);
        }
    }
    let base = base.ok_or_else(|| RunError::failed(RunErrorKind::Internal, "no models"))?;
    let mut found = vec![];
    let mut several = Several::default();
    for (place, model) in models.iter().enumerate() {
        let name = given_name(Some(&format!("{base}-{}", place + 1)))?;
        notices.note(format_args!(
            "Model {} of {}: {model}, as run `{base}-{0}`",
            place + 1,
            models.len()
        ));
        let mut command = command(model, name, notices).await?;
        let name = command.evaluation.name.clone();
        if arguments.dry_run {
            found.push(EvalDryRun {
                model: Some(model.clone()),
                ..command.dry_run().await?
            });
            continue;
        }
        if let Some(folder) = &arguments.output {
            command.set_copy_to(folder.join(name.as_str()));
        }
        command.confirm(arguments.yes).await?;
        let lived = command.live().await?;
        command.tell_cost(&lived.report);
        let is_stopped = several.add(model, lived, arguments);
        if is_stopped {
            break;
        }
    }
    if arguments.dry_run {
        let report = ModelDryRuns {
            runs: found,
            comparisons: None,
        };
        output.operation("valid", &report);
        return Ok(Exit::Ok);
    }
    let workspace = workspace.find(config_folder(arguments))?;
    let report = ModelRunsReport::of(several.runs, &workspace).await?;
    output.line(table(&report, &workspace));
    let (status, exit) = several.verdict.status();
    for run in &report.runs {
        if run.report.gates.is_some() {
            output.note(format_args!("{}:", run.report.run_name));
            gates::tell(&run.report, output);
        }
    }
    output.operation(status, &report);
    if !matches!(exit, Exit::Ok | Exit::Gate) {
        output.note(format_args!(
            "Not complete. The same command with `--name {base}` goes on."
        ));
    }
    Ok(exit)
}

/// Refuses what makes sense for one run alone.
fn check(arguments: &SubmitArguments) -> Result<(), RunError> {
    let mut seen = vec![];
    for model in &arguments.models {
        if seen.contains(&model) {
            return Err(RunError::usage(
                RunErrorKind::Usage,
                format!("--model: `{model}` is given twice"),
            ));
        }
        seen.push(model);
    }
    if arguments.gates.junit.is_some() {
        return Err(RunError::usage(
            RunErrorKind::Usage,
            "--junit: one file can't hold the runs of several models",
        )
        .hint("write one for each run afterwards: `osmosis eval info RUN --junit FILE`"));
    }
    Ok(())
}

fn config_folder(arguments: &SubmitArguments) -> Option<&Utf8Path> {
    let config = arguments.config.config.as_deref();
    config.and_then(Utf8Path::parent)
}

/// How it went with the models so far.
#[derive(Default)]
struct Several {
    runs: Vec<ModelRun>,
    verdict: WorstEnd,
}

/// The worst that became of a run; later ones are worse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum WorstEnd {
    #[default]
    Completed,
    BelowGate,
    Incomplete,
    OverBudget,
    Interrupted,
}

impl WorstEnd {
    fn status(self) -> (&'static str, Exit) {
        match self {
            Self::Completed => ("completed", Exit::Ok),
            Self::BelowGate => ("below_gate", Exit::Gate),
            Self::Incomplete => ("incomplete", Exit::Incomplete),
            Self::OverBudget => ("over_budget", Exit::Incomplete),
            Self::Interrupted => ("interrupted", Exit::Interrupted),
        }
    }
}

impl Several {
    /// Notes how a run ended; whether that ends the others, too.
    fn add(
        &mut self,
        model: &str,
        lived: Lived<osmosis_run::eval::evaluation::Evaluation>,
        arguments: &SubmitArguments,
    ) -> bool {
        let Lived { end, report, .. } = lived;
        let (report, end) = match end.end {
            RunEnd::Stopped { .. } if end.over_budget => (report, WorstEnd::OverBudget),
            RunEnd::Stopped { .. } => (report, WorstEnd::Interrupted),
            RunEnd::Complete if report.infrastructure_failed() > 0 => {
                (report, WorstEnd::Incomplete)
            }
            RunEnd::Complete => {
                let report = report.judged_by(&arguments.gates.fail_under);
                let end = if report.gates_hold() {
                    WorstEnd::Completed
                } else {
                    WorstEnd::BelowGate
                };
                (report, end)
            }
        };
        self.verdict = self.verdict.max(end);
        self.runs.push(ModelRun {
            model: model.to_owned(),
            report,
        });
        end == WorstEnd::Interrupted
    }
}

/// One line for each model, and what the comparisons say.
fn table(report: &ModelRunsReport, workspace: &Workspace) -> String {
    let mut lines: Vec<[String; 7]> = vec![
        [
            "model",
            "run",
            "pass rate",
            "reward",
            "failed",
            "cost",
            "time",
        ]
        .map(str::to_owned),
    ];
    lines.extend(report.runs.iter().map(cells));
    let width = |column: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = "\n".to_owned();
    for (place, line) in lines.iter().enumerate() {
        let padded: Vec<String> = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let line = padded.join("  ");
        let line = line.trim_end();
        let style = if place == 0 {
            Style::new().cyan()
        } else {
            Style::new()
        };
        let _ = writeln!(text, "  {}", paint(line, style));
    }
    for comparison in &report.comparisons {
        let (first, other) = (&comparison.first, &comparison.compared.run.run_name);
        let title = format!("{first} → {other}");
        let _ = writeln!(
            text,
            "\n  {}  {}",
            paint(&title, Style::new().bold()),
            comparison.compared.summary
        );
    }
    let names = report.runs.iter().map(|run| run.report.run_name.as_str());
    let names: Vec<&str> = names.collect();
    let _ = writeln!(text);
    if names.len() > 1 {
        let compare = [&["eval", "compare"], &names[..]].concat();
        let command = command_line::suggest(&compare, workspace);
        let _ = writeln!(text, "  row by row  {command}");
    }
    let command = command_line::suggest(&["eval", "info", "RUN"], workspace);
    let _ = write!(text, "  one run     {command}");
    text
}

fn cells(run: &ModelRun) -> [String; 7] {
    let ModelRun { model, report } = run;
    let numbers = &report.numbers;
    let failed = numbers.ran.saturating_sub(numbers.outcomes.scored)
        + report.infrastructure_failed()
        + report.without_result();
    let none = || "none".to_owned();
    [
        model.clone(),
        report.run_name.to_string(),
        numbers.pass_rate.map_or_else(none, |rate| {
            format!(
                "{}{}",
                percent(rate),
                interval(numbers.pass_rate_ci95, percent)
            )
        }),
        numbers.reward.mean.map_or_else(none, number),
        failed.to_string(),
        report
            .total_cost()
            .map_or_else(|| "-".to_owned(), dollars_text),
        match report.duration_ms.filter(|_| !report.already_complete) {
            Some(ms) => duration_text(ms as f64 / 1000.0),
            None => "-".to_owned(),
        },
    ]
}
