//! One training run with our own trainer: workers, the model behind a gateway, the loop.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::frame::Manifest;
use osmosis_core::learner::{TrainableModel, WeightSink};
use osmosis_core::{PolicyVersion, Redactor, RunName};
use osmosis_engine::EngineOptions;
use osmosis_gateway::{Gateway, Policy};
use osmosis_policy::{Pace, Sampler, StartModel};
use osmosis_store::{RunKind, RunStatus};
use osmosis_train::{NodeGate, TrainEnd, TrainError, TrainEvent, TrainParts, TrainPlan, Trainer};
use osmosis_worker::WorkerPool;

use crate::execution::{self, DriveSettings};
use crate::judge::ReadyJudge;
use crate::life::{
    OpenRun, Part, RunIdentity, SHUTDOWN_GRACE, Stage, Surroundings, Work, rehearse,
};
use crate::node::control::{NodeOptions, StopRelay};
use crate::node::metrics::QueueMetrics;
use crate::node::patience::wait_out;
use crate::notices::Notices;
use crate::policy::{self, TokenLimits};
use crate::ready_code::{CodeStart, ReadyCode, WorkerRoles};
use crate::reports::TrainingReport;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, named_folder};
use crate::settings::{Throughput, Trackers};
use crate::stop_signals::StopSignals;
use crate::train::learning_run::Planned;
use crate::train::plan::{Plan, PlannedModel};
use crate::train::torch::{TorchRuntime, TorchStart};
use crate::train::trained_model::freeze;
use crate::train::{TrainedModel, learning_run};
use crate::{GatewaySessions, RunError};

/// One training run.
#[derive(Debug)]
pub struct Training<M = TrainedModel> {
    pub plan: Plan<M>,
    pub name: RunName,
    pub folder: RunFolder,
    pub throughput: Throughput,
    /// Whether TensorBoard's files are written into the run's folder.
    pub tensorboard: bool,
    pub trackers: Trackers,
    /// How more machines run rollouts for it, where its store lets them.
    pub nodes: NodeOptions,
}

/// What a check without a run found.
#[derive(Debug)]
pub struct TrainCheck {
    pub manifest: Manifest,
    /// The interpreter or binary.
    pub program: Utf8PathBuf,
    /// How fast this machine is; `None` with the torch trainer.
    pub pace: Option<Pace>,
}

impl<M: PlannedModel + Sync> Training<M> {
    /// A run of this plan, under a new name unless one is given.
    pub fn new(plan: Plan<M>, name: Option<RunName>) -> Result<Self, RunError> {
        let (name, folder) = named_folder(name, plan.stem(), &plan.workspace, RunKind::Training)?;
        Ok(Self {
            folder,
            plan,
            name,
            throughput: Throughput::default(),
            tensorboard: false,
            trackers: Trackers::default(),
            nodes: NodeOptions::default(),
        })
    }

    pub fn identity(&self) -> RunIdentity<'_> {
        RunIdentity {
            kind: RunKind::Training,
            name: &self.name,
            folder: &self.folder,
            workspace: &self.plan.workspace,
            project: self.plan.config.experiment.rollout.as_str(),
            config_text: &self.plan.config_text,
            log_limits: self.plan.config.logs,
            // The weights depend on earlier results as they are; the trainer retries what it may.
            run_again: vec![],
            dataset: Some(self.plan.dataset()),
        }
    }

    pub fn redactor(&self) -> Redactor {
        let secrets = self.plan.code.secrets.iter().map(|(_, value)| value);
        let of_judge = self.plan.judge.iter().flat_map(ReadyJudge::secrets);
        let of_model = self.plan.model.secrets();
        Redactor::new(secrets.chain(of_judge).chain(of_model).cloned())
    }

    /// Makes the environment of the user's code.
    pub async fn prepare(
        &self,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<ReadyCode, RunError> {
        let model = &self.plan.config.experiment.model_path;
        if let Some(chat) = policy::builtin_chat(model)
            && let Some(note) = self.plan.language_note(model, &chat)
        {
            around.notices.note(note);
        }
        if let Some(recipe) = self.plan.config.training.recipe_report() {
            around.notices.note(format_args!("Recipe: {recipe}"));
        }
        self.nodes.connect(around.parts, around.notices).await?;
        self.code_start().prepare(around).await
    }

    /// Starts the workers, and has their word that the rows will do.
    pub async fn preflight(
        &self,
        ready: &mut ReadyCode,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<(), RunError> {
        let workers = self.code_start().start(ready, around).await?;
        self.plan.check_for(workers.manifest())?;
        if self.nodes.nodes_only {
            // They have shown that the code can be run, which is all they are for.
            workers.shut_down(SHUTDOWN_GRACE).await;
        }
        Ok(())
    }

    fn code_start(&self) -> CodeStart<'_> {
        CodeStart {
            code: &self.plan.code,
            throughput: &self.throughput,
            max_in_flight: self.max_in_flight(),
            roles: WorkerRoles::AgentsAndGraders,
        }
    }

    /// The workers of the run, which are told of.
    pub fn workers(
        &self,
        ready: &ReadyCode,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<Arc<WorkerPool>, RunError> {
        let workers = ready.workers()?;
        let amount = self.plan.amount();
        self.plan
            .code
            .tell(workers.manifest(), &amount, &**around.notices);
        Ok(workers)
    }

    fn max_in_flight(&self) -> u32 {
        self.throughput
            .max_in_flight
            .unwrap_or_else(|| self.plan.default_in_flight())
    }

    pub fn engine_options(&self) -> EngineOptions {
        let training = &self.plan.config.training;
        let settings = DriveSettings::of_training(training, self.max_in_flight(), self.redactor());
        EngineOptions {
            claims: self.claims(),
            ..execution::engine_options(settings, &self.folder)
        }
    }

    /// What it came to so far; `trained` is how long this process trained.
    pub async fn numbers(
        &self,
        run: &OpenRun,
        trained: Option<Duration>,
    ) -> Result<TrainingReport, RunError> {
        let report = TrainingReport::of(&*run.store, &self.name, &self.folder).await?;
        let report = report.with_calls(&*run.store).await?;
        Ok(report
            .ran_here(run.resumed, trained)
            .found_complete(run.was_finished)
            .with_withheld(&self.plan.code.withheld))
    }

    /// What the run is marked as.
    pub fn status(&self, end: &TrainEnd) -> RunStatus {
        learning_run::status(end)
    }

    /// Leaves in the store that an error ended the run.
    pub async fn record_failure(&self, run: &OpenRun, error: &RunError) -> Result<(), RunError> {
        learning_run::record_failure(run, error, self.planned()?, &self.redactor()).await
    }

    fn planned(&self) -> Result<Planned, RunError> {
        Ok(Planned {
            steps: self.plan.steps()?.0,
            has_held_out_rows: self.plan.row_counts().1 > 0,
        })
    }

    pub fn token_limits(&self) -> TokenLimits {
        TokenLimits::of(&self.plan.config.training)
    }
}

#[async_trait]
impl Work for Training {
    type Event = TrainEvent;
    type Ready = ReadyCode;
    type End = TrainEnd;
    type Report = TrainingReport;

    fn identity(&self) -> RunIdentity<'_> {
        Self::identity(self)
    }

    fn redactor(&self) -> Redactor {
        Self::redactor(self)
    }

    fn trackers(&self) -> Trackers {
        self.trackers.beside_trainer()
    }

    fn interpreter<'r>(&self, ready: &'r ReadyCode) -> Option<&'r Utf8Path> {
        ready.interpreter()
    }

    async fn prepare(&self, around: &Surroundings<'_, TrainEvent>) -> Result<ReadyCode, RunError> {
        Self::prepare(self, around).await
    }

    fn pin(&self, ready: &ReadyCode) -> Result<Pinned, RunError> {
        self.plan.pinned(ready.digest())
    }

    async fn preflight(
        &self,
        ready: &mut ReadyCode,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<(), RunError> {
        self.plan.model.preflight().await?;
        Self::preflight(self, ready, around).await
    }

    async fn ended_before(&self, run: &OpenRun) -> Result<Option<TrainEnd>, RunError> {
        learning_run::ended_before(run, &self.folder, self.planned()?).await
    }

    async fn opened(
        &self,
        _ready: &ReadyCode,
        run: &OpenRun,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<(), RunError> {
        learning_run::compare_processors(run, &**around.notices);
        Ok(())
    }

    async fn drive(
        &self,
        ready: ReadyCode,
        run: &OpenRun,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<TrainEnd, RunError> {
        let plan = self.plan.train_plan()?;
        let workers = self.workers(&ready, around)?;
        let TrainedPolicy {
            gateway,
            model,
            sampler,
            nodes,
        } = self.serve_policy(run, around).await?;
        let (metrics, notices) = (self.nodes.metrics.as_ref(), &**around.notices);
        let _metrics = QueueMetrics::serve(&gateway, metrics, &run.store, notices).await?;
        let parts = TrainParts {
            store: Arc::clone(&run.store),
            sessions: Arc::new(GatewaySessions::local(gateway)),
            executor: workers,
            model,
            sampler,
            engine: self.engine_options(),
            folder: self.folder.path.clone(),
            tensorboard: self.tensorboard || self.trackers.has_tensorboard(),
            nodes,
        };
        let relay = StopRelay::start(&run.store, &around.stop.stop);
        let trained = self.train(plan, parts, around).await;
        relay.finish().await;
        trained
    }

    fn status(&self, end: &TrainEnd) -> RunStatus {
        Self::status(self, end)
    }

    async fn record_failure(&self, run: &OpenRun, error: &RunError) -> Result<(), RunError> {
        Self::record_failure(self, run, error).await
    }

    async fn report(&self, run: &OpenRun) -> Result<TrainingReport, RunError> {
        self.numbers(run, Some(run.began.elapsed())).await
    }
}

impl Training {
    /// Checks everything that a run would need, and starts none.
    pub async fn check(
        &self,
        stop: &StopSignals,
        notices: &Arc<dyn Notices>,
    ) -> Result<TrainCheck, RunError> {
        rehearse::<TrainEvent, _>(stop, notices, async |around| {
            self.plan.model.preflight().await?;
            let mut ready = self.code_start().prepare(around).await?;
            let workers = self.code_start().start(&mut ready, around).await?;
            let manifest = workers.manifest().clone();
            self.plan.check_for(&manifest)?;
            let amount = self.plan.amount();
            self.plan.code.tell(&manifest, &amount, &**around.notices);
            Ok(TrainCheck {
                manifest,
                program: ready.program().to_owned(),
                pace: self.pace(&**around.notices).await?,
            })
        })
        .await
    }

    async fn pace(&self, notices: &dyn Notices) -> Result<Option<Pace>, RunError> {
        let TrainedModel::Embedded(model) = &self.plan.model else {
            return Ok(None);
        };
        notices.step("Measuring how fast this machine samples and trains");
        let (model, at_once) = (Arc::clone(model), self.plan.sequences_at_once());
        let measured = tokio::task::spawn_blocking(move || model.pace(at_once)).await;
        let measured = measured.map_err(|error| TrainError::Internal(error.to_string()))?;
        Ok(Some(measured.map_err(TrainError::from)?))
    }

    /// Trains to the end. A database that is lost for a while costs what was under way: then the run is opened again, as
    /// a resume would, and goes on from its last checkpoint with what is recorded.
    async fn train(
        &self,
        plan: TrainPlan,
        parts: TrainParts,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<TrainEnd, RunError> {
        let (signals, notices) = (around.stop, &**around.notices);
        loop {
            let attempt = async {
                let mut trainer = Trainer::open(plan.clone(), parts.clone()).await?;
                let events = around.events.run_events();
                trainer.run(&signals.stop, events).await
            };
            let error = match attempt.await {
                Ok(end) => return Ok(end),
                Err(error) => error,
            };
            wait_out(error, &parts.store, &parts.engine.owner, signals, notices).await?;
        }
    }

    /// The model behind a gateway whose `[sampling]` wins over what agents ask for: training needs to
    /// know the distribution that tokens were drawn from.
    async fn serve_policy(
        &self,
        run: &OpenRun,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<TrainedPolicy, RunError> {
        match &self.plan.model {
            TrainedModel::Embedded(model) => {
                if run.store.shared().is_some() {
                    model.keep();
                }
                let (policy, sampler) = self.embedded_policy(model).await?;
                around.parts.add_sampler(&sampler);
                let gateway = self.serve_at_gateway(&policy, run, around).await?;
                let nodes = self
                    .invite_nodes(model.parts(), &sampler, run, around)
                    .await?;
                Ok(TrainedPolicy {
                    gateway,
                    model: Arc::clone(model) as Arc<dyn TrainableModel>,
                    sampler,
                    nodes,
                })
            }
            TrainedModel::Torch(model) => {
                Self::refuse_nodes(run)?;
                let starting = TorchRuntime::start(TorchStart {
                    model,
                    training: &self.plan.config.training,
                    seed: self.plan.seed(),
                    run_folder: &self.folder.path,
                    notices: around.notices,
                });
                let runtime = around.stop.unless_stopped(starting).await?;
                let part: Arc<dyn Part> = Arc::clone(&runtime) as Arc<dyn Part>;
                around.parts.share(Stage::Policy, part);
                let policy: Arc<dyn Policy> = Arc::new(policy::asked_elsewhere(
                    &self.plan.config.experiment.model_path,
                    runtime.engine(),
                    Arc::clone(&model.chat),
                    self.plan.seed(),
                    Some(self.token_limits()),
                    &model.choice,
                ));
                let gateway = self.serve_at_gateway(&policy, run, around).await?;
                Ok(TrainedPolicy {
                    gateway,
                    model: Arc::clone(&runtime) as Arc<dyn TrainableModel>,
                    sampler: runtime,
                    nodes: None,
                })
            }
        }
    }

    async fn embedded_policy(
        &self,
        model: &Arc<StartModel>,
    ) -> Result<(Arc<dyn Policy>, Arc<Sampler>), RunError> {
        let experiment = &self.plan.config.experiment;
        freeze(model, self.plan.seed(), &self.folder).await?;
        let sampled = Arc::clone(model);
        // Packing weights takes seconds.
        let started = tokio::task::spawn_blocking(move || {
            sampled.sampler(PolicyVersion(0), policy::sampler_options())
        });
        let sampler = started
            .await
            .map_err(|error| TrainError::Internal(error.to_string()))?
            .map_err(TrainError::from)?;
        Ok(policy::sampled(
            &experiment.model_path,
            sampler,
            &model.parts().chat,
            self.plan.seed(),
            Some(self.token_limits()),
            experiment.chat_template.as_ref().map(ToString::to_string),
        ))
    }

    async fn serve_at_gateway(
        &self,
        policy: &Arc<dyn Policy>,
        run: &OpenRun,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<Arc<Gateway>, RunError> {
        let sampling = execution::training_sampling(self.plan.config.sampling);
        let gateway = execution::start_gateway(None, sampling, policy, &run.store).await?;
        let gateway = around.parts.add_gateway(gateway);
        if let Some(judge) = &self.plan.judge {
            judge.serve_at(&gateway);
        }
        Ok(gateway)
    }
}

/// What a run trains, and what it is asked through.
struct TrainedPolicy {
    gateway: Arc<Gateway>,
    model: Arc<dyn TrainableModel>,
    sampler: Arc<dyn WeightSink>,
    nodes: Option<Arc<dyn NodeGate>>,
}
