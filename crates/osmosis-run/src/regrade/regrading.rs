//! One run that grades the samples of another again: graders, a judge, and no policy.

use std::sync::Arc;

use async_trait::async_trait;
use camino::Utf8Path;
use osmosis_core::frame::Manifest;
use osmosis_core::{OutcomeKind, Redactor, RunName};
use osmosis_engine::{Engine, EngineOptions, Recorded, RunEnd, RunEvent};
use osmosis_gateway::{Gateway, Policy, Sampling, ScriptedPolicy};
use osmosis_store::{RunKind, RunStatus, Store};
use osmosis_worker::WorkerPool;

use crate::eval::evaluation::DEFAULT_MAX_IN_FLIGHT;
use crate::eval::probe::probe;
use crate::execution::{self, DriveSettings};
use crate::judge::ReadyJudge;
use crate::life::{OpenRun, RunIdentity, Surroundings, Work, rehearse};
use crate::notices::Notices;
use crate::ready_code::{CodeStart, ReadyCode, WorkerRoles};
use crate::regrade::plan::RegradePlan;
use crate::reports::{FactChanges, FlipsReport, RunReport};
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, named_folder};
use crate::settings::Throughput;
use crate::stop_signals::StopSignals;
use crate::{GatewaySessions, RunError, RunErrorKind};

/// One run to be graded again.
#[derive(Debug)]
pub struct Regrading {
    pub plan: RegradePlan,
    pub name: RunName,
    pub folder: RunFolder,
    /// A resume also grades again what timed out or was not graded.
    pub retry_failed: bool,
    pub throughput: Throughput,
    /// Whether the judge's server is asked for one token first.
    pub probes: bool,
}

/// What a check without a run found.
#[derive(Debug)]
pub struct RegradeCheck {
    pub manifest: Manifest,
    pub changes: FactChanges,
}

#[async_trait]
impl Work for Regrading {
    type Event = RunEvent;
    type Ready = ReadyCode;
    type End = RunEnd;
    type Report = RunReport;

    fn identity(&self) -> RunIdentity<'_> {
        let mut run_again = vec![OutcomeKind::InfrastructureFailed, OutcomeKind::Cancelled];
        if self.retry_failed {
            run_again.extend([OutcomeKind::TimedOut, OutcomeKind::Ungraded]);
        }
        RunIdentity {
            kind: RunKind::Evaluation,
            name: &self.name,
            folder: &self.folder,
            workspace: &self.plan.workspace,
            project: self.plan.config.experiment.rollout.as_str(),
            config_text: &self.plan.config_text,
            log_limits: self.plan.config.logs,
            run_again,
            // The rows are the source's own.
            dataset: None,
        }
    }

    fn redactor(&self) -> Redactor {
        let secrets = self.plan.code.secrets.iter().map(|(_, value)| value);
        let of_judge = self.plan.judge.iter().flat_map(ReadyJudge::secrets);
        Redactor::new(secrets.chain(of_judge).cloned())
    }

    async fn prepare(&self, around: &Surroundings<'_, RunEvent>) -> Result<ReadyCode, RunError> {
        self.probe(&**around.notices).await?;
        self.code_start().prepare(around).await
    }

    fn pin(&self, ready: &ReadyCode) -> Result<Pinned, RunError> {
        self.plan.pinned(ready.digest())
    }

    async fn preflight(
        &self,
        ready: &mut ReadyCode,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<(), RunError> {
        self.start_graders(ready, around).await.map(drop)
    }

    async fn ended_before(&self, run: &OpenRun) -> Result<Option<RunEnd>, RunError> {
        let counts = run.store.counts().await?;
        let is_whole = counts.total() >= self.plan.rollouts;
        let nothing_left = is_whole && counts.queued + counts.leased == 0;
        Ok(nothing_left.then_some(RunEnd::Complete))
    }

    async fn opened(
        &self,
        ready: &ReadyCode,
        run: &OpenRun,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<(), RunError> {
        if run.store.counts().await?.total() < self.plan.rollouts {
            self.plan.enqueue(&*run.store).await?;
        }
        let notices = &**around.notices;
        self.plan.tell_changes(&self.pin(ready)?, notices);
        let workers = ready.workers()?;
        self.plan
            .code
            .tell(workers.manifest(), &self.amount(), notices);
        Ok(())
    }

    async fn drive(
        &self,
        ready: ReadyCode,
        run: &OpenRun,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<RunEnd, RunError> {
        let gateway = self.start_gateway(&run.store).await?;
        let gateway = around.parts.add_gateway(gateway);
        if let Some(judge) = &self.plan.judge {
            judge.serve_at(&gateway);
        }
        let recorded = Recorded {
            store: Arc::clone(&self.plan.source.store),
            artifacts_root: self.plan.source.folder.artifacts(),
        };
        let engine = Engine::for_regrade(
            recorded,
            Arc::clone(&run.store),
            Arc::new(GatewaySessions::local(gateway)),
            ready.workers()?,
            self.engine_options(),
            around.events.run_events(),
        );
        Ok(engine.run(&around.stop.stop).await?)
    }

    fn status(&self, end: &RunEnd) -> RunStatus {
        match end {
            RunEnd::Complete => RunStatus::Finished,
            RunEnd::Stopped { .. } => RunStatus::Interrupted,
        }
    }

    async fn report(&self, run: &OpenRun) -> Result<RunReport, RunError> {
        let (store, elapsed) = (&*run.store, run.began.elapsed());
        let report = RunReport::of(store, &self.name, &self.folder).await?;
        Ok(report
            .ran_here(run.resumed, elapsed)
            .found_complete(run.was_finished)
            .with_withheld(Some(&self.plan.code.withheld))
            .with_changes(self.plan.changes(&run.pinned)))
    }

    async fn write_files(&self, run: &OpenRun, report: RunReport) -> Result<RunReport, RunError> {
        let before = &*self.plan.source.store;
        let flips = FlipsReport::write(before, &*run.store, &self.folder).await?;
        Ok(RunReport {
            flips: Some(flips),
            ..report
        })
    }
}

impl Regrading {
    /// A run of this plan, under a new name unless one is given.
    pub fn new(plan: RegradePlan, name: Option<RunName>) -> Result<Self, RunError> {
        let source = plan.source.record.name.as_str();
        let (name, folder) = named_folder(name, source, &plan.workspace, RunKind::Evaluation)?;
        Ok(Self {
            folder,
            plan,
            name,
            retry_failed: false,
            throughput: Throughput::default(),
            probes: true,
        })
    }

    /// Checks everything that a run would need, and starts none.
    pub async fn check(
        &self,
        stop: &StopSignals,
        notices: &Arc<dyn Notices>,
    ) -> Result<RegradeCheck, RunError> {
        rehearse::<RunEvent, _>(stop, notices, async |around| {
            self.probe(&**around.notices).await?;
            let mut ready = self.code_start().prepare(around).await?;
            let workers = self.start_graders(&mut ready, around).await?;
            let pinned = self.plan.pinned(ready.digest())?;
            self.plan.tell_changes(&pinned, &**around.notices);
            Ok(RegradeCheck {
                manifest: workers.manifest().clone(),
                changes: self.plan.changes(&pinned),
            })
        })
        .await
    }

    fn code_start(&self) -> CodeStart<'_> {
        CodeStart {
            code: &self.plan.code,
            throughput: &self.throughput,
            max_in_flight: self.max_in_flight(),
            roles: WorkerRoles::GradersOnly,
        }
    }

    /// Refuses a project that grades itself.
    async fn start_graders(
        &self,
        ready: &mut ReadyCode,
        around: &Surroundings<'_, RunEvent>,
    ) -> Result<Arc<WorkerPool>, RunError> {
        let workers = self.code_start().start(ready, around).await?;
        if workers.manifest().grader.is_none() {
            let workflow = &workers.manifest().workflow.name;
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

    /// A gateway for the judge alone: no key is ever made that opens a policy.
    async fn start_gateway(&self, store: &Arc<dyn Store>) -> Result<Gateway, RunError> {
        const NOBODY: &str = "[[reply]]\ntext = 'A run that only grades has no policy.'\n";
        let nobody = ScriptedPolicy::parse(Utf8Path::new("regrade"), NOBODY)
            .map_err(|errors| RunError::failed(RunErrorKind::Internal, errors.to_string()))?;
        let nobody: Arc<dyn Policy> = Arc::new(nobody);
        execution::start_gateway(None, Sampling::default(), &nobody, store).await
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
    async fn probe(&self, notices: &dyn Notices) -> Result<(), RunError> {
        if let Some(judge) = self.plan.judge.as_ref().and_then(ReadyJudge::server)
            && self.probes
        {
            probe(&judge, &self.redactor(), notices).await?;
        }
        Ok(())
    }
}
