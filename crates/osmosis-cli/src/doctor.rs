//! `osmosis doctor`: is everything here that a run needs?

use std::fmt::Write as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use osmosis_run::RunError;
use osmosis_run::doctor::{Doctor, DoctorEvent};
use osmosis_run::reports::{DoctorFinding, DoctorReport, ReadyModel};
use owo_colors::Style;

use crate::arguments::DoctorArguments;
use crate::error::Exit;
use crate::output::{Output, paint};
use crate::terminal::neutral;
use crate::workspace::WorkspaceChoice;

/// Where the text of a finding begins.
const INDENT: usize = 24;

pub(crate) async fn run(
    arguments: &DoctorArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let notices = output.notices();
    let doctor = Doctor {
        version: env!("CARGO_PKG_VERSION"),
        python: arguments.python.as_deref(),
        workspace,
        fix: arguments.fix,
        notices: &*notices,
    };
    let mut spinner: Option<ProgressBar> = None;
    let report = doctor
        .check(|event| match event {
            // With `--fix` the tools show their own progress.
            DoctorEvent::Checking(what) if output.moves() && !arguments.fix => {
                spinner = Some(checking(&what));
            }
            DoctorEvent::Checking(_) => {}
            DoctorEvent::Found(finding) => {
                // Dropped first, so that it is not drawn over.
                spinner = None;
                output.line(render(&finding).trim_end());
            }
        })
        .await;
    drop(spinner);
    output.line(render_models(&report.models).trim_end());
    if let Some(advice) = advice(&report) {
        output.line(advice);
    }
    output.details(&report);
    Ok(if report.ok { Exit::Ok } else { Exit::Failed })
}

fn checking(what: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg:.dim}") {
        spinner.set_style(style);
    }
    spinner.set_message(neutral(&format!("checking {what}")).into_owned());
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

fn render(finding: &DoctorFinding) -> String {
    let mark = match (finding.ok, &finding.fix) {
        (true, None) => paint("ok  ", Style::new().green()),
        (true, Some(_)) => paint("todo", Style::new().yellow()),
        (false, _) => paint("bad ", Style::new().red().bold()),
    };
    let mut text = format!("{mark} {:<18} {}\n", finding.name, finding.text);
    let more = [("hint", &finding.hint), ("--fix would", &finding.fix)];
    for (label, more) in more {
        let Some(more) = more else { continue };
        let lines = format!("{label}: {more}").replace("--fix would:", "--fix would");
        for line in lines.lines() {
            let _ = writeln!(text, "{:INDENT$}{line}", "");
        }
    }
    text
}

fn render_models(models: &[ReadyModel]) -> String {
    let mut text = format!("{} models\n", paint("ok  ", Style::new().green()));
    let width = models.iter().map(|model| model.model.len()).max();
    let width = width.unwrap_or_default().min(44);
    for model in models {
        let _ = writeln!(text, "     {:<width$}  {}", model.model, model.text);
    }
    text
}

fn advice(report: &DoctorReport) -> Option<&'static str> {
    let to_do = report.findings.iter().any(|finding| finding.fix.is_some());
    to_do.then_some("\nNothing was changed. `osmosis doctor --fix` does what is to do.")
}
