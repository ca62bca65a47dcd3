//! `osmosis eval regrade`: the samples of a run, graded again by the grader as it is now.

mod flips;

use std::sync::Arc;

use camino::Utf8PathBuf;
use osmosis_core::config::ConfigSource;
use osmosis_engine::RunEnd;
use osmosis_run::eval::live_view::LiveView;
use osmosis_run::life::{FrontEnd, Lived, Work as _, live};
use osmosis_run::notices::Notices;
use osmosis_run::regrade::plan::{RegradePlan, RegradeRequest};
use osmosis_run::regrade::regrading::Regrading;
use osmosis_run::regrade::source::Source;
use osmosis_run::reports::{RegradeDryRun, RunReport};
use osmosis_run::stop_signals::OnTerminate;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::RunRecord;

use super::progress::{Progress, ProgressMode};
use super::report;
use crate::arguments::{RegradeArguments, ResumeArguments};
use crate::command_line;
use crate::error::Exit;
use crate::output::Output;
use crate::runs::{Pinned, RegradedFrom, given_name};
use crate::stop_signals::StopSignals;
use crate::workspace::{Workspace, WorkspaceChoice, absolute, read_config};

pub(crate) async fn regrade(
    arguments: RegradeArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let name = given_name(arguments.name.as_deref())?;
    let notices = output.notices();
    notices.step(format_args!("Checking {}", arguments.run));
    let given = arguments.config.as_deref().map(read_config).transpose()?;
    let beside = given.as_ref().and_then(|(path, _)| path.parent());
    let workspace = workspace.find(beside)?;
    let source = Source::open(&workspace, &arguments.run).await?;
    let config = match given {
        Some((path, text)) => ConfigSource::of_file(path, text),
        None => source.config(&workspace)?,
    };
    let asked = RegradeRequest {
        config,
        rows: arguments.rows,
        secrets_file: arguments.secrets.secrets_file,
        seed: arguments.seed,
    };
    let plan = RegradePlan::check(asked, workspace, source).await?;
    let regrading = Regrading {
        retry_failed: arguments.retry_failed,
        throughput: arguments.throughput.into(),
        probes: !arguments.watch.no_probe,
        ..Regrading::new(plan, name)?
    };
    let name = &regrading.name;
    if *name == regrading.plan.source.record.name {
        return Err(RunError::usage(
            RunErrorKind::Usage,
            format!("--name: `{name}` is the run itself"),
        )
        .hint("the grades are a run of their own, and need a name of their own"));
    }
    let command = RegradeCommand {
        regrading,
        copy_to: arguments.output,
        progress: arguments.watch.progress,
        output: *output,
        notices,
        fresh: arguments.fresh,
        again: "`--fresh`".to_owned(),
    };
    if arguments.dry_run {
        return command.dry_run().await;
    }
    command.run().await
}

/// Goes on with a run that `regrade` began.
pub(super) async fn resume(
    arguments: ResumeArguments,
    workspace: Workspace,
    record: &RunRecord,
    from: &RegradedFrom,
    output: &Output,
) -> Result<Exit, RunError> {
    let pinned = Pinned::read(&record.pinned)?;
    let source = Source::recorded(&workspace, &from.run).await?;
    // Only messages name it, the text is the run's own.
    let config_path = workspace.root.join("configs").join("eval").join("run.toml");
    let asked = RegradeRequest {
        config: ConfigSource::of_file(config_path, record.config_toml.clone()),
        rows: pinned.rows.clone(),
        secrets_file: arguments.secrets.secrets_file,
        seed: pinned.judge_seed().unwrap_or(0),
    };
    let plan = RegradePlan::check(asked, workspace, source).await?;
    let (name, source) = (record.name.as_str(), from.run.as_str());
    let command = ["eval", "regrade", source, "--name", name, "--fresh"];
    let again = format!("`{}`", command_line::suggest(&command, &plan.workspace));
    let command = RegradeCommand {
        regrading: Regrading {
            retry_failed: arguments.retry_failed,
            throughput: arguments.throughput.into(),
            probes: !arguments.watch.no_probe,
            ..Regrading::new(plan, Some(record.name.clone()))?
        },
        copy_to: arguments.output,
        progress: arguments.watch.progress,
        output: *output,
        notices: output.notices(),
        fresh: false,
        again,
    };
    command.run().await
}

/// A run that only grades, and what the command line wants of it.
struct RegradeCommand {
    regrading: Regrading,
    copy_to: Option<Utf8PathBuf>,
    progress: ProgressMode,
    output: Output,
    notices: Arc<dyn Notices>,
    /// An existing run of that name is archived.
    fresh: bool,
    /// What grades once more when it is complete.
    again: String,
}

impl RegradeCommand {
    async fn dry_run(&self) -> Result<Exit, RunError> {
        let stop = StopSignals::listen(OnTerminate::StopNow)?;
        self.progress()?;
        let checked = self.regrading.check(&stop, &self.notices).await?;
        let report = RegradeDryRun::of(checked, &self.regrading.plan);
        self.output.line(format_args!(
            "Everything is in order: {} rollouts of `{}`. Nothing was graded.",
            report.rollouts, report.regraded_from,
        ));
        self.output.operation("valid", &report);
        Ok(Exit::Ok)
    }

    async fn run(self) -> Result<Exit, RunError> {
        let stop = StopSignals::listen(OnTerminate::StopNow)?;
        let front = FrontEnd {
            stop: &stop,
            notices: Arc::clone(&self.notices),
            observer: Box::new(self.progress()?),
            resume: Some(self.resume_command()),
            fresh: self.fresh,
        };
        let Lived {
            end,
            report,
            already_complete,
        } = live(&self.regrading, front).await?;
        if already_complete {
            self.output.line(format_args!(
                "`{}` is already complete: nothing was graded. {} grades again.",
                self.regrading.name, self.again
            ));
        }
        if let Some(target) = &self.copy_to {
            self.regrading.folder.copy_results(&absolute(target)?)?;
        }
        let plan = &self.regrading.plan;
        self.output
            .line(report::render(&report, &plan.workspace, &self.output));
        if let Some(flips) = &report.flips {
            let source = &plan.source.record.name;
            self.output.line(flips::render(flips, source));
        }
        Ok(self.conclude(end, &report))
    }

    fn conclude(&self, end: RunEnd, report: &RunReport) -> Exit {
        let failed = report.infrastructure_failed();
        match end {
            RunEnd::Stopped { left } => {
                self.output.operation("interrupted", report);
                self.output.note(format_args!(
                    "Stopped with {left} rollouts left. Resume with:\n  {}",
                    self.resume_command()
                ));
                Exit::Interrupted
            }
            RunEnd::Complete if failed > 0 => {
                self.output.operation("incomplete", report);
                let plan = &self.regrading.plan;
                let source = plan.source.record.name.as_str();
                self.output.note(format_args!(
                    "{failed} rollouts failed for reasons outside the agent. Those that never got to a \
                     grade are run by:\n  {}\nThe others are graded again by:\n  {}",
                    command_line::suggest(&["eval", "resume", source], &plan.workspace),
                    self.resume_command()
                ));
                Exit::Incomplete
            }
            RunEnd::Complete => {
                self.output.operation("completed", report);
                Exit::Ok
            }
        }
    }

    /// The policy is not asked, so there is nothing to see of it.
    fn progress(&self) -> Result<Progress, RunError> {
        Progress::new(
            self.output,
            &self.progress,
            LiveView::default(),
            self.regrading.redactor(),
        )
    }

    fn resume_command(&self) -> String {
        command_line::suggest(
            &["eval", "resume", self.regrading.name.as_str()],
            &self.regrading.plan.workspace,
        )
    }
}
