//! What runs for a run: workers, gateways, samplers. Each part is registered when it starts, and all of
//! them are brought down at one place, whatever way the run ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use osmosis_gateway::{Gateway, TokenEndpoint};
use osmosis_policy::Sampler;
use osmosis_worker::{Intrusion, WorkerError, WorkerPool};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::RunError;
use crate::notices::Notices;
use crate::run_code::RunCode;

/// How long workers and gateways may take to end.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// When a part goes down: what asks others for something goes before those it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// What runs user code, here or elsewhere.
    Execution,
    /// What that sends its model calls to.
    Gateway,
    /// What answers them.
    Policy,
}

/// Something that runs, and can be brought down. Doing so twice does no harm.
#[async_trait]
pub trait Part: Send + Sync {
    async fn shut_down(&self);

    /// Why nothing that it answered can be trusted any more.
    fn intrusion(&self) -> Option<Intrusion> {
        None
    }
}

#[async_trait]
impl Part for WorkerPool {
    fn intrusion(&self) -> Option<Intrusion> {
        Self::intrusion(self)
    }

    async fn shut_down(&self) {
        Self::shut_down(self, SHUTDOWN_GRACE).await;
    }
}

#[async_trait]
impl Part for Gateway {
    async fn shut_down(&self) {
        Self::shut_down(self, SHUTDOWN_GRACE).await;
    }
}

#[async_trait]
impl Part for TokenEndpoint {
    async fn shut_down(&self) {
        Self::shut_down(self, SHUTDOWN_GRACE).await;
    }
}

#[async_trait]
impl Part for Sampler {
    async fn shut_down(&self) {
        Self::shut_down(self);
    }
}

/// The running parts of one run.
#[derive(Default)]
pub struct RunningParts {
    parts: Mutex<Vec<(Stage, Arc<dyn Part>)>>,
    /// What workers execute.
    code: Mutex<Vec<Executed>>,
    /// Cancelled when one of them can't be trusted any more.
    alarm: CancellationToken,
}

/// Code that workers execute, and who is told of it at the end.
struct Executed {
    code: Arc<RunCode>,
    notices: Arc<dyn Notices>,
}

impl fmt::Debug for RunningParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages: Vec<Stage> = self.parts.lock().iter().map(|(stage, _)| *stage).collect();
        f.debug_tuple("RunningParts").field(&stages).finish()
    }
}

impl RunningParts {
    /// Takes care of a part that has started.
    pub fn add<P: Part + 'static>(&self, stage: Stage, part: P) -> Arc<P> {
        let part = Arc::new(part);
        self.share(stage, Arc::<P>::clone(&part));
        part
    }

    /// The same for a part that others have already.
    pub fn share(&self, stage: Stage, part: Arc<dyn Part>) {
        self.parts.lock().push((stage, part));
    }

    pub fn add_workers(&self, workers: WorkerPool) -> Arc<WorkerPool> {
        workers.alarm(self.alarm.clone());
        self.add(Stage::Execution, workers)
    }

    /// Does something, for which `stop` is called when a process gets in among the workers. Then that is the error,
    /// whatever became of the rest.
    pub async fn unless_intruded<T>(
        &self,
        work: impl Future<Output = Result<T, RunError>>,
        stop: impl FnOnce(),
    ) -> Result<T, RunError> {
        let mut work = std::pin::pin!(work);
        let done = tokio::select! {
            done = &mut work => done,
            () = self.alarm.cancelled() => {
                stop();
                work.await
            }
        };
        let intrusion = self
            .parts
            .lock()
            .iter()
            .find_map(|(_, part)| part.intrusion());
        match intrusion {
            Some(intrusion) => Err(WorkerError::Intrusion(intrusion).into()),
            None => done,
        }
    }

    pub fn add_gateway(&self, gateway: Gateway) -> Arc<Gateway> {
        self.add(Stage::Gateway, gateway)
    }

    pub fn add_sampler(&self, sampler: &Arc<Sampler>) {
        self.share(Stage::Policy, Arc::<Sampler>::clone(sampler));
    }

    /// Takes care of what workers execute.
    pub fn add_code(&self, code: Arc<RunCode>, notices: &Arc<dyn Notices>) {
        let notices = Arc::clone(notices);
        self.code.lock().push(Executed { code, notices });
    }

    /// Brings everything down, and lets go of it. Fails when what workers executed is not what it was.
    pub async fn shut_down(&self) -> Result<(), RunError> {
        let mut parts = std::mem::take(&mut *self.parts.lock());
        parts.sort_by_key(|(stage, _)| *stage);
        for (_, part) in parts {
            part.shut_down().await;
        }
        let mut unchanged = Ok(());
        let executed = std::mem::take(&mut *self.code.lock());
        for one in executed {
            unchanged = unchanged.and(one.code.finish(&*one.notices).await);
        }
        unchanged
    }
}
