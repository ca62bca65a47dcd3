//! `osmosis train submit` and `train resume`: from arguments to a run, and from its report to an exit code.

use std::sync::Arc;

use osmosis_core::config::{ConfigSource, SupervisedConfig};
use osmosis_run::figures::{bytes_text, seconds_text};
use osmosis_run::life::{FrontEnd, Lived, live};
use osmosis_run::notices::Notices;
use osmosis_run::reports::{Curve, TrainDryRun};
use osmosis_run::stop_signals::OnTerminate;
use osmosis_run::train::plan::{Plan, Request};
use osmosis_run::train::training::Training;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::RunKind;
use osmosis_train::EndCause;
use serde::Serialize;

use super::view::TrainView;
use super::{report, sft};
use crate::arguments::{TrainResumeArguments, TrainSubmitArguments};
use crate::command_line;
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, given_name, record_of};
use crate::stop_signals::StopSignals;
use crate::view::ViewBeside;
use crate::workspace::WorkspaceChoice;

pub(crate) async fn submit(
    arguments: TrainSubmitArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let notices = output.notices();
    notices.step(format_args!("Checking {}", arguments.config.place()));
    let config = arguments.source()?;
    let by_flags = config.file.is_none();
    let name = given_name(arguments.name.as_deref())?;
    let request = Request {
        config,
        secrets_file: arguments.secrets.secrets_file,
        rows_not_compared: false,
    };
    let checked: Result<Plan, RunError> = Plan::check(request, workspace, &*notices).await;
    let plan = checked.map_err(|error| {
        if by_flags && error.kind() == RunErrorKind::ConfigInvalid {
            return error.into_usage();
        }
        error
    })?;
    let mut training = Training::new(plan, name)?;
    training.throughput = arguments.throughput.into();
    training.tensorboard = arguments.tensorboard;
    training.trackers = arguments.log.into();
    training.nodes = arguments.sharing.into();
    training.nodes.check_for(&training.plan.workspace)?;
    if arguments.dry_run {
        return dry_run(&training, &notices, output).await;
    }
    let start = Start {
        notices,
        fresh: arguments.fresh,
    };
    let workspace = &training.plan.workspace;
    let name = training.name.as_str();
    let beside = ViewBeside::start(arguments.view, name, workspace, output).await?;
    let told = Box::pin(run_and_tell(&training, start, "`--fresh`", output)).await;
    ViewBeside::end(beside).await;
    told
}

pub(crate) async fn resume(
    arguments: TrainResumeArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = workspace.find(None)?;
    let folder = RunFolder::existing(&workspace, RunKind::Training, &arguments.run).await?;
    let record = record_of(&folder, &arguments.run).await?;
    if SupervisedConfig::is_meant(&record.config_toml) {
        return Box::pin(sft::resume(arguments, record, &workspace, output)).await;
    }
    let notices = output.notices();
    notices.step(format_args!("Checking {}", arguments.run));
    // Where the config was; only messages name it, the text is the run's own.
    let config_path = workspace.root.join("configs/training/run.toml");
    let request = Request {
        config: ConfigSource::of_file(config_path, record.config_toml.clone()),
        secrets_file: arguments.secrets.secrets_file,
        rows_not_compared: Pinned::read(&record.pinned)?
            .remembered
            .rows_compared
            .is_none(),
    };
    let plan: Plan = Plan::check(request, &workspace.chosen(), &*notices).await?;
    let again = format!(
        "The `train submit` that began it, with `--name {} --fresh`,",
        record.name
    );
    let mut training = Training::new(plan, Some(record.name))?;
    training.throughput = arguments.throughput.into();
    training.tensorboard = arguments.tensorboard;
    training.trackers = arguments.log.into();
    training.nodes = arguments.sharing.into();
    training.nodes.check_for(&training.plan.workspace)?;
    let start = Start {
        notices,
        fresh: false,
    };
    Box::pin(run_and_tell(&training, start, &again, output)).await
}

/// How a training is begun.
pub(crate) struct Start {
    pub(crate) notices: Arc<dyn Notices>,
    /// An existing run of that name is archived.
    pub(crate) fresh: bool,
}

async fn dry_run(
    training: &Training,
    notices: &Arc<dyn Notices>,
    output: &Output,
) -> Result<Exit, RunError> {
    let stop = StopSignals::listen(OnTerminate::StopNow)?;
    let checked = training.check(&stop, notices).await?;
    let report = TrainDryRun::of(checked, &training.plan)?;
    output.line(format_args!(
        "Everything is in order: {} rows to train on, {} held out. Nothing was run.",
        report.rows, report.held_out
    ));
    if let Some(disk) = &report.disk {
        output.line(format_args!(
            "Disk: {} per checkpoint, {} for the {} that {} steps leave.",
            bytes_text(disk.checkpoint_bytes),
            bytes_text(disk.kept_bytes),
            disk.checkpoints_kept,
            report.steps,
        ));
    }
    if let Some(memory) = &report.memory {
        output.line(format_args!(
            "Memory: {} for weights, optimizer, gradients and sampler; with the longest rows up to {} more for \
             activations and {} for KV caches.",
            bytes_text(memory.fixed_bytes),
            bytes_text(memory.activations_at_most_bytes),
            bytes_text(memory.kv_cache_at_most_bytes),
        ));
    }
    if let Some(time) = &report.time {
        output.line(format_args!(
            "Time: {:.0} tokens/s sampled and {:.0} tokens/s trained, measured now. A step takes up to {}, if every \
             rollout is one answer as long as the config allows; most are shorter. What agents and graders do \
             themselves comes on top.",
            time.sampled_tokens_per_second,
            time.trained_tokens_per_second,
            seconds_text(time.longest_step_s),
        ));
    }
    output.operation("valid", &report);
    Ok(Exit::Ok)
}

async fn run_and_tell(
    training: &Training,
    start: Start,
    again: &str,
    output: &Output,
) -> Result<Exit, RunError> {
    let trained = run(training, start, output).await?;
    if trained.already_complete {
        let name = &training.name;
        let ended = match trained.report.end.as_ref().filter(|end| end.is_early()) {
            Some(end) => format!("ended after step {} of {}", end.step, end.planned_steps),
            None => "is already complete".to_owned(),
        };
        output.line(format_args!(
            "`{name}` {ended}: nothing was run. {again} runs it again."
        ));
    }
    output.line(report::render(&trained.report, &training.plan.workspace));
    Ok(conclude(training, &trained, &trained.report, output))
}

/// Trains from where the run stands to its end, and shows it.
pub(crate) async fn run(
    training: &Training,
    start: Start,
    output: &Output,
) -> Result<Lived<Training>, RunError> {
    let stop = StopSignals::listen(OnTerminate::StopNow)?;
    let front = FrontEnd {
        stop: &stop,
        notices: start.notices,
        observer: Box::new(TrainView::new(*output, &Curve::default())),
        resume: Some(resume_command(training)),
        fresh: start.fresh,
    };
    let trained = live(training, front).await?;
    report::write_curve(&trained.report)?;
    Ok(trained)
}

/// Says how it ended.
pub(crate) fn conclude(
    training: &Training,
    trained: &Lived<Training>,
    resource: &impl Serialize,
    output: &Output,
) -> Exit {
    let no_update = trained.report.made_no_update();
    let end = &trained.end;
    match end.cause() {
        EndCause::FailedAlike { .. } => {
            output.operation("no_update", resource);
            Exit::Incomplete
        }
        EndCause::Complete | EndCause::NoVariance { .. } if no_update => {
            output.operation("no_update", resource);
            Exit::Incomplete
        }
        EndCause::Complete => {
            output.operation("completed", resource);
            Exit::Ok
        }
        // The report says why.
        EndCause::NoVariance { .. } => {
            output.operation("incomplete", resource);
            Exit::Incomplete
        }
        // A run that failed is told of by its error.
        EndCause::Stopped | EndCause::Failed { .. } => {
            output.operation("interrupted", resource);
            output.note(format_args!(
                "Stopped after step {}. Resume with:\n  {}",
                end.steps(),
                resume_command(training)
            ));
            Exit::Interrupted
        }
    }
}

fn resume_command(training: &Training) -> String {
    command_line::suggest(
        &["train", "resume", training.name.as_str()],
        &training.plan.workspace,
    )
}
