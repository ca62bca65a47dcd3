//! One training run whose trainer is another process: it gets rollouts in batches, and announces weights.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use camino::Utf8Path;
use osmosis_core::{PolicyVersion, Redactor};
use osmosis_gateway::{Gateway, GatewayOptions, Policy, Secret};
use osmosis_run::execution;
use osmosis_run::life::{OpenRun, RunIdentity, Surroundings, Work};
use osmosis_run::policy;
use osmosis_run::ready_code::ReadyCode;
use osmosis_run::reports::TrainingReport;
use osmosis_run::runs::Pinned;
use osmosis_run::train::outside_model::OutsideModel;
use osmosis_run::train::training::Training;
use osmosis_run::{GatewaySessions, RunError};
use osmosis_store::RunStatus;
use osmosis_train::delivery::{AnnouncedVersion, OutsideParts, OutsidePlan, OutsideTraining};
use osmosis_train::{TrainEnd, TrainEvent};

use crate::{BatchService, Listening};

const OTHER_ADDRESS: &str = "choose another address with `--listen ADDR`";

/// A training run for a trainer in another process.
pub struct ServedTraining {
    pub training: Training<OutsideModel>,
    /// Where the trainer reaches it; any free port of this machine unless it is said.
    pub listen: Option<SocketAddr>,
    /// What opens it; made up unless it is given.
    pub control_key: Option<Secret>,
    /// Called when trainers can come.
    pub serving: Box<dyn Fn(&TrainerAddress<'_>) + Send + Sync>,
}

/// Where a trainer finds a run, and how far that is.
#[derive(Debug)]
pub struct TrainerAddress<'a> {
    pub url: &'a str,
    pub control_key: &'a Secret,
    pub version: PolicyVersion,
    pub acknowledged: u64,
    pub batches: u64,
}

/// What answers the agents.
struct ServedPolicy {
    gateway: Arc<Gateway>,
    service: Arc<BatchService>,
    /// Where the version is kept of a policy that does not keep it itself.
    version: Option<AnnouncedVersion>,
}

#[async_trait]
impl Work for ServedTraining {
    type Event = TrainEvent;
    type Ready = ReadyCode;
    type End = TrainEnd;
    type Report = TrainingReport;

    fn identity(&self) -> RunIdentity<'_> {
        self.training.identity()
    }

    fn redactor(&self) -> Redactor {
        self.training.redactor()
    }

    fn interpreter<'r>(&self, ready: &'r ReadyCode) -> Option<&'r Utf8Path> {
        ready.interpreter()
    }

    async fn prepare(&self, around: &Surroundings<'_, TrainEvent>) -> Result<ReadyCode, RunError> {
        self.training.prepare(around).await
    }

    fn pin(&self, ready: &ReadyCode) -> Result<Pinned, RunError> {
        self.training.plan.pinned(ready.digest())
    }

    async fn preflight(
        &self,
        ready: &mut ReadyCode,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<(), RunError> {
        self.training.preflight(ready, around).await?;
        if let Some(address) = self.listen {
            // Whether it is free; the gateway, which needs the run's store, takes it.
            Listening::on(address)
                .await
                .map_err(|error| RunError::from(error).hint(OTHER_ADDRESS))?;
        }
        Ok(())
    }

    async fn opened(
        &self,
        _ready: &ReadyCode,
        _run: &OpenRun,
        _around: &Surroundings<'_, TrainEvent>,
    ) -> Result<(), RunError> {
        Ok(())
    }

    async fn drive(
        &self,
        ready: ReadyCode,
        run: &OpenRun,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<TrainEnd, RunError> {
        let plan = self.training.plan.train_plan()?;
        let workers = self.training.workers(&ready, around)?;
        let served = self.serve_policy(run, around).await?;
        let plan = OutsidePlan {
            rows: plan.rows,
            training: plan.training,
            seed: plan.seed,
        };
        let parts = OutsideParts {
            store: Arc::clone(&run.store),
            sessions: Arc::new(GatewaySessions::local(Arc::clone(&served.gateway))),
            executor: workers,
            versions: served.gateway.announced_versions(),
            engine: self.training.engine_options(),
            folder: self.training.folder.path.clone(),
            version: served.version,
        };
        let stop = &around.stop.stop;
        let (training, registry) = OutsideTraining::open(plan, parts, stop).await?;
        served.service.open(registry);
        (self.serving)(&TrainerAddress {
            url: served.gateway.url(),
            control_key: served.gateway.control_key(),
            version: *served.gateway.announced_versions().borrow(),
            acknowledged: training.acknowledged(),
            batches: training.batches(),
        });
        Ok(training.run(stop, around.events.run_events()).await?)
    }

    fn status(&self, end: &TrainEnd) -> RunStatus {
        self.training.status(end)
    }

    async fn record_failure(&self, run: &OpenRun, error: &RunError) -> Result<(), RunError> {
        self.training.record_failure(run, error).await
    }

    async fn report(&self, run: &OpenRun) -> Result<TrainingReport, RunError> {
        self.training.numbers(run, None).await
    }
}

impl fmt::Debug for ServedTraining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedTraining")
            .field("training", &self.training)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

impl ServedTraining {
    /// The policy behind a gateway whose `[sampling]` wins over what agents ask for.
    async fn serve_policy(
        &self,
        run: &OpenRun,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<ServedPolicy, RunError> {
        let (policy, version) = self.policy(around)?;
        let sampling = execution::training_sampling(self.training.plan.config.sampling);
        let service = Arc::new(BatchService::default());
        let options = GatewayOptions {
            services: vec![(BatchService::PATH.to_owned(), Arc::clone(&service) as _)],
            control_key: self.control_key.clone(),
            ..execution::gateway_options(self.listen, sampling)
        };
        let gateway = execution::start_gateway_with(options, &policy, &run.store)
            .await
            .map_err(|error| error.hint(OTHER_ADDRESS))?;
        let gateway = around.parts.add_gateway(gateway);
        if let Some(judge) = &self.training.plan.judge {
            judge.serve_at(&gateway);
        }
        Ok(ServedPolicy {
            gateway,
            service,
            version,
        })
    }

    /// What samples, and where its version is kept when it does not keep it itself.
    fn policy(
        &self,
        around: &Surroundings<'_, TrainEvent>,
    ) -> Result<(Arc<dyn Policy>, Option<AnnouncedVersion>), RunError> {
        let training = &self.training;
        let config = &training.plan.config;
        match &training.plan.model {
            OutsideModel::Embedded(model) => {
                let (policy, sampler) = policy::trained_outside(
                    &config.experiment.model_path,
                    model,
                    training.plan.seed(),
                    training.token_limits(),
                    config
                        .experiment
                        .chat_template
                        .as_ref()
                        .map(ToString::to_string),
                    (training.folder.path.clone(), config.checkpoints),
                )?;
                around.parts.add_sampler(&sampler);
                Ok((policy, None))
            }
            OutsideModel::Servers(ready) => {
                let kept = AnnouncedVersion::kept_in(&training.folder.path);
                // Servers do not know what they were announced as.
                if let Some(version) = kept.read()? {
                    ready.policy.set_version(version);
                }
                Ok((Arc::clone(&ready.policy), Some(kept)))
            }
        }
    }
}
