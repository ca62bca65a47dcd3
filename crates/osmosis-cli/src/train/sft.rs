//! `osmosis train sft`: from arguments to a run, and from its report to an exit code.

use std::fmt::Write as _;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use osmosis_core::config::ConfigSource;
use osmosis_run::RunError;
use osmosis_run::life::{FrontEnd, live};
use osmosis_run::notices::Notices;
use osmosis_run::reports::{SupervisedDryRun, SupervisedTrainingReport};
use osmosis_run::stop_signals::OnTerminate;
use osmosis_run::train::supervised_plan::CheckedSupervised;
use osmosis_run::train::supervised_training::SupervisedTraining;
use osmosis_store::RunRecord;
use osmosis_train::{EndCause, SupervisedEvent};

use crate::arguments::{TrainResumeArguments, TrainSftArguments};
use crate::command_line;
use crate::error::Exit;
use crate::events::Observer;
use crate::figures::{duration_text, number};
use crate::output::Output;
use crate::run_log::RunLog;
use crate::runs::given_name;
use crate::stop_signals::StopSignals;
use crate::terminal::neutral;
use crate::workspace::{Workspace, WorkspaceChoice};

/// Lines that a run prints at most where nothing moves, beside those of held-out losses.
const LINES: u64 = 100;

pub(super) async fn submit(
    arguments: TrainSftArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let notices = output.notices();
    notices.step(format_args!("Checking {}", arguments.config));
    let source = arguments.source()?;
    let name = given_name(arguments.name.as_deref())?;
    let plan = CheckedSupervised::check(source, workspace, &*notices).await?;
    if arguments.dry_run {
        let report = SupervisedDryRun::of(&plan);
        output.line(format_args!(
            "Everything is in order: {} conversations to train on, {} held out, {} tokens of the assistant. \
             Nothing was run.",
            report.rows, report.held_out, report.tokens
        ));
        output.operation("valid", &report);
        return Ok(Exit::Ok);
    }
    let mut training = SupervisedTraining::new(plan, name)?;
    training.tensorboard = arguments.tensorboard;
    training.trackers = arguments.log.into();
    run_and_tell(&training, notices, arguments.fresh, output).await
}

/// Goes on with a run that is one.
pub(super) async fn resume(
    arguments: TrainResumeArguments,
    record: RunRecord,
    workspace: &Workspace,
    output: &Output,
) -> Result<Exit, RunError> {
    let notices = output.notices();
    notices.step(format_args!("Checking {}", record.name));
    // Where the config was; only messages name it, the text is the run's own.
    let config_path = workspace.root.join("configs/sft/run.toml");
    let source = ConfigSource::of_file(config_path, record.config_toml);
    let plan = CheckedSupervised::check(source, &workspace.chosen(), &*notices).await?;
    let mut training = SupervisedTraining::new(plan, Some(record.name))?;
    training.tensorboard = arguments.tensorboard;
    training.trackers = arguments.log.into();
    run_and_tell(&training, notices, false, output).await
}

async fn run_and_tell(
    training: &SupervisedTraining,
    notices: Arc<dyn Notices>,
    fresh: bool,
    output: &Output,
) -> Result<Exit, RunError> {
    let stop = StopSignals::listen(OnTerminate::StopNow)?;
    let workspace = &training.plan.workspace;
    let resume = command_line::suggest(&["train", "resume", training.name.as_str()], workspace);
    let front = FrontEnd {
        stop: &stop,
        notices,
        observer: Box::new(SftView::new(*output)),
        resume: Some(resume.clone()),
        fresh,
    };
    let lived = Box::pin(live(training, front)).await?;
    if lived.already_complete {
        output.line(format_args!(
            "`{}` is already complete: nothing was run. `--fresh` runs it again.",
            training.name
        ));
    }
    output.line(render(&lived.report, workspace));
    let steps = lived.end.steps();
    Ok(match lived.end.cause() {
        EndCause::Complete => {
            output.operation("completed", &lived.report);
            Exit::Ok
        }
        EndCause::NoVariance { .. }
        | EndCause::FailedAlike { .. }
        | EndCause::Stopped
        | EndCause::Failed { .. } => {
            output.operation("interrupted", &lived.report);
            output.note(format_args!(
                "Stopped after step {steps}. Resume with:\n  {resume}"
            ));
            Exit::Interrupted
        }
    })
}

/// What a run came to, for people.
pub(super) fn render(report: &SupervisedTrainingReport, workspace: &Workspace) -> String {
    let mut text = format!("{}\n  steps       {}", report.run_name, report.steps);
    let mut line = |label: &str, curve: &[osmosis_run::reports::LossPoint]| {
        let (Some(first), Some(last)) = (curve.first(), curve.last()) else {
            return;
        };
        let _ = write!(
            text,
            "\n  {label:<11} {} at step {}, {} at step {}",
            number(first.loss),
            first.step,
            number(last.loss),
            last.step
        );
    };
    line("loss", &report.loss_curve);
    line("held out", &report.held_out_curve);
    if let Some(best) = &report.best {
        let (step, note) = (best.step, &best.note);
        let _ = write!(text, "\n  best        step {step} (`@best`), {note}");
    }
    let early = report.end.as_ref().filter(|end| end.is_early());
    if let Some(end) = early {
        let _ = write!(text, "\n  ended       {}", end.summary);
    }
    let _ = write!(text, "\n  tokens      {}", report.tokens);
    if report.duration_ms > 0 {
        let seconds = report.duration_ms as f64 / 1000.0;
        let _ = write!(text, "\n  time        {}", duration_text(seconds));
    }
    if let Some(last) = report.checkpoints.last() {
        let path = &last.path;
        let path = path.strip_prefix(&workspace.root).unwrap_or(path);
        let _ = write!(
            text,
            "\n  checkpoint  {path} (run:{}@{})",
            report.run_name, last.step
        );
    }
    text
}

/// The run as it goes: a bar on a terminal, lines elsewhere.
#[derive(Debug)]
struct SftView {
    output: Output,
    bar: Option<ProgressBar>,
    held_out: Option<f64>,
}

impl SftView {
    fn new(output: Output) -> Self {
        Self {
            output,
            bar: None,
            held_out: None,
        }
    }

    fn show_bar(&mut self) {
        if self.bar.is_some() || !self.output.moves() {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:24} {msg}  ETA {eta}") {
            bar.set_style(style.progress_chars("━╸ "));
        }
        self.bar = Some(bar);
    }

    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(neutral(text)),
            None => self.output.note(text),
        }
    }
}

fn text_of(event: &SupervisedEvent) -> String {
    match event {
        SupervisedEvent::Stepped { report, steps } => format!(
            "step {}/{steps}  loss {}  entropy {}  gradient {}  {} tokens in {:.1} s",
            report.step,
            number(report.loss),
            number(report.entropy),
            number(report.gradient_norm),
            report.tokens_trained,
            report.time_update
        ),
        SupervisedEvent::Measured { step, loss } => {
            format!("step {step}  held-out loss {}", number(loss.loss))
        }
        SupervisedEvent::Saved { step, folder } => {
            format!("checkpoint of step {step} is at {folder}")
        }
        SupervisedEvent::Warning { message } => format!("warning: {message}"),
    }
}

impl Observer<SupervisedEvent> for SftView {
    fn event(&mut self, event: &SupervisedEvent) {
        self.show_bar();
        match event {
            SupervisedEvent::Stepped { report, steps } => {
                if let Some(bar) = &self.bar {
                    bar.set_length(*steps);
                    bar.set_position(report.step);
                    let mut text =
                        format!("step {}/{steps}  loss {}", report.step, number(report.loss));
                    if let Some(held_out) = self.held_out {
                        let _ = write!(text, "  held out {}", number(held_out));
                    }
                    bar.set_message(neutral(&text).into_owned());
                } else if report.step.is_multiple_of(steps.div_ceil(LINES)) || report.step == *steps
                {
                    self.output.note(text_of(event));
                }
            }
            SupervisedEvent::Measured { loss, .. } => {
                self.held_out = Some(loss.loss);
                if self.bar.is_none() {
                    self.output.note(text_of(event));
                }
            }
            SupervisedEvent::Saved { step, .. } => tracing::info!(step, "checkpoint saved"),
            SupervisedEvent::Warning { .. } => self.say(&text_of(event)),
        }
    }

    fn log(&self, event: &SupervisedEvent, log: &mut RunLog) {
        log.run(&text_of(event));
    }

    fn tick(&mut self) {
        if let Some(bar) = &self.bar {
            bar.tick();
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
