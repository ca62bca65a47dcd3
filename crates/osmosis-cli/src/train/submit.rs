//! `osmosis train submit` and `train resume`: the whole job, from checks to report.

use std::sync::Arc;
use std::time::Instant;

use camino::Utf8Path;
use osmosis_core::{Redactor, RunName};
use osmosis_engine::{EngineOptions, Measuring, Stop};
use osmosis_gateway::Gateway;
use osmosis_policy::{EmbeddedModel, Processor, Sampler};
use osmosis_run::RunError;
use osmosis_run::notices::Notices;
use osmosis_run::reports::{Curve, TrainingReport, begun_on};
use osmosis_run::settings::{Throughput, Trackers};
use osmosis_store::{RunKind, RunStatus, Store};
use osmosis_train::{TrainEnd, TrainEvent, TrainParts, Trainer};
use osmosis_worker::WorkerPool;
use serde::Serialize;
use serde_json::{Value, json};

use super::plan::{Plan, PlannedModel, Request};
use super::report;
use super::view::TrainView;
use crate::arguments::{TrainResumeArguments, TrainSubmitArguments};
use crate::command_line;
use crate::error::Exit;
use crate::eval::submit::archive;
use crate::events::EventSink;
use crate::execution::{self, DriveSettings, SHUTDOWN_GRACE, pool_options};
use crate::judge::ReadyJudge;
use crate::output::Output;
use crate::policy::{self, TokenLimits};
use crate::prepared::Prepared;
use crate::run_folder::RunFolder;
use crate::run_log::RunLog;
use crate::runs::{Opened, Pinned, RunToOpen, fresh_name, given_name, record_of};
use crate::stop_signals::StopSignals;
use crate::tracking::{self, TrackedRun, TrackerKind};
use crate::workspace::{Workspace, read_config};

/// A kept sample passes from this reward on.
const PASS_THRESHOLD: f64 = 1.0;

pub(crate) async fn submit(
    arguments: TrainSubmitArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let (config_path, config_text) = read_config(&arguments.config)?;
    let name = given_name(arguments.name.as_deref())?;
    let request = Request {
        config_path,
        config_text,
        secrets_file: arguments.secrets.secrets_file,
        rows_not_compared: false,
    };
    let plan: Plan = Plan::check(request, workspace)?;
    let mut job = Job::new(plan, name, *output)?;
    job.throughput = arguments.throughput.into();
    job.tensorboard = arguments.tensorboard;
    job.trackers = arguments.log.into();
    if arguments.dry_run {
        return job.dry_run().await;
    }
    if arguments.fresh {
        archive(&job.folder, &job.plan.workspace, output)?;
    }
    Box::pin(job.run_and_tell()).await
}

pub(crate) async fn resume(
    arguments: TrainResumeArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = Workspace::find(workspace, None)?;
    let folder = RunFolder::existing(&workspace, RunKind::Training, &arguments.run)?;
    let record = record_of(&folder, &arguments.run).await?;
    let request = Request {
        // Where the config was; only messages name it, the text is the run's own.
        config_path: workspace
            .root
            .join("configs")
            .join("training")
            .join("run.toml"),
        config_text: record.config_toml.clone(),
        secrets_file: arguments.secrets.secrets_file,
        rows_not_compared: Pinned::read(&record.pinned)?
            .remembered
            .rows_compared
            .is_none(),
    };
    let plan: Plan = Plan::check(request, Some(&workspace.root))?;
    let mut job = Job::new(plan, Some(record.name), *output)?;
    job.throughput = arguments.throughput.into();
    job.tensorboard = arguments.tensorboard;
    job.trackers = arguments.log.into();
    Box::pin(job.run_and_tell()).await
}

/// One training run.
#[derive(Debug)]
pub(crate) struct Job<M = EmbeddedModel> {
    pub(crate) plan: Plan<M>,
    pub(crate) name: RunName,
    pub(crate) folder: RunFolder,
    pub(crate) throughput: Throughput,
    tensorboard: bool,
    trackers: Trackers,
    pub(super) output: Output,
    pub(super) notices: Arc<dyn Notices>,
}

/// How a training run ended, with its numbers.
#[derive(Debug)]
pub(crate) struct Trained {
    pub(crate) end: TrainEnd,
    pub(crate) report: TrainingReport,
}

impl<M: PlannedModel> Job<M> {
    /// A run of this plan, under a new name unless one is given.
    pub(crate) fn new(
        plan: Plan<M>,
        name: Option<RunName>,
        output: Output,
    ) -> Result<Self, RunError> {
        let name = if let Some(name) = name {
            name
        } else {
            let stem = plan.request.config_path.file_stem().unwrap_or("train");
            fresh_name(stem, &plan.workspace, RunKind::Training)?
        };
        Ok(Self {
            folder: RunFolder::of(&plan.workspace, RunKind::Training, &name),
            plan,
            name,
            throughput: Throughput::default(),
            tensorboard: false,
            trackers: Trackers::default(),
            output,
            notices: output.notices(),
        })
    }

    pub(super) async fn prepare(&self) -> Result<Prepared, RunError> {
        let python = self.throughput.python.as_deref();
        self.plan.code.prepare(python, &*self.notices).await
    }

    /// Has the workflow say whether the rows will do, before there is a run.
    pub(super) async fn ask_workflow(&self, prepared: &Prepared) -> Result<(), RunError> {
        let mut display = EventSink::start();
        let pool = self.start_workers(prepared, &display).await?;
        let fit = self.plan.check_for(pool.manifest());
        pool.shut_down(SHUTDOWN_GRACE).await;
        // The display ends when nobody is left to tell it anything.
        drop(pool);
        display.finish().await;
        fit
    }

    pub(super) async fn start_workers(
        &self,
        prepared: &Prepared,
        display: &EventSink<TrainEvent>,
    ) -> Result<WorkerPool, RunError> {
        let options = pool_options(
            &self.throughput,
            self.max_in_flight(),
            self.plan.config.workers.isolation,
        );
        let events = display.worker_events();
        self.plan
            .code
            .start_workers(prepared, options, events)
            .await
    }

    pub(super) fn max_in_flight(&self) -> u32 {
        self.throughput
            .max_in_flight
            .unwrap_or_else(|| self.plan.default_in_flight())
    }

    pub(super) fn redactor(&self) -> Redactor {
        let secrets = self.plan.code.secrets.iter().map(|(_, value)| value);
        let of_judge = self.plan.judge.iter().flat_map(ReadyJudge::secrets);
        let of_model = self.plan.model.secrets();
        Redactor::new(secrets.chain(of_judge).chain(of_model).cloned())
    }

    pub(super) async fn open_store(&self, pinned: &Pinned) -> Result<Opened, RunError> {
        RunToOpen {
            folder: &self.folder,
            name: &self.name,
            kind: RunKind::Training,
            config_text: &self.plan.request.config_text,
            pinned,
            // The weights depend on earlier results as they are; the trainer retries what it may.
            run_again: &[],
        }
        .open()
        .await
    }

    pub(super) fn engine_options(&self) -> EngineOptions {
        let training = &self.plan.config.training;
        let settings = DriveSettings {
            max_in_flight: self.max_in_flight(),
            agent_limit: training.agent_timeout(),
            grade_limit: training.grader_timeout(),
            pass_threshold: PASS_THRESHOLD,
            reward_range: training.reward_range,
            model_errors: training.model_errors,
            measuring: Measuring::Nothing,
            redactor: self.redactor(),
        };
        execution::engine_options(settings, &self.folder)
    }
}

impl Job {
    async fn dry_run(&self) -> Result<Exit, RunError> {
        let signals = StopSignals::listen()?;
        let display = EventSink::start();
        let prepared = signals.unless_stopped(self.prepare()).await?;
        let pool = signals
            .unless_stopped(self.start_workers(&prepared, &display))
            .await?;
        let manifest = pool.manifest().clone();
        pool.shut_down(SHUTDOWN_GRACE).await;
        self.plan.check_for(&manifest)?;
        self.plan
            .code
            .tell(&manifest, &self.plan.amount(), &*self.notices);
        let (rows, held_out) = self.plan.row_counts();
        self.output.line(format_args!(
            "Everything is in order: {rows} rows to train on, {held_out} held out. Nothing was run."
        ));
        self.output.operation(
            "valid",
            &json!({
                "rows": rows,
                "held_out": held_out,
                "parameters": self.plan.model.config.parameters(),
                "workflow": manifest.workflow,
                "grader": manifest.grader,
                "warnings": manifest.warnings,
                "program": prepared.program(),
                "withheld_variables": self.plan.code.withheld.0,
            }),
        );
        Ok(Exit::Ok)
    }

    async fn run_and_tell(self) -> Result<Exit, RunError> {
        let trained = self.run().await?;
        self.output
            .line(report::render(&trained.report, &self.plan.workspace));
        Ok(self.conclude(&trained, &trained.report))
    }

    /// Says how it ended.
    pub(crate) fn conclude(&self, trained: &Trained, resource: &impl Serialize) -> Exit {
        match trained.end {
            TrainEnd::Complete { .. } => {
                self.output.operation("completed", resource);
                Exit::Ok
            }
            TrainEnd::NothingToLearn { steps, .. } => {
                self.output.operation("completed", resource);
                self.output.note(format_args!(
                    "Ended after step {steps}: there is nothing more to learn from these rewards."
                ));
                Exit::Ok
            }
            TrainEnd::Stopped { steps } => {
                self.output.operation("interrupted", resource);
                self.output.note(format_args!(
                    "Stopped after step {steps}. Resume with:\n  {}",
                    self.resume_command()
                ));
                Exit::Interrupted
            }
        }
    }

    /// The same weights, bit for bit, are promised on one kind of processor alone.
    fn compare_processors(&self, before: &str, here: &str) {
        if before != here {
            tracing::warn!(before, here, "resumed on another kind of processor");
            self.output.warn(format_args!(
                "this run was begun on another kind of processor (`{before}`; here: `{here}`): it goes on, \
                 but its weights will not be bit for bit what one kind alone would have given"
            ));
        }
    }

    /// Trains from where the run stands to its end, and writes the run's files.
    pub(crate) async fn run(&self) -> Result<Trained, RunError> {
        let signals = StopSignals::listen()?;
        let prepared = signals.unless_stopped(self.prepare()).await?;
        if self.plan.depends_on_workflow() {
            signals.unless_stopped(self.ask_workflow(&prepared)).await?;
        }
        // The trainer writes TensorBoard's files itself, with the steps of a resume in order.
        let mut elsewhere = self.trackers.clone();
        elsewhere
            .kinds
            .retain(|kind| *kind != TrackerKind::Tensorboard);
        let trackers = tracking::Ready::check(&elsewhere, prepared.interpreter());
        let trackers = signals.unless_stopped(trackers).await?;
        let pinned = self.plan.pinned(prepared.digest())?;
        let Opened { store, resumed } = self.open_store(&pinned).await?;
        if resumed && let Some(before) = begun_on(&*store).await? {
            self.compare_processors(&before, &Processor::here().to_string());
        }
        let so_far = Curve::of(&*store).await?;
        let mut display = EventSink::start();
        let log = RunLog::open(&self.folder.logs(), self.redactor(), self.plan.config.logs)?;
        display.open(log, Box::new(TrainView::new(self.output, &so_far)));

        let tracked = TrackedRun {
            name: self.name.as_str(),
            kind: RunKind::Training,
            folder: &self.folder.path,
            shared_folder: self.plan.workspace.root.join(".osmosis"),
            project: self.plan.config.experiment.rollout.as_str(),
            facts: pinned.facts(),
        };
        let tracking = trackers.begin(&tracked, &store, &self.notices).await;
        let began = Instant::now();
        let driven = self.drive(&signals, &prepared, &store, &display).await;
        display.finish().await;
        let end = match driven {
            Ok(end) => end,
            Err(error) => {
                tracking.finish(&Value::Null, false).await;
                // Closing makes what was recorded whole; the first error is the one to tell.
                let _ = store.set_status(RunStatus::Interrupted).await;
                let _ = store.close().await;
                return Err(command_line::with_resume_hint(
                    error,
                    &self.resume_command(),
                ));
            }
        };
        let status = match end {
            TrainEnd::Complete { .. } | TrainEnd::NothingToLearn { .. } => RunStatus::Finished,
            TrainEnd::Stopped { .. } => RunStatus::Interrupted,
        };
        store.set_status(status).await?;
        let took = began.elapsed();
        let report = TrainingReport::of(&*store, &self.name, &self.folder)
            .await?
            .ran_here(resumed, took)
            .with_withheld(&self.plan.code.withheld);
        self.folder.write_index(&*store).await?;
        self.folder.write_metrics(&report)?;
        report::write_curve(&report)?;
        let complete = status == RunStatus::Finished;
        tracking.finish(&report, complete).await;
        store.close().await?;
        Ok(Trained { end, report })
    }

    /// Trains. Whatever happens, workers, gateway and sampler are gone afterwards.
    async fn drive(
        &self,
        signals: &StopSignals,
        prepared: &Prepared,
        store: &Arc<dyn Store>,
        display: &EventSink<TrainEvent>,
    ) -> Result<TrainEnd, RunError> {
        let plan = self.plan.train_plan()?;
        let workers = Arc::new(
            signals
                .unless_stopped(self.start_workers(prepared, display))
                .await?,
        );
        self.plan
            .code
            .tell(workers.manifest(), &self.plan.amount(), &*self.notices);
        let served = self.serve_policy(store).await;
        let (gateway, sampler) = match served {
            Ok(served) => served,
            Err(error) => {
                workers.shut_down(SHUTDOWN_GRACE).await;
                return Err(error);
            }
        };
        let parts = TrainParts {
            store: Arc::clone(store),
            gateway: Arc::clone(&gateway),
            workers: Arc::clone(&workers),
            model: self.plan.model.clone(),
            sampler: Arc::clone(&sampler),
            engine: self.engine_options(),
            folder: self.folder.path.clone(),
            tensorboard: self.tensorboard
                || self.trackers.kinds.contains(&TrackerKind::Tensorboard),
        };
        let stop = Stop {
            drain: signals.drain.clone(),
            now: signals.now.clone(),
        };
        let end = match Trainer::open(plan, parts).await {
            Ok(mut trainer) => trainer.run(&stop, display.run_events()).await,
            Err(error) => Err(error),
        };
        workers.shut_down(SHUTDOWN_GRACE).await;
        gateway.shut_down(SHUTDOWN_GRACE).await;
        sampler.shut_down();
        Ok(end?)
    }

    /// The model behind a gateway whose `[sampling]` wins over what agents ask for: training needs to
    /// know the distribution that tokens were drawn from.
    async fn serve_policy(
        &self,
        store: &Arc<dyn Store>,
    ) -> Result<(Arc<Gateway>, Arc<Sampler>), RunError> {
        let training = &self.plan.config.training;
        let limits = TokenLimits {
            prompt: training.max_prompt_length as usize,
            response: training.max_response_length as usize,
        };
        let model_path = &self.plan.config.experiment.model_path;
        let (policy, sampler) =
            policy::sampled(model_path, &self.plan.model, self.plan.seed(), Some(limits))?;
        let sampling = execution::sampling(self.plan.config.sampling, true);
        match execution::start_gateway(None, sampling, &policy, store).await {
            Ok(gateway) => {
                if let Some(judge) = &self.plan.judge {
                    judge.serve_at(&gateway);
                }
                Ok((Arc::new(gateway), sampler))
            }
            Err(error) => {
                sampler.shut_down();
                Err(error)
            }
        }
    }

    pub(crate) fn resume_command(&self) -> String {
        command_line::suggest(
            &["train", "resume", self.name.as_str()],
            &self.plan.workspace,
        )
    }
}
