//! One evaluation: user code here or at a server, the gateway, the engine.

use std::sync::Arc;

use async_trait::async_trait;
use camino::Utf8Path;
use osmosis_core::{OutcomeKind, Redactor, RunName};
use osmosis_engine::{Engine, EngineOptions, Executor, RunEnd, RunEvent};
use osmosis_gateway::Gateway;
use osmosis_store::{RunKind, RunStatus};
use osmosis_worker::WorkerPool;
use serde_json::Value;

use crate::builtin_language;
use crate::eval::live_view::LiveView;
use crate::eval::money::Money;
use crate::eval::plan::{EvalPlan, UserSide};
use crate::eval::prices::{Dollars, Prices};
use crate::eval::probe::{ProbeResult, Server, ServerRole, probe};
use crate::eval::rollout_server::ReachedServer;
use crate::eval::trace::{TracedRun, Tracer};
use crate::execution::{self, DriveSettings};
use crate::judge::ReadyJudge;
use crate::life::{OpenRun, RunIdentity, SHUTDOWN_GRACE, Stage, Surroundings, Work};
use crate::node::control::{NodeOptions, StopRelay};
use crate::node::metrics::QueueMetrics;
use crate::node::patience::wait_out;
use crate::notices::Notices;
use crate::policy;
use crate::ready_code::{CodeStart, ReadyCode, WorkerRoles};
use crate::reports::RunReport;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, named_folder};
use crate::settings::{Throughput, Trackers};
use crate::user_code::{PassedOn, UserCode};
use crate::withheld::Withheld;
use crate::{GatewaySessions, RunError, RunErrorKind};

pub const DEFAULT_MAX_IN_FLIGHT: u32 = 32;

/// One evaluation to be run.
#[derive(Debug)]
pub struct Evaluation {
    pub plan: EvalPlan,
    pub name: RunName,
    pub folder: RunFolder,
    /// A resume also runs again what failed, timed out or was not graded.
    pub retry_failed: bool,
    pub throughput: Throughput,
    /// `None` for those that the run was begun with.
    pub prices: Option<Prices>,
    pub max_cost: Option<Dollars>,
    /// Whether model servers are asked for one token first.
    pub probes: bool,
    pub trackers: Trackers,
    /// What can be seen of it while it goes on.
    pub live: LiveView,
    /// How more machines work on it, where its store lets them.
    pub nodes: NodeOptions,
    /// Somebody is at the debugger: nothing has a deadline, and nothing is tried again.
    pub debugged: bool,
}

/// How an evaluation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvalEnd {
    pub end: RunEnd,
    /// It stopped because it has cost what it may.
    pub over_budget: bool,
}

/// User code that can be put to work.
#[derive(Debug)]
pub enum ReadySide {
    Here(Box<ReadyCode>),
    AtServer(Box<dyn ReachedServer>),
}

#[async_trait]
impl Work for Evaluation {
    type Event = RunEvent;
    type Ready = ReadySide;
    type End = EvalEnd;
    type Report = RunReport;

    fn identity(&self) -> RunIdentity<'_> {
        RunIdentity {
            kind: RunKind::Evaluation,
            name: &self.name,
            folder: &self.folder,
            workspace: &self.plan.workspace,
            project: self.plan.config.experiment.rollout.as_str(),
            config_text: &self.plan.config_text,
            log_limits: self.plan.config.logs,
            run_again: self.kinds_to_run_again(),
            dataset: Some(&self.plan.dataset),
        }
    }

    fn redactor(&self) -> Redactor {
        let secrets: Vec<String> = match &self.plan.side {
            UserSide::Here(code) => code
                .secrets
                .iter()
                .map(|(_, value)| value.clone())
                .collect(),
            UserSide::AtServer(server) => server.secrets(),
        };
        let of_judge = self.plan.judge.iter().flat_map(ReadyJudge::secrets);
        let of_models = self.plan.ready.secrets.iter().chain(of_judge).cloned();
        Redactor::new(secrets.into_iter().chain(of_models))
    }

    fn trackers(&self) -> Trackers {
        self.trackers.clone()
    }

    fn interpreter<'r>(&self, ready: &'r ReadySide) -> Option<&'r Utf8Path> {
        match ready {
            ReadySide::Here(code) => code.interpreter(),
            ReadySide::AtServer(_) => None,
        }
    }

    async fn prepare(&self, around: &Surroundings<'_, RunEvent>) -> Result<ReadySide, RunError> {
        self.plan.ready.end_with(around.parts);
        // Before the environment, too.
        self.nodes.connect(around.parts, around.notices).await?;
        let model = &self.plan.config.experiment.model_path;
        if let Some(chat) = policy::builtin_chat(model)
            && let Some(note) = builtin_language::note(model, &chat, &self.plan.dataset)
        {
            around.notices.note(note);
        }
        if !around.resumes {
            // Before the environment, which may take a minute to make.
            self.probe(&**around.notices).await?;
        }
        match &self.plan.side {
            UserSide::Here(code) => {
                let ready = self.code_start(code).prepare(around).await?;
                Ok(ReadySide::Here(Box::new(ready)))
            }
            UserSide::AtServer(server) => {
                around.notices.step(format_args!(
                    "Asking the rollout server at {}",
                    server.url()
                ));
                Ok(ReadySide::AtServer(server.reach().await?))
            }
        }
    }

    async fn preflight(
        &self,
        ready: &mut ReadySide,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<(), RunError> {
        if around.resumes {
            self.probe(&**around.notices).await?;
        }
        if let (UserSide::Here(code), ReadySide::Here(ready)) = (&self.plan.side, ready) {
            let workers = self.code_start(code).start(ready, around).await?;
            self.plan.dataset.check_for(workers.manifest())?;
            if self.nodes.nodes_only {
                // They have shown that the code can be run, which is all they are for.
                workers.shut_down(SHUTDOWN_GRACE).await;
            }
        }
        Ok(())
    }

    async fn ended_before(&self, run: &OpenRun) -> Result<Option<EvalEnd>, RunError> {
        let counts = run.store.counts().await?;
        let is_whole = counts.total() >= self.plan.rollouts();
        let nothing_left = is_whole && counts.queued + counts.leased == 0;
        Ok(nothing_left.then_some(EvalEnd {
            end: RunEnd::Complete,
            over_budget: false,
        }))
    }

    fn pin(&self, ready: &ReadySide) -> Result<Pinned, RunError> {
        let environment = match ready {
            ReadySide::Here(code) => Some(code.digest()),
            // A server's is its own affair.
            ReadySide::AtServer(_) => None,
        };
        let mut pinned = self.plan.pinned(environment)?;
        pinned.remembered.prices = self.prices;
        Ok(pinned)
    }

    async fn opened(
        &self,
        _ready: &ReadySide,
        run: &OpenRun,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<(), RunError> {
        if run.store.counts().await?.total() < self.plan.rollouts() {
            self.plan.enqueue(&run.store).await?;
        }
        self.money(&run.pinned)?;
        self.invite_nodes(run, around).await
    }

    async fn drive(
        &self,
        ready: ReadySide,
        run: &OpenRun,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<EvalEnd, RunError> {
        match (&self.plan.side, ready) {
            (UserSide::Here(code), ReadySide::Here(ready)) => {
                self.drive_workers(code, ready.workers()?, run, around)
                    .await
            }
            (_, ReadySide::AtServer(server)) => self.drive_server(server, run, around).await,
            (UserSide::AtServer(_), ReadySide::Here(_)) => Err(RunError::failed(
                RunErrorKind::Internal,
                "workers were prepared for a run at a rollout server",
            )),
        }
    }

    fn status(&self, end: &EvalEnd) -> RunStatus {
        match end.end {
            RunEnd::Complete => RunStatus::Finished,
            RunEnd::Stopped { .. } => RunStatus::Interrupted,
        }
    }

    async fn report(&self, run: &OpenRun) -> Result<RunReport, RunError> {
        let (store, elapsed) = (&*run.store, run.began.elapsed());
        let cost = self.money(&run.pinned)?.cost(store).await?;
        let report = RunReport::of(store, &self.name, &self.folder).await?;
        // A run that was complete before has them in its files.
        let kept = report.with_calls_of(&self.folder);
        let report = if run.was_finished && kept.sampling.is_some() {
            kept
        } else {
            kept.with_calls(store, &run.pinned).await?
        };
        Ok(report
            .ran_here(run.resumed, elapsed)
            .found_complete(run.was_finished)
            .with_cost(cost.map(|cost| cost.report()))
            .with_withheld(self.withheld()))
    }
}

impl Evaluation {
    /// A run of this plan, under a new name unless one is given.
    pub fn new(plan: EvalPlan, name: Option<RunName>) -> Result<Self, RunError> {
        let (name, folder) = named_folder(name, plan.stem(), &plan.workspace, RunKind::Evaluation)?;
        Ok(Self {
            folder,
            plan,
            name,
            retry_failed: false,
            throughput: Throughput::default(),
            prices: None,
            max_cost: None,
            probes: true,
            trackers: Trackers::default(),
            live: LiveView::default(),
            nodes: NodeOptions::default(),
            debugged: false,
        })
    }

    pub(super) fn code_start<'a>(&'a self, code: &'a UserCode) -> CodeStart<'a> {
        CodeStart {
            code,
            throughput: &self.throughput,
            max_in_flight: self.max_in_flight(),
            roles: WorkerRoles::AgentsAndGraders,
        }
    }

    async fn drive_workers(
        &self,
        code: &UserCode,
        workers: Arc<WorkerPool>,
        run: &OpenRun,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<EvalEnd, RunError> {
        code.tell(workers.manifest(), &self.amount(), &**around.notices);
        let sampling = execution::eval_sampling(self.plan.config.sampling);
        let policy = &self.plan.ready.policy;
        let gateway = execution::start_gateway(None, sampling, policy, &run.store).await?;
        let gateway = around.parts.add_gateway(gateway);
        if let Some(judge) = &self.plan.judge {
            judge.serve_at(&gateway);
        }
        self.run_engine(&gateway, workers, run, around).await
    }

    async fn drive_server(
        &self,
        server: Box<dyn ReachedServer>,
        run: &OpenRun,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<EvalEnd, RunError> {
        self.tell_server(&*server, &**around.notices);
        let gateway = execution::start_gateway_beside(
            server.callbacks(),
            server.listen(),
            execution::eval_sampling(self.plan.config.sampling),
            &self.plan.ready.policy,
            &run.store,
        );
        let gateway = around.parts.add_gateway(gateway.await?);
        let rollouts = server.executor(&gateway);
        around
            .parts
            .share(Stage::Execution, Arc::clone(&rollouts) as _);
        self.run_engine(&gateway, rollouts, run, around).await
    }

    async fn run_engine(
        &self,
        gateway: &Arc<Gateway>,
        executor: Arc<dyn Executor>,
        run: &OpenRun,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<EvalEnd, RunError> {
        let money = self.money(&run.pinned)?;
        let before = run.store.call_totals().await?;
        let policy = &self.plan.ready.policy;
        self.live.open(gateway, policy, money.prices, before);
        let tracer = Tracer::start(
            gateway.rollout_spans(),
            self.traced(),
            &run.store,
            around.events.run_events(),
        );
        let options = self.engine_options();
        let mut engine = Engine::new(
            Arc::clone(&run.store),
            Arc::new(GatewaySessions::local(Arc::clone(gateway))),
            executor,
            options.clone(),
            tracer.events(),
        );
        if let Some(budget) = &money.budget {
            engine = engine.begins_while(budget.may_begin(gateway, before));
        }
        let stop = &around.stop.stop;
        let relay = StopRelay::start(&run.store, stop);
        let budget = money.budget.as_ref();
        let _spending = budget.map(|budget| budget.watch(&run.store, stop));
        let metrics = self.nodes.metrics.as_ref();
        let _metrics = QueueMetrics::serve(gateway, metrics, &run.store, &**around.notices).await?;
        let end = loop {
            let error = match engine.run(stop).await {
                Ok(end) => break Ok(end),
                Err(error) => error,
            };
            let (signals, notices) = (around.stop, &**around.notices);
            let waiting = wait_out(error, &run.store, &options.owner, signals, notices);
            if let Err(error) = waiting.await {
                break Err(error);
            }
        };
        relay.finish().await;
        drop(engine);
        tracer.finish(&**around.notices).await;
        Ok(EvalEnd {
            end: end?,
            over_budget: money.is_spent() && !stop.now.is_cancelled(),
        })
    }

    /// Says who runs the rollouts.
    pub(super) fn tell_server(&self, server: &dyn ReachedServer, notices: &dyn Notices) {
        PassedOn::from(&self.plan.config).tell_of_server(notices);
        let experiment = &self.plan.config.experiment;
        let url = match &self.plan.side {
            UserSide::AtServer(server) => server.url(),
            UserSide::Here(_) => "this machine",
        };
        notices.note(format_args!(
            "{} at {url} ({}) on {} ({})",
            experiment.rollout,
            in_short(server.health()),
            experiment.model_path,
            self.amount(),
        ));
    }

    /// Asks the model servers for one token each.
    pub(super) async fn probe(&self, notices: &dyn Notices) -> Result<ProbeResult, RunError> {
        if !self.probes {
            return Ok(ProbeResult::NotAsked);
        }
        let (plan, redactor) = (&self.plan, self.redactor());
        if let Some(judge) = plan.judge.as_ref().and_then(ReadyJudge::server) {
            probe(&judge, &redactor, notices).await?;
        }
        // What runs in this process was opened, so it works.
        if plan.ready.is_embedded() {
            return Ok(ProbeResult::NotAsked);
        }
        let policy = Server {
            role: ServerRole::Policy,
            model: &plan.config.experiment.model_path,
            policy: &*plan.ready.policy,
        };
        probe(&policy, &redactor, notices).await
    }

    /// Prices and budget, as they are given now or else as the run was begun with.
    pub fn money(&self, pinned: &Pinned) -> Result<Money, RunError> {
        Money::of(self.prices, self.max_cost, pinned)
    }

    pub(super) fn amount(&self) -> String {
        format!("{} rollouts", self.plan.rollouts())
    }

    fn max_in_flight(&self) -> u32 {
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

    /// A resume gives what failed through no fault of the agent another chance; with
    /// `retry_failed` the rest as well.
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

    fn traced(&self) -> TracedRun {
        let experiment = &self.plan.config.experiment;
        TracedRun {
            name: self.name.to_string(),
            rollout: experiment.rollout.to_string(),
            model: experiment.model_path.to_string(),
            redactor: self.redactor(),
        }
    }

    fn engine_options(&self) -> EngineOptions {
        let evaluation = &self.plan.config.evaluation;
        let in_flight = self.max_in_flight();
        let mut settings = DriveSettings::of_evaluation(evaluation, in_flight, self.redactor());
        if self.debugged {
            settings.agent_limit = execution::NO_DEADLINE;
            settings.grade_limit = execution::NO_DEADLINE;
        }
        let options = execution::engine_options(settings, &self.folder);
        EngineOptions {
            // What is claimed here is run here.
            max_in_flight: if self.nodes.nodes_only {
                0
            } else {
                options.max_in_flight
            },
            max_failures: if self.debugged {
                1
            } else {
                options.max_failures
            },
            ..options
        }
    }
}

/// What a server says of itself: its status, and how much it runs at once.
fn in_short(health: &Value) -> String {
    let status = health["status"].as_str().unwrap_or("no status");
    let limits = [
        &health["capacity"]["max_in_flight"],
        &health["concurrency"]["max_concurrent"],
    ];
    match limits.into_iter().find_map(Value::as_u64) {
        Some(limit) => format!("{status}, {limit} at once"),
        None => status.to_owned(),
    }
}
