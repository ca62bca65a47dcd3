//! The running parts of an evaluation: user code here or at a server, the gateway, the engine.

use std::sync::Arc;

use camino::Utf8Path;
use osmosis_engine::{Engine, EngineOptions, Executor, RunEnd, RunEvent, Stop};
use osmosis_gateway::Gateway;
use osmosis_run::{GatewaySessions, RunError};
use osmosis_server::{Callbacks, RemoteRollouts, RemoteServer};
use osmosis_store::Store;
use osmosis_worker::WorkerPool;

use super::at_server::AtServer;
use super::money::Money;
use super::plan::UserSide;
use super::submit::Job;
use super::trace::{TracedRun, Tracer};
use crate::display::Display;
use crate::execution::{self, DriveSettings, SHUTDOWN_GRACE, pool_options};
use crate::prepared::Prepared;
use crate::stop_signals::StopSignals;
use crate::user_code::UserCode;

/// User code that can be put to work.
#[derive(Debug)]
pub(super) enum Ready<'a> {
    /// With workers that run already, when they had to be asked before anything else.
    Here(&'a UserCode, Box<Prepared>, Option<Arc<WorkerPool>>),
    AtServer(&'a AtServer, Box<RemoteServer>),
}

impl Ready<'_> {
    /// A digest of the environment; a server's is its own affair.
    pub(super) fn digest(&self) -> Option<&str> {
        match self {
            Self::Here(_, prepared, _) => Some(prepared.digest()),
            Self::AtServer(..) => None,
        }
    }
}

impl Ready<'_> {
    /// The rollout's own Python, when it has one here.
    pub(super) fn interpreter(&self) -> Option<&Utf8Path> {
        match self {
            Self::Here(_, prepared, _) => prepared.interpreter(),
            Self::AtServer(..) => None,
        }
    }
}

/// What a run is driven with.
pub(super) struct Surroundings<'a> {
    pub(super) signals: &'a StopSignals,
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) display: &'a Display<RunEvent>,
    pub(super) money: &'a Money,
}

impl Job {
    pub(super) async fn prepare(&self) -> Result<Ready<'_>, RunError> {
        match &self.plan.side {
            UserSide::Here(code) => {
                let python = self.throughput.python.as_deref();
                let prepared = code.prepare(python, self.output).await?;
                Ok(Ready::Here(code, Box::new(prepared), None))
            }
            UserSide::AtServer(server) => {
                let met = server.meet().await?;
                Ok(Ready::AtServer(server, Box::new(met)))
            }
        }
    }

    /// Starts the workers ahead of the run when only they can say whether the dataset will do.
    pub(super) async fn ask_workflow<'a>(
        &self,
        ready: Ready<'a>,
        display: &Display<RunEvent>,
    ) -> Result<Ready<'a>, RunError> {
        match ready {
            Ready::Here(code, prepared, None) if self.plan.dataset.depends_on_workflow() => {
                let workers = self.start_workers(code, &prepared, display).await?;
                if let Err(error) = self.plan.dataset.check_for(workers.manifest()) {
                    workers.shut_down(SHUTDOWN_GRACE).await;
                    return Err(error);
                }
                Ok(Ready::Here(code, prepared, Some(Arc::new(workers))))
            }
            other => Ok(other),
        }
    }

    pub(super) async fn start_workers(
        &self,
        code: &UserCode,
        prepared: &Prepared,
        display: &Display<RunEvent>,
    ) -> Result<WorkerPool, RunError> {
        let options = pool_options(
            &self.throughput,
            self.max_in_flight(),
            self.plan.config.workers.isolation,
        );
        let events = display.worker_events();
        code.start_workers(prepared, options, events).await
    }

    /// Runs what the queue holds. Whatever happens, workers and gateway are gone afterwards.
    pub(super) async fn drive(
        &self,
        ready: Ready<'_>,
        around: &Surroundings<'_>,
    ) -> Result<RunEnd, RunError> {
        let counts = around.store.counts().await?;
        if counts.queued + counts.leased == 0 {
            if let Ready::Here(_, _, Some(workers)) = ready {
                workers.shut_down(SHUTDOWN_GRACE).await;
            }
            return Ok(RunEnd::Complete);
        }
        match ready {
            Ready::Here(code, prepared, workers) => {
                let workers = if let Some(workers) = workers {
                    workers
                } else {
                    let starting = self.start_workers(code, &prepared, around.display);
                    Arc::new(around.signals.unless_stopped(starting).await?)
                };
                self.drive_workers(code, workers, around).await
            }
            Ready::AtServer(wanted, met) => self.drive_server(wanted, *met, around).await,
        }
    }

    async fn drive_workers(
        &self,
        code: &UserCode,
        workers: Arc<WorkerPool>,
        around: &Surroundings<'_>,
    ) -> Result<RunEnd, RunError> {
        code.tell(workers.manifest(), &self.amount(), &self.output);
        let sampling = execution::sampling(self.plan.config.sampling, false);
        let gateway =
            execution::start_gateway(None, sampling, &self.plan.ready.policy, around.store).await;
        let gateway = match gateway {
            Ok(gateway) => Arc::new(gateway),
            Err(error) => {
                workers.shut_down(SHUTDOWN_GRACE).await;
                return Err(error);
            }
        };
        if let Some(judge) = &self.plan.judge {
            judge.serve_at(&gateway);
        }
        let executor = Arc::<WorkerPool>::clone(&workers);
        let end = self.run_engine(&gateway, executor, around).await;
        workers.shut_down(SHUTDOWN_GRACE).await;
        gateway.shut_down(SHUTDOWN_GRACE).await;
        end
    }

    async fn drive_server(
        &self,
        wanted: &AtServer,
        met: RemoteServer,
        around: &Surroundings<'_>,
    ) -> Result<RunEnd, RunError> {
        wanted.tell(&met, &self.amount(), &self.output);
        let callbacks = Callbacks::default();
        let gateway = execution::start_gateway_beside(
            callbacks.annex(),
            wanted.reach.listen,
            execution::sampling(self.plan.config.sampling, false),
            &self.plan.ready.policy,
            around.store,
        );
        let gateway = Arc::new(gateway.await?);
        let base = match &wanted.reach.base {
            Some(base) => base,
            None => gateway.url().trim_end_matches("/v1"),
        };
        let rollouts = Arc::new(RemoteRollouts::new(met, callbacks, base));
        let executor = Arc::<RemoteRollouts>::clone(&rollouts);
        let end = self.run_engine(&gateway, executor, around).await;
        rollouts.close().await;
        gateway.shut_down(SHUTDOWN_GRACE).await;
        end
    }

    async fn run_engine(
        &self,
        gateway: &Arc<Gateway>,
        executor: Arc<dyn Executor>,
        around: &Surroundings<'_>,
    ) -> Result<RunEnd, RunError> {
        let before = around.store.call_totals().await?;
        let policy = &self.plan.ready.policy;
        self.sight
            .open(gateway, policy, around.money.prices, before);
        let tracer = Tracer::start(
            gateway.rollout_spans(),
            self.traced(),
            around.store,
            around.display.run_events(),
        );
        let mut engine = Engine::new(
            Arc::clone(around.store),
            Arc::new(GatewaySessions::local(Arc::clone(gateway))),
            executor,
            self.engine_options(),
            tracer.events(),
        );
        let stop = Stop {
            drain: around.signals.drain.clone(),
            now: around.signals.now.clone(),
        };
        if let Some(budget) = &around.money.budget {
            engine = engine.begins_while(budget.may_begin(gateway, before));
        }
        let end = engine.run(&stop).await;
        drop(engine);
        tracer.finish(self.output).await;
        Ok(end?)
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
        let settings = DriveSettings::of_evaluation(evaluation, in_flight, self.redactor());
        execution::engine_options(settings, &self.folder)
    }
}
