//! `osmosis eval submit` and `eval resume`: the whole job, from checks to report.

use std::sync::Arc;
use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{OutcomeKind, Redactor, RunName};
use osmosis_engine::{RunEnd, RunEvent};
use osmosis_run::eval::live_view::LiveView;
use osmosis_run::notices::Notices;
use osmosis_run::reports::RunReport;
use osmosis_run::settings::{Throughput, Trackers};
use osmosis_run::{RunError, RunErrorKind};
use osmosis_store::{RunKind, RunStatus, Store};
use serde_json::{Value, json};

use super::at_server::ServerWanted;
use super::budget::Budget;
use super::drive::{Ready, Surroundings};
use super::gates::{self, NOT_JUDGED};
use super::junit::JunitReport;
use super::money::Money;
use super::plan::{Plan, Request, UserSide};
use super::prices::dollars_text;
use super::probe::{ProbeResult, Server, probe};
use super::progress::Progress;
use super::regrade;
use super::report;
use crate::arguments::{
    CostArguments, GateArguments, ResumeArguments, SubmitArguments, WatchArguments,
};
use crate::command_line;
use crate::error::Exit;
use crate::events::EventSink;
use crate::execution::SHUTDOWN_GRACE;
use crate::judge::ReadyJudge;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::run_log::RunLog;
use crate::runs::{Opened, Pinned, RunToOpen, fresh_name, given_name, record_of};
use crate::stop_signals::StopSignals;
use crate::tracking::{self, TrackedRun};
use crate::withheld::Withheld;
use crate::workspace::{Workspace, absolute, read_config};

pub(super) const DEFAULT_MAX_IN_FLIGHT: u32 = 32;

pub(crate) async fn submit(
    arguments: SubmitArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let (config_path, config_text) = read_config(&arguments.config)?;
    let name = given_name(arguments.name.as_deref())?;
    let request = Request {
        config_path,
        config_text,
        rows: arguments.rows,
        limit: arguments.limit,
        secrets_file: arguments.secrets.secrets_file,
        seed: arguments.seed,
        server: ServerWanted::of(arguments.server, arguments.reach)?,
    };
    let plan = Plan::check(request, workspace)?;
    let name = if let Some(name) = name {
        name
    } else {
        let stem = plan.request.config_path.file_stem().unwrap_or("eval");
        fresh_name(stem, &plan.workspace, RunKind::Evaluation)?
    };
    let job = Job {
        folder: RunFolder::of(&plan.workspace, RunKind::Evaluation, &name),
        plan,
        name,
        retry_failed: arguments.retry_failed,
        throughput: arguments.throughput.into(),
        cost: arguments.cost,
        gates: arguments.gates,
        watch: arguments.watch,
        live: LiveView::default(),
        trackers: arguments.log.into(),
        copy_to: arguments.output,
        output: *output,
        notices: output.notices(),
    };
    job.check_gates()?;
    if !job.folder.exists() {
        Budget::of(job.cost.max_cost, job.cost.prices.prices())?;
    }
    if arguments.dry_run {
        return job.dry_run().await;
    }
    if job.plan.goes_out() && !arguments.yes && !job.folder.exists() && output.can_ask() {
        confirm(&job.plan, output)?;
    }
    if arguments.fresh {
        archive(&job.folder, &job.plan.workspace, output)?;
    }
    job.run().await
}

pub(crate) async fn resume(
    arguments: ResumeArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = Workspace::find(workspace, None)?;
    let folder = RunFolder::existing(&workspace, RunKind::Evaluation, &arguments.run)?;
    let record = record_of(&folder, &arguments.run).await?;
    let pinned = Pinned::read(&record.pinned)?;
    if let Some(from) = &pinned.regraded_from {
        return regrade::resume(arguments, workspace, &record, from, output).await;
    }
    let request = Request {
        // Where the config was; only messages name it, the text is the run's own.
        config_path: workspace.root.join("configs").join("eval").join("run.toml"),
        config_text: record.config_toml.clone(),
        rows: pinned.rows.clone(),
        limit: pinned.limit(),
        secrets_file: arguments.secrets.secrets_file,
        seed: pinned.model_seed().unwrap_or(0),
        server: ServerWanted::of_run(&pinned, arguments.reach)?,
    };
    let plan = Plan::check(request, Some(&workspace.root))?;
    let job = Job {
        folder,
        plan,
        name: record.name,
        retry_failed: arguments.retry_failed,
        throughput: arguments.throughput.into(),
        cost: arguments.cost,
        gates: arguments.gates,
        watch: arguments.watch,
        live: LiveView::default(),
        trackers: arguments.log.into(),
        copy_to: arguments.output,
        output: *output,
        notices: output.notices(),
    };
    job.check_gates()?;
    job.money(&pinned)?;
    job.run().await
}

/// One evaluation to be run.
pub(super) struct Job {
    pub(super) plan: Plan,
    pub(super) name: RunName,
    pub(super) folder: RunFolder,
    retry_failed: bool,
    pub(super) throughput: Throughput,
    cost: CostArguments,
    gates: GateArguments,
    watch: WatchArguments,
    pub(super) live: LiveView,
    trackers: Trackers,
    copy_to: Option<Utf8PathBuf>,
    pub(super) output: Output,
    pub(super) notices: Arc<dyn Notices>,
}

impl Job {
    async fn dry_run(&self) -> Result<Exit, RunError> {
        let signals = StopSignals::listen()?;
        self.progress()?;
        let display = EventSink::<RunEvent>::start();
        let probed = signals.unless_stopped(self.probe()).await?;
        let ready = signals.unless_stopped(self.prepare()).await?;
        let trackers = tracking::Ready::check(&self.trackers, ready.interpreter());
        signals.unless_stopped(trackers).await?;
        let found = match ready {
            Ready::Here(code, prepared, _) => {
                let starting = self.start_workers(code, &prepared, &display);
                let pool = signals.unless_stopped(starting).await?;
                let manifest = pool.manifest().clone();
                pool.shut_down(SHUTDOWN_GRACE).await;
                self.plan.dataset.check_for(&manifest)?;
                code.tell(&manifest, &self.amount(), &*self.notices);
                json!({
                    "workflow": manifest.workflow,
                    "grader": manifest.grader,
                    "warnings": manifest.warnings,
                    "program": prepared.program(),
                    "withheld_variables": code.withheld.0,
                })
            }
            Ready::AtServer(wanted, met) => {
                wanted.tell(&met, &self.amount(), &*self.notices);
                self.output
                    .line(format_args!("{} says: {}", wanted.url, met.health()));
                json!({ "server": wanted.url.as_str(), "health": met.health() })
            }
        };
        self.plan.ready.shut_down();
        self.output.line(format_args!(
            "Everything is in order: {} rows × {} = {} rollouts. Nothing was run.",
            self.plan.rows,
            self.plan.config.evaluation.n,
            self.plan.rollouts()
        ));
        let mut resource = json!({
            "rows": self.plan.rows,
            "rollouts": self.plan.rollouts(),
            "model_server": probed.as_str(),
        });
        if let (Some(resource), Value::Object(found)) = (resource.as_object_mut(), found) {
            resource.extend(found);
        }
        self.output.operation("valid", &resource);
        Ok(Exit::Ok)
    }

    async fn run(self) -> Result<Exit, RunError> {
        let signals = StopSignals::listen()?;
        let progress = self.progress()?;
        let mut display = EventSink::start();
        let is_new = !self.folder.exists();
        if is_new {
            signals.unless_stopped(self.probe()).await?;
        }
        let ready = signals.unless_stopped(self.prepare()).await?;
        let asking = self.ask_workflow(ready, &display);
        let ready = signals.unless_stopped(asking).await?;
        let trackers = tracking::Ready::check(&self.trackers, ready.interpreter());
        let trackers = signals.unless_stopped(trackers).await?;
        let mut pinned = self.plan.pinned(ready.digest())?;
        pinned.remembered.prices = self.cost.prices.prices();
        let Opened { store, resumed } = self.open_store(&pinned).await?;
        if let Some(record) = store.run().await? {
            pinned = Pinned::read(&record.pinned)?;
        }
        let money = self.money(&pinned)?;
        let counts = store.counts().await?;
        if !is_new && counts.queued + counts.leased > 0 {
            signals.unless_stopped(self.probe()).await?;
        }
        let log = RunLog::open(&self.folder.logs(), self.redactor(), self.plan.config.logs)?;
        display.open(log, Box::new(progress));

        let tracked = self.tracked(&pinned);
        let tracking = trackers.begin(&tracked, &store, &self.notices).await;
        let began = Instant::now();
        let around = Surroundings {
            signals: &signals,
            store: &store,
            display: &display,
            money: &money,
        };
        let driven = self.drive(ready, &around).await;
        self.plan.ready.shut_down();
        display.finish().await;
        let end = match driven {
            Ok(end) => end,
            Err(error) => {
                tracking.finish(&Value::Null, false).await;
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
        let cost = money.cost(&*store).await?;
        let report = RunReport::of(&*store, &self.name, &self.folder)
            .await?
            .ran_here(resumed, took)
            .with_cost(cost.map(|cost| cost.report()))
            .with_withheld(self.withheld());
        self.write_junit(&*store).await?;
        self.folder.write_index(&*store).await?;
        self.folder.write_metrics(&report)?;
        let complete = status == RunStatus::Finished;
        tracking.finish(&report, complete).await;
        store.close().await?;
        if let Some(target) = &self.copy_to {
            self.folder.copy_results(&absolute(target)?)?;
        }
        self.output
            .line(report::render(&report, &self.plan.workspace));
        if money.budget.is_some() && report.total_cost().is_none() {
            self.output.warn(
                "--max-cost could not be kept: the model server does not tell how many tokens it took",
            );
        }
        let over_budget = money.is_spent() && !signals.now.is_cancelled();
        Ok(self.conclude(end, report, over_budget))
    }

    fn conclude(&self, end: RunEnd, report: RunReport, over_budget: bool) -> Exit {
        match end {
            RunEnd::Stopped { left } if over_budget => {
                self.output.operation("over_budget", &report);
                let cost = report.total_cost().map_or_else(String::new, dollars_text);
                self.output.note(format_args!(
                    "The run has cost {cost}, and --max-cost is reached: {left} rollouts are left. Go on with:\n  {} --max-cost USD",
                    self.resume_command()
                ));
                self.tell_unjudged();
                Exit::Incomplete
            }
            RunEnd::Stopped { left } => {
                self.output.operation("interrupted", &report);
                self.output.note(format_args!(
                    "Stopped with {left} rollouts left. Resume with:\n  {}",
                    self.resume_command()
                ));
                Exit::Interrupted
            }
            RunEnd::Complete if report.infrastructure_failed() > 0 => {
                self.output.operation("incomplete", &report);
                self.output.note(format_args!(
                    "{} rollouts failed for reasons outside the agent. Run them again with:\n  {}",
                    report.infrastructure_failed(),
                    self.resume_command()
                ));
                self.tell_unjudged();
                Exit::Incomplete
            }
            RunEnd::Complete => {
                let report = report.judged_by(&self.gates.fail_under);
                gates::conclude(&report, "completed", &self.output)
            }
        }
    }

    fn tell_unjudged(&self) {
        if !self.gates.fail_under.is_empty() {
            self.output.note(NOT_JUDGED);
        }
    }

    fn progress(&self) -> Result<Progress, RunError> {
        let live = self.live.clone();
        Progress::new(self.output, &self.watch.progress, live, self.redactor())
    }

    fn money(&self, pinned: &Pinned) -> Result<Money, RunError> {
        Money::of(self.cost.prices.prices(), self.cost.max_cost, pinned)
    }

    async fn probe(&self) -> Result<ProbeResult, RunError> {
        if self.watch.no_probe {
            return Ok(ProbeResult::NotAsked);
        }
        let (plan, redactor) = (&self.plan, self.redactor());
        if let Some(judge) = plan.judge.as_ref().and_then(ReadyJudge::server) {
            probe(&judge, &redactor, &*self.notices).await?;
        }
        // What runs in this process was opened, so it works.
        if plan.ready.is_embedded() {
            return Ok(ProbeResult::NotAsked);
        }
        let policy = Server {
            key: "model_path",
            model: &plan.config.experiment.model_path,
            policy: &*plan.ready.policy,
        };
        probe(&policy, &redactor, &*self.notices).await
    }

    fn check_gates(&self) -> Result<(), RunError> {
        let n = self.plan.config.evaluation.n;
        self.gates
            .fail_under
            .iter()
            .try_for_each(|gate| gate.check_for(n))
    }

    async fn write_junit(&self, store: &dyn Store) -> Result<(), RunError> {
        let Some(file) = &self.gates.junit else {
            return Ok(());
        };
        JunitReport::of(store, &self.plan.workspace, self.redactor())
            .await?
            .write(store, &absolute(file)?)
            .await
    }

    fn tracked<'a>(&'a self, pinned: &'a Pinned) -> TrackedRun<'a> {
        TrackedRun {
            name: self.name.as_str(),
            kind: RunKind::Evaluation,
            folder: &self.folder.path,
            shared_folder: self.plan.workspace.root.join(".osmosis"),
            project: self.plan.config.experiment.rollout.as_str(),
            facts: pinned.facts(),
        }
    }

    pub(super) fn amount(&self) -> String {
        format!("{} rollouts", self.plan.rollouts())
    }

    pub(super) fn max_in_flight(&self) -> u32 {
        self.throughput
            .max_in_flight
            .or(self.plan.config.evaluation.batch_size)
            .unwrap_or(DEFAULT_MAX_IN_FLIGHT)
    }

    /// What user code here does not get; a server's is its own affair.
    fn withheld(&self) -> Option<&Withheld> {
        match &self.plan.side {
            UserSide::Here(code) => Some(&code.withheld),
            UserSide::AtServer(_) => None,
        }
    }

    pub(super) fn redactor(&self) -> Redactor {
        let secrets: Vec<String> = match &self.plan.side {
            UserSide::Here(code) => code
                .secrets
                .iter()
                .map(|(_, value)| value.clone())
                .collect(),
            UserSide::AtServer(server) => {
                let key = server.key.iter();
                key.map(|key| key.expose().to_owned()).collect()
            }
        };
        let secrets = secrets.into_iter();
        let of_judge = self.plan.judge.iter().flat_map(ReadyJudge::secrets);
        let of_models = self.plan.ready.secrets.iter().chain(of_judge).cloned();
        Redactor::new(secrets.chain(of_models))
    }

    async fn open_store(&self, pinned: &Pinned) -> Result<Opened, RunError> {
        let opened = RunToOpen {
            folder: &self.folder,
            name: &self.name,
            kind: RunKind::Evaluation,
            config_text: &self.plan.request.config_text,
            pinned,
            run_again: &self.kinds_to_run_again(),
        }
        .open()
        .await?;
        if opened.store.counts().await?.total() < self.plan.rollouts() {
            self.plan.enqueue(&opened.store).await?;
        }
        Ok(opened)
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

    fn resume_command(&self) -> String {
        command_line::suggest(
            &["eval", "resume", self.name.as_str()],
            &self.plan.workspace,
        )
    }
}

/// Archives a run that is there, and says where it is.
pub(crate) fn archive(
    folder: &RunFolder,
    workspace: &Workspace,
    output: &Output,
) -> Result<(), RunError> {
    if let Some(target) = folder.archive(workspace)? {
        let name = folder.name();
        output.note(format_args!("The earlier run `{name}` is now at {target}"));
    }
    Ok(())
}

/// Asks before calls leave this machine.
fn confirm(plan: &Plan, output: &Output) -> Result<(), RunError> {
    output.question(format_args!(
        "{} rollouts will call `{}` at {}. Continue? [Y/n] ",
        plan.rollouts(),
        plan.config.experiment.model_path,
        plan.ready.policy.describe().endpoint,
    ));
    if let Some((model, judge)) = plan.config.judge_model.as_ref().zip(plan.judge.as_ref()) {
        let endpoint = judge.endpoint();
        output.question(format_args!("(The grader asks `{model}` at {endpoint}.) "));
    }
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| RunError::failed(RunErrorKind::Io, format!("no answer: {error}")))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "" | "y" | "yes" => Ok(()),
        _ => Err(RunError::failed(RunErrorKind::Declined, "not started")
            .hint("`--yes` skips the question")),
    }
}
