//! `osmosis rollout run PROJECT --row N`: agent and grader on one row, in the foreground.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use camino::Utf8Path;
use osmosis_core::{Outcome, Phase};
use osmosis_run::eval::one_row::{RowEvent, RowRequest, RowRun};
use osmosis_run::reports::{RowRunReport, SampleDetails};
use osmosis_run::stop_signals::OnTerminate;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{CallPurpose, CallRecord};
use owo_colors::Style;

use crate::arguments::RowArguments;
use crate::command_line;
use crate::error::Exit;
use crate::figures::ms_text;
use crate::output::{Output, paint};
use crate::runs::{given_name, show};
use crate::stop_signals::StopSignals;
use crate::workspace::{Workspace, WorkspaceChoice};

/// Where what was said begins; the label stands before it.
const LABEL: usize = 12;

pub(crate) async fn run(
    arguments: RowArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    if arguments.pdb {
        check_terminal(output)?;
    }
    let request = RowRequest {
        project: project_name(&arguments.project),
        row: arguments.row,
        config: arguments.config,
        dataset: arguments.dataset,
        model: arguments.model,
        entrypoint: arguments.entrypoint,
        secrets_file: arguments.secrets.secrets_file,
        python: arguments.python,
        seed: arguments.seed,
        debugger: arguments.pdb,
        record: given_name(arguments.record.as_deref())?,
    };
    let row = RowRun::check(request, workspace, &*output.notices()).await?;
    let stop = StopSignals::listen(OnTerminate::StopNow)?;
    let printing = *output;
    let tell = Box::new(move |event: RowEvent| printing.line(told(&event).trim_end()));
    let report = row.run(&stop, output.notices(), tell).await?;
    output.line(render(&report, row.workspace()).trim_end());
    let outcome = report.rollout.outcome_details.as_ref();
    output.operation(
        outcome.map_or("interrupted", |outcome| outcome.kind().as_str()),
        &report,
    );
    Ok(match outcome {
        Some(Outcome::Scored { .. } | Outcome::Rejected { .. }) => Exit::Ok,
        Some(Outcome::Cancelled) | None => Exit::Interrupted,
        Some(
            Outcome::AgentFailed { .. }
            | Outcome::TimedOut { .. }
            | Outcome::Ungraded { .. }
            | Outcome::InfrastructureFailed { .. },
        ) => Exit::Failed,
    })
}

/// The name, or the folder of the project.
fn project_name(given: &str) -> String {
    let path = Utf8Path::new(given.trim_end_matches('/'));
    let inside = path.parent().and_then(Utf8Path::file_name) == Some("rollouts");
    match path.file_name() {
        Some(name) if inside => name.to_owned(),
        _ => given.to_owned(),
    }
}

fn check_terminal(output: &Output) -> Result<(), RunError> {
    if output.is_json() {
        let message = "`--pdb` and `--json` can't be used together";
        return Err(RunError::usage(RunErrorKind::Usage, message));
    }
    let streams = [
        ("standard input", std::io::stdin().is_terminal()),
        ("standard output", std::io::stdout().is_terminal()),
    ];
    match streams.iter().find(|(_, is_terminal)| !is_terminal) {
        None => Ok(()),
        Some((stream, _)) => Err(RunError::usage(
            RunErrorKind::Usage,
            format!("`--pdb` needs a terminal, and {stream} is none"),
        )
        .hint("run it in a terminal, without pipes; without `--pdb` the traceback is printed")),
    }
}

/// One event as people read it.
fn told(event: &RowEvent) -> String {
    let dim = Style::new().dimmed();
    match event {
        RowEvent::Row(body) => labelled("row", body, dim),
        RowEvent::Phase(phase) => {
            let title = match phase {
                Phase::Agent => "agent",
                Phase::Grade => "grader",
            };
            format!("\n{}", paint(title, Style::new().bold()))
        }
        RowEvent::Call { number, call } => {
            labelled(&format!("call {number}"), &call_text(call), dim)
        }
        RowEvent::Said { entry, .. } => {
            labelled(entry.speaker.as_str(), &entry.text, Style::new().cyan())
        }
        RowEvent::Branched { sample } => labelled(
            "branch",
            &format!("sample {sample} goes on from an earlier message"),
            dim,
        ),
        RowEvent::Printed(line) => labelled("printed", line, dim),
        RowEvent::Trouble(text) => labelled("trouble", text, Style::new().yellow()),
    }
}

fn labelled(label: &str, text: &str, style: Style) -> String {
    let label = paint(&format!("{label:>LABEL$}"), style);
    let mut lines = text.lines();
    let mut said = format!("{label}  {}", lines.next().unwrap_or_default());
    for line in lines {
        let _ = write!(said, "\n{:LABEL$}  {line}", "");
    }
    said
}

fn call_text(call: &CallRecord) -> String {
    let tokens = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let who = match call.purpose {
        CallPurpose::Policy => format!("sample {}", call.sample_id),
        CallPurpose::Judge => "judge".to_owned(),
        CallPurpose::Other => "other".to_owned(),
    };
    let mut text = format!(
        "{who} · {} · {} · {}+{} tokens · {}",
        call.upstream,
        call.status,
        tokens(call.prompt_tokens),
        tokens(call.completion_tokens),
        ms_text((call.done_at_ms - call.queued_at_ms) as f64),
    );
    if let Some(error) = &call.error {
        let _ = write!(text, " · {error}");
    }
    text
}

/// How it ended.
fn render(report: &RowRunReport, workspace: &Workspace) -> String {
    let details = &report.rollout;
    let bold = Style::new().bold();
    let mut text = format!("\n{}\n", paint("result", bold));
    for sample in &details.samples {
        let _ = writeln!(text, "{}", sample_text(sample));
    }
    let outcome = details.outcome_details.as_ref();
    let verdict = outcome.map_or_else(|| "interrupted".to_owned(), show::outcome_text);
    let effort = &details.effort;
    let _ = writeln!(
        text,
        "{}",
        labelled("outcome", &verdict, Style::new().cyan())
    );
    let durations = effort.durations;
    let numbers = format!(
        "{} model calls · {}+{} tokens · agent {} (model {}) · grader {}",
        effort.model_calls,
        effort.prompt_tokens,
        effort.completion_tokens,
        ms_text(durations.agent),
        ms_text(durations.model),
        ms_text(durations.grade),
    );
    let _ = writeln!(
        text,
        "{}",
        labelled("effort", &numbers, Style::new().dimmed())
    );
    if let Some(outcome) = outcome {
        show::push_failure(&mut text, outcome);
    }
    let kept = match &report.run_name {
        Some(name) => {
            let row = details.result.row_index.to_string();
            let command = ["eval", "show", name.as_str(), row.as_str(), "--calls"];
            format!("recorded: {}", command_line::suggest(&command, workspace))
        }
        None => "Nothing was recorded; `--record NAME` keeps a run.".to_owned(),
    };
    let _ = writeln!(text, "\n{kept}");
    text
}

fn sample_text(sample: &SampleDetails) -> String {
    let reward = show::reward_text(sample);
    let metrics = sample.metrics.as_ref();
    let metrics = metrics.map_or_else(String::new, |metrics| {
        format!(" · metrics {}", metrics.as_str())
    });
    labelled(
        "sample",
        &format!("{} · {reward}{metrics}", sample.id),
        Style::new().cyan(),
    )
}
