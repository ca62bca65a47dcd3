//! `osmosis eval regrade`: the samples of a run, graded again by the grader as it is now.

mod flips;

use std::sync::Arc;
use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{OutcomeKind, Redactor, RunName};
use osmosis_engine::{Engine, EngineOptions, Recorded, RunEnd, RunEvent, Stop};
use osmosis_gateway::{Gateway, Policy, Sampling, ScriptedPolicy};
use osmosis_run::eval::live_view::LiveView;
use osmosis_run::notices::Notices;
use osmosis_run::regrade::plan::{Asked, RegradePlan};
use osmosis_run::regrade::source::Source;
use osmosis_run::reports::{FlipsReport, RunReport};
use osmosis_run::settings::Throughput;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{RunKind, RunRecord, RunStatus, Store};
use osmosis_worker::{PoolOptions, WorkerPool};
use serde_json::json;

use super::probe::probe;
use super::progress::Progress;
use super::report;
use super::submit::{DEFAULT_MAX_IN_FLIGHT, archive};
use crate::arguments::{RegradeArguments, ResumeArguments, WatchArguments};
use crate::command_line;
use crate::error::Exit;
use crate::events::EventSink;
use crate::execution::{self, DriveSettings, SHUTDOWN_GRACE, pool_options};
use crate::judge::ReadyJudge;
use crate::output::Output;
use crate::prepared::Prepared;
use crate::run_folder::RunFolder;
use crate::run_log::RunLog;
use crate::runs::{Opened, Pinned, RegradedFrom, RunToOpen, fresh_name, given_name, record_of};
use crate::stop_signals::StopSignals;
use crate::workspace::{Workspace, absolute, read_config};

pub(crate) async fn regrade(
    arguments: RegradeArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let name = given_name(arguments.name.as_deref())?;
    let given = arguments.config.as_deref().map(read_config).transpose()?;
    let beside = given.as_ref().and_then(|(path, _)| path.parent());
    let workspace = Workspace::find(workspace, beside)?;
    let source = Source::open(&workspace, &arguments.run).await?;
    let (config_path, config_text) = match given {
        Some(given) => given,
        None => source.config(&workspace)?,
    };
    let asked = Asked {
        config_path,
        config_text,
        rows: arguments.rows,
        secrets_file: arguments.secrets.secrets_file,
        seed: arguments.seed,
    };
    let plan = RegradePlan::check(asked, workspace, source).await?;
    let name = match name {
        Some(name) => name,
        None => fresh_name(&arguments.run, &plan.workspace, RunKind::Evaluation)?,
    };
    if name == plan.source.record.name {
        return Err(RunError::usage(
            RunErrorKind::Usage,
            format!("--name: `{name}` is the run itself"),
        )
        .hint("the grades are a run of their own, and need a name of their own"));
    }
    let job = Job {
        folder: RunFolder::of(&plan.workspace, RunKind::Evaluation, &name),
        plan,
        name,
        retry_failed: arguments.retry_failed,
        throughput: arguments.throughput.into(),
        copy_to: arguments.output,
        watch: arguments.watch,
        output: *output,
        notices: output.notices(),
    };
    if arguments.dry_run {
        return job.dry_run().await;
    }
    if arguments.fresh {
        archive(&job.folder, &job.plan.workspace, output)?;
    }
    job.run().await
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
    let source = Source::open(&workspace, &from.run).await?;
    let asked = Asked {
        // Only messages name it, the text is the run's own.
        config_path: workspace.root.join("configs").join("eval").join("run.toml"),
        config_text: record.config_toml.clone(),
        rows: pinned.rows.clone(),
        secrets_file: arguments.secrets.secrets_file,
        seed: pinned.judge_seed().unwrap_or(0),
    };
    let plan = RegradePlan::check(asked, workspace, source).await?;
    let job = Job {
        folder: RunFolder::of(&plan.workspace, RunKind::Evaluation, &record.name),
        plan,
        name: record.name.clone(),
        retry_failed: arguments.retry_failed,
        throughput: arguments.throughput.into(),
        copy_to: arguments.output,
        watch: arguments.watch,
        output: *output,
        notices: output.notices(),
    };
    job.run().await
}

/// One run to be graded again.
struct Job {
    plan: RegradePlan,
    name: RunName,
    folder: RunFolder,
    retry_failed: bool,
    throughput: Throughput,
    copy_to: Option<Utf8PathBuf>,
    watch: WatchArguments,
    output: Output,
    notices: Arc<dyn Notices>,
}

impl Job {
    async fn dry_run(&self) -> Result<Exit, RunError> {
        let signals = StopSignals::listen()?;
        self.progress()?;
        let display = EventSink::start();
        signals.unless_stopped(self.probe()).await?;
        let prepared = signals.unless_stopped(self.prepare()).await?;
        let starting = self.start_workers(&prepared, &display);
        let workers = signals.unless_stopped(starting).await?;
        workers.shut_down(SHUTDOWN_GRACE).await;
        let pinned = self.plan.pinned(prepared.digest())?;
        self.plan.tell_changes(&pinned, &*self.notices);
        let rollouts = self.plan.rollouts;
        self.output.line(format_args!(
            "Everything is in order: {rollouts} rollouts of `{}`. Nothing was graded.",
            self.plan.source.record.name,
        ));
        let manifest = workers.manifest();
        self.output.operation(
            "valid",
            &json!({
                "regraded_from": self.plan.source.record.name,
                "rollouts": rollouts,
                "grader": manifest.grader,
                "warnings": manifest.warnings,
                "changes": self.plan.changes(&pinned),
            }),
        );
        Ok(Exit::Ok)
    }

    async fn run(self) -> Result<Exit, RunError> {
        let signals = StopSignals::listen()?;
        let progress = self.progress()?;
        let mut display = EventSink::start();
        signals.unless_stopped(self.probe()).await?;
        let prepared = signals.unless_stopped(self.prepare()).await?;
        let pinned = self.plan.pinned(prepared.digest())?;
        if self.folder.exists() {
            let there = record_of(&self.folder, self.name.as_str()).await?;
            Pinned::read(&there.pinned)?.check(&pinned, self.name.as_str())?;
        }
        // Before anything is written: a rollout that grades itself leaves no empty run behind.
        let starting = self.start_workers(&prepared, &display);
        let workers = Arc::new(signals.unless_stopped(starting).await?);
        let Opened { store, resumed } = match self.open_store(&pinned).await {
            Ok(opened) => opened,
            Err(error) => {
                workers.shut_down(SHUTDOWN_GRACE).await;
                return Err(error);
            }
        };
        let log = RunLog::open(&self.folder.logs(), self.redactor(), self.plan.config.logs)?;
        display.open(log, Box::new(progress));
        self.plan.tell_changes(&pinned, &*self.notices);
        self.plan
            .code
            .tell(workers.manifest(), &self.amount(), &*self.notices);

        let began = Instant::now();
        let driven = self.drive(&workers, &store, &signals, &display).await;
        workers.shut_down(SHUTDOWN_GRACE).await;
        // The display ends when nobody is left who could tell it something.
        drop(workers);
        display.finish().await;
        let end = match driven {
            Ok(end) => end,
            Err(error) => {
                // Closing makes what was recorded whole; the first error is the one to tell.
                let _ = store.close().await;
                return Err(command_line::with_resume_hint(
                    error,
                    &self.resume_command(),
                ));
            }
        };
        let status = match end {
            RunEnd::Complete => RunStatus::Finished,
            RunEnd::Stopped { .. } => RunStatus::Interrupted,
        };
        store.set_status(status).await?;
        let took = began.elapsed();
        let report = RunReport::of(&*store, &self.name, &self.folder)
            .await?
            .ran_here(resumed, took)
            .with_withheld(Some(&self.plan.code.withheld));
        let source = &self.plan.source;
        let flips = FlipsReport::write(&*source.store, &*store, &self.folder).await?;
        let flips_text = flips::render(&flips, &source.record.name);
        let report = report.with_flips(self.plan.changes(&pinned), flips);
        self.folder.write_index(&*store).await?;
        self.folder.write_metrics(&report)?;
        store.close().await?;
        if let Some(target) = &self.copy_to {
            self.folder.copy_results(&absolute(target)?)?;
        }
        self.output
            .line(report::render(&report, &self.plan.workspace));
        self.output.line(flips_text);
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
                let source = self.plan.source.record.name.as_str();
                self.output.note(format_args!(
                    "{failed} rollouts failed for reasons outside the agent. Those that never got to a \
                     grade are run by:\n  {}\nThe others are graded again by:\n  {}",
                    command_line::suggest(&["eval", "resume", source], &self.plan.workspace),
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

    async fn prepare(&self) -> Result<Prepared, RunError> {
        let python = self.throughput.python.as_deref();
        self.plan.code.prepare(python, &*self.notices).await
    }

    async fn start_workers(
        &self,
        prepared: &Prepared,
        display: &EventSink<RunEvent>,
    ) -> Result<WorkerPool, RunError> {
        let options = pool_options(
            &self.throughput,
            self.max_in_flight(),
            self.plan.config.workers.isolation,
        );
        let options = PoolOptions {
            // Nothing runs but graders.
            agent_workers: 1,
            grader_workers: options.agent_workers,
            ..options
        };
        let events = display.worker_events();
        let code = &self.plan.code;
        let workers = code.start_workers(prepared, options, events).await?;
        if workers.manifest().grader.is_none() {
            let workflow = workers.manifest().workflow.name.clone();
            workers.shut_down(SHUTDOWN_GRACE).await;
            return Err(RunError::failed(
                RunErrorKind::NoGrader,
                format!(
                    "`{workflow}` is its own grader: there is none that could grade its samples again"
                ),
            )
            .hint("a changed reward needs new rollouts: `osmosis eval submit CFG`"));
        }
        Ok(workers)
    }

    async fn drive(
        &self,
        workers: &Arc<WorkerPool>,
        store: &Arc<dyn Store>,
        signals: &StopSignals,
        display: &EventSink<RunEvent>,
    ) -> Result<RunEnd, RunError> {
        let counts = store.counts().await?;
        if counts.queued + counts.leased == 0 {
            return Ok(RunEnd::Complete);
        }
        let gateway = Arc::new(self.start_gateway(store).await?);
        let recorded = Recorded {
            store: Arc::clone(&self.plan.source.store),
            artifacts_root: self.plan.source.folder.artifacts(),
        };
        let engine = Engine::for_regrade(
            recorded,
            Arc::clone(store),
            Arc::clone(&gateway),
            Arc::clone(workers),
            self.engine_options(),
            display.run_events(),
        );
        let stop = Stop {
            drain: signals.drain.clone(),
            now: signals.now.clone(),
        };
        let end = engine.run(&stop).await;
        gateway.shut_down(SHUTDOWN_GRACE).await;
        Ok(end?)
    }

    /// A gateway for the judge alone: no key is ever made that opens a policy.
    async fn start_gateway(&self, store: &Arc<dyn Store>) -> Result<Gateway, RunError> {
        const NOBODY: &str = "[[reply]]\ntext = 'A run that only grades has no policy.'\n";
        let nobody = ScriptedPolicy::parse(Utf8Path::new("regrade"), NOBODY)
            .map_err(|errors| RunError::failed(RunErrorKind::Internal, errors.to_string()))?;
        let nobody: Arc<dyn Policy> = Arc::new(nobody);
        let gateway = execution::start_gateway(None, Sampling::default(), &nobody, store).await?;
        if let Some(judge) = &self.plan.judge {
            judge.serve_at(&gateway);
        }
        Ok(gateway)
    }

    fn engine_options(&self) -> EngineOptions {
        let evaluation = &self.plan.config.evaluation;
        let in_flight = self.max_in_flight();
        let settings = DriveSettings::of_evaluation(evaluation, in_flight, self.redactor());
        execution::engine_options(settings, &self.folder)
    }

    fn max_in_flight(&self) -> u32 {
        self.throughput
            .max_in_flight
            .or(self.plan.config.evaluation.batch_size)
            .unwrap_or(DEFAULT_MAX_IN_FLIGHT)
    }

    fn amount(&self) -> String {
        format!(
            "{} rollouts of {}",
            self.plan.rollouts, self.plan.source.record.name
        )
    }

    /// Whether the judge answers, when there is one to be asked.
    async fn probe(&self) -> Result<(), RunError> {
        if let Some(judge) = self.plan.judge.as_ref().and_then(ReadyJudge::server)
            && !self.watch.no_probe
        {
            probe(&judge, &self.redactor(), &*self.notices).await?;
        }
        Ok(())
    }

    /// The policy is not asked, so there is nothing to see of it.
    fn progress(&self) -> Result<Progress, RunError> {
        Progress::new(
            self.output,
            &self.watch.progress,
            LiveView::default(),
            self.redactor(),
        )
    }

    fn redactor(&self) -> Redactor {
        let secrets = self.plan.code.secrets.iter().map(|(_, value)| value);
        let of_judge = self.plan.judge.iter().flat_map(ReadyJudge::secrets);
        Redactor::new(secrets.chain(of_judge).cloned())
    }

    async fn open_store(&self, pinned: &Pinned) -> Result<Opened, RunError> {
        let mut run_again = vec![OutcomeKind::InfrastructureFailed, OutcomeKind::Cancelled];
        if self.retry_failed {
            run_again.extend([OutcomeKind::TimedOut, OutcomeKind::Ungraded]);
        }
        let opened = RunToOpen {
            folder: &self.folder,
            name: &self.name,
            kind: RunKind::Evaluation,
            config_text: &self.plan.asked.config_text,
            pinned,
            run_again: &run_again,
        }
        .open()
        .await?;
        if opened.store.counts().await?.total() < self.plan.rollouts {
            self.plan.enqueue(&*opened.store).await?;
        }
        Ok(opened)
    }

    fn resume_command(&self) -> String {
        command_line::suggest(
            &["eval", "resume", self.name.as_str()],
            &self.plan.workspace,
        )
    }
}
