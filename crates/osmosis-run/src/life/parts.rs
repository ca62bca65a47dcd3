//! What runs for a run: workers, gateways, samplers. Each part is registered when it starts, and all of
//! them are brought down at one place, whatever way the run ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use osmosis_gateway::{Gateway, TokenEndpoint};
use osmosis_policy::Sampler;
use osmosis_worker::WorkerPool;
use parking_lot::Mutex;

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
}

#[async_trait]
impl Part for WorkerPool {
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
        self.add(Stage::Execution, workers)
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
