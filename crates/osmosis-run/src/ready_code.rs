//! The user's code of a run, from its environment to workers that have imported it: once for every kind of
//! run that starts workers of its own.

use std::sync::Arc;

use camino::Utf8Path;
use osmosis_worker::{PoolOptions, WorkerPool};

use crate::execution::pool_options;
use crate::life::Surroundings;
use crate::run_code::RunCode;
use crate::settings::Throughput;
use crate::user_code::UserCode;
use crate::{RunError, RunErrorKind};

/// How the user's code of one run is started.
#[derive(Debug)]
pub struct CodeStart<'a> {
    pub code: &'a UserCode,
    pub throughput: &'a Throughput,
    pub max_in_flight: u32,
    pub roles: WorkerRoles,
}

/// What workers are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerRoles {
    AgentsAndGraders,
    GradersOnly,
}

/// User code whose environment is made, with its workers once they are started.
#[derive(Debug)]
pub struct ReadyCode {
    code: Arc<RunCode>,
    workers: Option<Arc<WorkerPool>>,
}

impl CodeStart<'_> {
    /// Makes the environment of the project, or builds it, and takes the snapshot that the run executes.
    pub async fn prepare<E: Send + 'static>(
        &self,
        around: &Surroundings<'_, E>,
    ) -> Result<ReadyCode, RunError> {
        let python = self.throughput.python.as_deref();
        let prepared = self.code.prepare(python, &**around.notices).await?;
        let code = self.code.take(prepared).await?;
        around.parts.add_code(Arc::clone(&code), around.notices);
        Ok(ReadyCode {
            code,
            workers: None,
        })
    }

    /// Starts the workers, which import the user's code; they end with the run.
    pub async fn start<E: Send + 'static>(
        &self,
        ready: &mut ReadyCode,
        around: &Surroundings<'_, E>,
    ) -> Result<Arc<WorkerPool>, RunError> {
        let experiment = &self.code.experiment;
        around.notices.step(format_args!(
            "Importing rollouts/{}/{}",
            experiment.rollout, experiment.entrypoint.file
        ));
        let events = around.events.worker_events();
        let starting =
            self.code
                .start_workers(&ready.code, self.pool_options(), events, &**around.notices);
        let workers = around.parts.add_workers(starting.await?);
        ready.workers = Some(Arc::clone(&workers));
        Ok(workers)
    }

    fn pool_options(&self) -> PoolOptions {
        let isolation = self.code.isolation();
        let options = pool_options(self.throughput, self.max_in_flight, isolation);
        match self.roles {
            WorkerRoles::AgentsAndGraders => options,
            WorkerRoles::GradersOnly => PoolOptions {
                agent_workers: 1,
                grader_workers: options.agent_workers,
                ..options
            },
        }
    }
}

impl ReadyCode {
    /// A digest of the environment.
    pub fn digest(&self) -> &str {
        self.code.prepared().digest()
    }

    /// The interpreter or binary.
    pub fn program(&self) -> &Utf8Path {
        self.code.prepared().program()
    }

    /// The project's Python, when it is written in Python.
    pub fn interpreter(&self) -> Option<&Utf8Path> {
        self.code.prepared().interpreter()
    }

    /// The workers, which [`CodeStart::start`] has started.
    pub fn workers(&self) -> Result<Arc<WorkerPool>, RunError> {
        self.workers.clone().ok_or_else(|| {
            RunError::failed(RunErrorKind::Internal, "the workers were never started")
        })
    }
}
