//! `osmosis eval submit` and `eval resume`: the whole job, from checks to report.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::frame::{Load, Manifest};
use osmosis_core::{JsonText, OutcomeKind, Redactor, RunName};
use osmosis_engine::{Engine, EngineOptions, RunEnd, Stop};
use osmosis_gateway::{Gateway, GatewayOptions, Sampling};
use osmosis_store::{RunKind, RunRecord, RunStatus, SqliteOptions, SqliteStore, Store};
use osmosis_worker::{Limits, PoolOptions, WorkerPool};
use serde_json::{Value, json};

use super::display::Display;
use super::pinned::Pinned;
use super::plan::{Plan, Request};
use super::report::Report;
use crate::arguments::{ResumeArguments, SubmitArguments, ThroughputArguments};
use crate::command_line;
use crate::error::{CliError, Exit, io};
use crate::output::Output;
use crate::prepared::Prepared;
use crate::run_folder::RunFolder;
use crate::run_log::RunLog;
use crate::stop_signals::StopSignals;
use crate::workspace::{Workspace, absolute};

const DEFAULT_MAX_IN_FLIGHT: u32 = 32;
const MOST_DEFAULT_WORKERS: usize = 8;
/// Importing an agent framework takes seconds; on a busy machine many.
const WORKER_START_LIMIT: Duration = Duration::from_mins(2);
/// From cancelling a task to killing the worker that does not let go of it.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_mins(1);
const MAX_FAILURES: u32 = 3;
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

pub(crate) async fn submit(
    arguments: SubmitArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, CliError> {
    let config_path = absolute(&arguments.config)?;
    let config_text = std::fs::read_to_string(&config_path).map_err(|error| CliError {
        exit: Exit::Usage,
        ..io(&config_path, &error)
    })?;
    let name = match &arguments.name {
        Some(name) => Some(
            RunName::new(name.as_str())
                .map_err(|error| CliError::usage("usage", format!("--name: {error}")))?,
        ),
        None => None,
    };
    let request = Request {
        config_path,
        config_text,
        rows: arguments.rows,
        limit: arguments.limit,
        secrets_file: arguments.secrets.secrets_file,
    };
    let plan = Plan::check(request, workspace)?;
    let name = match name {
        Some(name) => name,
        None => fresh_name(&plan)?,
    };
    let job = Job {
        folder: RunFolder::of_eval(&plan.workspace, &name),
        plan,
        name,
        retry_failed: arguments.retry_failed,
        throughput: arguments.throughput,
        copy_to: arguments.output,
        output: *output,
    };
    if arguments.dry_run {
        return job.dry_run().await;
    }
    if job.plan.ready.remote && !arguments.yes && !job.folder.exists() && output.can_ask() {
        confirm(&job.plan)?;
    }
    if arguments.fresh && job.folder.exists() {
        let archive = job.folder.put_away(&job.plan.workspace)?;
        output.note(format_args!(
            "The earlier run `{}` is now at {archive}",
            job.name
        ));
    }
    job.run().await
}

pub(crate) async fn resume(
    arguments: ResumeArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, CliError> {
    let workspace = Workspace::find(workspace, None)?;
    let folder = RunFolder::existing(&workspace, &arguments.run)?;
    let record = {
        let store = SqliteStore::open_read_only(&folder.path)?;
        store.run().await?
    };
    let record = record.ok_or_else(|| {
        CliError::failed(
            "run_damaged",
            format!("run `{}` was never begun", arguments.run),
        )
        .hint("submit it again under the same name")
    })?;
    let pinned = Pinned::read(&record.pinned)?;
    let text = |fact: &str| {
        pinned
            .0
            .get(fact)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let request = Request {
        // Where the config was; only messages name it, the text is the run's own.
        config_path: workspace.root.join("configs").join("eval").join("run.toml"),
        config_text: record.config_toml.clone(),
        rows: text("rows"),
        limit: pinned.0.get("evaluation.limit").and_then(Value::as_u64),
        secrets_file: arguments.secrets.secrets_file,
    };
    let plan = Plan::check(request, Some(&workspace.root))?;
    let job = Job {
        folder,
        plan,
        name: record.name,
        retry_failed: arguments.retry_failed,
        throughput: arguments.throughput,
        copy_to: arguments.output,
        output: *output,
    };
    job.run().await
}

/// One evaluation to be run.
struct Job {
    plan: Plan,
    name: RunName,
    folder: RunFolder,
    retry_failed: bool,
    throughput: ThroughputArguments,
    copy_to: Option<Utf8PathBuf>,
    output: Output,
}

impl Job {
    async fn dry_run(&self) -> Result<Exit, CliError> {
        let signals = StopSignals::listen()?;
        let display = Display::start(&self.output);
        let prepared = signals.unless_stopped(self.prepare()).await?;
        let pool = signals
            .unless_stopped(self.start_workers(&prepared, &display))
            .await?;
        let manifest = pool.manifest().clone();
        pool.shut_down(SHUTDOWN_GRACE).await;
        self.tell_manifest(&manifest);
        self.output.line(format_args!(
            "Everything is in order: {} rows × {} = {} rollouts. Nothing was run.",
            self.plan.rows,
            self.plan.config.evaluation.n,
            self.plan.rollouts()
        ));
        self.output.operation(
            "valid",
            &json!({
                "rows": self.plan.rows,
                "rollouts": self.plan.rollouts(),
                "workflow": manifest.workflow,
                "grader": manifest.grader,
                "warnings": manifest.warnings,
                "program": prepared.program(),
            }),
        );
        Ok(Exit::Ok)
    }

    async fn run(self) -> Result<Exit, CliError> {
        let signals = StopSignals::listen()?;
        let mut display = Display::start(&self.output);
        let prepared = signals.unless_stopped(self.prepare()).await?;
        let pinned = self.plan.pinned(prepared.digest())?;
        let (store, resumed) = self.open_store(&pinned).await?;
        display.attach(RunLog::open(&self.folder.logs(), self.redactor())?);

        let began = Instant::now();
        let driven = self.drive(&signals, &prepared, &store, &display).await;
        display.finish().await;
        let end = match driven {
            Ok(end) => end,
            Err(error) => {
                // Closing makes what was recorded whole; the first error is the one to tell.
                let _ = store.close().await;
                return Err(self.with_resume_hint(error));
            }
        };
        let status = match end {
            RunEnd::Complete => RunStatus::Finished,
            RunEnd::Stopped { .. } => RunStatus::Interrupted,
        };
        store.set_status(status).await?;
        let report =
            Report::of(&*store, &self.name, &self.folder, resumed, began.elapsed()).await?;
        self.folder.write_index(&*store).await?;
        self.folder.write_metrics(&report.json())?;
        store.close().await?;
        if let Some(target) = &self.copy_to {
            self.folder.copy_results(&absolute(target)?)?;
        }
        self.output.line(report.render(&self.plan.workspace));
        Ok(self.conclude(end, &report))
    }

    fn conclude(&self, end: RunEnd, report: &Report) -> Exit {
        match end {
            RunEnd::Stopped { left } => {
                self.output.operation("interrupted", &report.json());
                self.output.note(format_args!(
                    "Stopped with {left} rollouts left. Resume with:\n  {}",
                    self.resume_command()
                ));
                Exit::Interrupted
            }
            RunEnd::Complete if report.infrastructure_failed() > 0 => {
                self.output.operation("incomplete", &report.json());
                self.output.note(format_args!(
                    "{} rollouts failed for reasons outside the agent. Run them again with:\n  {}",
                    report.infrastructure_failed(),
                    self.resume_command()
                ));
                Exit::Incomplete
            }
            RunEnd::Complete => {
                self.output.operation("completed", &report.json());
                Exit::Ok
            }
        }
    }

    async fn prepare(&self) -> Result<Prepared, CliError> {
        Prepared::make(
            &self.plan.rollout_dir,
            &self.plan.config.experiment.entrypoint,
            self.throughput.python.as_deref(),
            self.output,
        )
        .await
    }

    async fn start_workers(
        &self,
        prepared: &Prepared,
        display: &Display,
    ) -> Result<WorkerPool, CliError> {
        let config = &self.plan.config;
        let mut variables: Vec<(String, String)> = config
            .env
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        variables.extend(self.plan.secrets.iter().cloned());
        let internal =
            |error: osmosis_core::JsonTextError| CliError::failed("internal", error.to_string());
        let load = Load {
            project_path: self.plan.rollout_dir.to_string(),
            entrypoint: config.experiment.entrypoint.to_string(),
            workflow: JsonText::of(&config.workflow).map_err(internal)?,
            grader: JsonText::of(&config.grader).map_err(internal)?,
        };
        let launch = prepared.launch(&self.plan.rollout_dir, variables);
        let options = self.pool_options();
        Ok(WorkerPool::start(launch, load, options, display.worker_events()).await?)
    }

    fn max_in_flight(&self) -> u32 {
        self.throughput
            .max_in_flight
            .or(self.plan.config.evaluation.batch_size)
            .unwrap_or(DEFAULT_MAX_IN_FLIGHT)
    }

    fn pool_options(&self) -> PoolOptions {
        let in_flight = self.max_in_flight() as usize;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let agent_workers = self
            .throughput
            .workers
            .map_or_else(|| cores.min(MOST_DEFAULT_WORKERS), |n| n as usize)
            .min(in_flight);
        PoolOptions {
            agent_workers,
            grader_workers: agent_workers.div_ceil(2),
            in_flight_per_worker: in_flight.div_ceil(agent_workers),
            start_limit: WORKER_START_LIMIT,
            cancel_grace: CANCEL_GRACE,
            limits: Limits {
                memory: self.throughput.worker_memory.map(|size| size.0),
                processes: self.throughput.worker_processes,
            },
        }
    }

    fn redactor(&self) -> Redactor {
        let secrets = self.plan.secrets.iter().map(|(_, value)| value.clone());
        Redactor::new(secrets.chain(self.plan.ready.secrets.iter().cloned()))
    }

    /// Opens the run's store: a new run, or the one of that name, which must be the same experiment.
    async fn open_store(&self, pinned: &Pinned) -> Result<(Arc<dyn Store>, bool), CliError> {
        let path = &self.folder.path;
        std::fs::create_dir_all(path).map_err(|error| io(path, &error))?;
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(path, SqliteOptions::default())?);
        let record = store.run().await?;
        let resumed = record.is_some();
        if let Some(record) = record {
            Pinned::read(&record.pinned)?.check(pinned, self.name.as_str())?;
            store.recover().await?;
            store.requeue(&self.kinds_to_run_again()).await?;
            store.set_status(RunStatus::Running).await?;
        } else {
            store
                .create_run(RunRecord {
                    name: self.name.clone(),
                    kind: RunKind::Evaluation,
                    status: RunStatus::Running,
                    created_at_ms: now_ms(),
                    finished_at_ms: None,
                    config_toml: self.plan.request.config_text.clone(),
                    pinned: pinned.to_json()?,
                })
                .await?;
        }
        if store.counts().await?.total() < self.plan.rollouts() {
            self.plan.enqueue(&store).await?;
        }
        Ok((store, resumed))
    }

    /// A resume gives what failed through no fault of the agent another chance; with
    /// `--retry-failed` the rest as well.
    fn kinds_to_run_again(&self) -> Vec<OutcomeKind> {
        let mut kinds = vec![OutcomeKind::InfrastructureFailed, OutcomeKind::Cancelled];
        if self.retry_failed {
            kinds.extend([
                OutcomeKind::AgentFailed,
                OutcomeKind::TimedOut,
                OutcomeKind::Ungraded,
            ]);
        }
        kinds
    }

    /// Runs what the queue holds. Whatever happens, workers and gateway are gone afterwards.
    async fn drive(
        &self,
        signals: &StopSignals,
        prepared: &Prepared,
        store: &Arc<dyn Store>,
        display: &Display,
    ) -> Result<RunEnd, CliError> {
        let counts = store.counts().await?;
        if counts.queued + counts.leased == 0 {
            return Ok(RunEnd::Complete);
        }
        let workers = Arc::new(
            signals
                .unless_stopped(self.start_workers(prepared, display))
                .await?,
        );
        self.tell_manifest(workers.manifest());
        let gateway = match self.start_gateway(store).await {
            Ok(gateway) => Arc::new(gateway),
            Err(error) => {
                workers.shut_down(SHUTDOWN_GRACE).await;
                return Err(error);
            }
        };
        let engine = Engine::new(
            Arc::clone(store),
            Arc::clone(&gateway),
            Arc::clone(&workers),
            self.engine_options(),
            display.run_events(),
        );
        let stop = Stop {
            drain: signals.drain.clone(),
            now: signals.now.clone(),
        };
        let end = engine.run(&stop).await;
        workers.shut_down(SHUTDOWN_GRACE).await;
        gateway.shut_down(SHUTDOWN_GRACE).await;
        Ok(end?)
    }

    async fn start_gateway(&self, store: &Arc<dyn Store>) -> Result<Gateway, CliError> {
        let sampling = self.plan.config.sampling;
        let options = GatewayOptions {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            sampling: Sampling {
                temperature: Some(sampling.temperature()),
                top_p: Some(sampling.top_p()),
                overrides: false,
            },
            max_body_bytes: MAX_BODY_BYTES,
        };
        Gateway::start(
            options,
            Arc::clone(&self.plan.ready.policy),
            Arc::clone(store),
        )
        .await
        .map_err(|error| CliError::failed("gateway", error.to_string()))
    }

    fn engine_options(&self) -> EngineOptions {
        let evaluation = &self.plan.config.evaluation;
        EngineOptions {
            owner: format!("pid {}", std::process::id()),
            max_in_flight: self.max_in_flight() as usize,
            agent_limit: evaluation.agent_timeout(),
            grade_limit: evaluation.grader_timeout(),
            pass_threshold: evaluation.pass_threshold,
            max_failures: MAX_FAILURES,
            retry_wait: Duration::from_millis(500),
            lease: LEASE,
            artifacts_root: Some(self.folder.artifacts()),
            redactor: self.redactor(),
        }
    }

    fn tell_manifest(&self, manifest: &Manifest) {
        for warning in &manifest.warnings {
            self.output.warn(warning);
        }
        if !self.plan.config.advanced.is_empty() {
            self.output
                .note("[advanced] is passed through; nothing of it acts here");
        }
        let grader = manifest
            .grader
            .as_ref()
            .map_or_else(|| "no grader".to_owned(), |found| found.name.clone());
        self.output.note(format_args!(
            "{} and {grader} from {} on {} ({} rollouts)",
            manifest.workflow.name,
            self.plan.config.experiment.rollout,
            self.plan.config.experiment.model_path,
            self.plan.rollouts()
        ));
    }

    fn resume_command(&self) -> String {
        command_line::suggest(
            &["eval", "resume", self.name.as_str()],
            &self.plan.workspace,
        )
    }

    fn with_resume_hint(&self, error: CliError) -> CliError {
        let resume = format!("resume with `{}`", self.resume_command());
        let hint = match &error.hint {
            Some(hint) => {
                let first = hint.trim_end_matches(", then resume the run");
                format!("{first}, then {resume}")
            }
            None => resume,
        };
        error.hint(hint)
    }
}

/// `multiply-20260101-120000`, with a number behind it when that is taken.
fn fresh_name(plan: &Plan) -> Result<RunName, CliError> {
    let stem = plan.request.config_path.file_stem().unwrap_or("eval");
    let stem: String = stem
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '-'
            }
        })
        .take(80)
        .collect();
    let time = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    for number in 1.. {
        let name = if number == 1 {
            format!("{stem}-{time}")
        } else {
            format!("{stem}-{time}-{number}")
        };
        let name =
            RunName::new(name).map_err(|error| CliError::failed("internal", error.to_string()))?;
        if !RunFolder::of_eval(&plan.workspace, &name).path.exists() {
            return Ok(name);
        }
    }
    Err(CliError::failed("internal", "no free run name"))
}

/// Asks before calls leave this machine.
fn confirm(plan: &Plan) -> Result<(), CliError> {
    use std::io::Write;
    let mut err = std::io::stderr();
    let _ = write!(
        err,
        "{} rollouts will call `{}` at {}. Continue? [Y/n] ",
        plan.rollouts(),
        plan.config.experiment.model_path,
        plan.ready.policy.describe().endpoint,
    );
    let _ = err.flush();
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| CliError::failed("io", format!("no answer: {error}")))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "" | "y" | "yes" => Ok(()),
        _ => Err(CliError::failed("declined", "not started").hint("`--yes` skips the question")),
    }
}

fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}
