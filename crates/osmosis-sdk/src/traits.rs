use serde::de::DeserializeOwned;

use crate::{GraderContext, Result, WorkflowContext, WorkflowOutput};

/// An agent: what is done with one row of the dataset.
///
/// One value serves all rollouts of a worker process, many at once, so what belongs to a rollout
/// lives in `run`. Write `async fn run`; its future must be `Send`.
pub trait AgentWorkflow: Send + Sync + 'static {
    /// `[workflow]` of the run config; `()` for a workflow without settings.
    type Config: DeserializeOwned + Send + Sync + 'static;

    /// Runs the agent on one row. What it returns becomes the sample `main`, unless samples were
    /// registered with [`WorkflowContext::add_sample`].
    ///
    /// When the engine cancels a rollout this future is dropped. Tasks you spawned yourself are
    /// not: tie them to the future, for instance with a `JoinSet`.
    fn run(
        &self,
        ctx: &WorkflowContext<Self::Config>,
    ) -> impl Future<Output = Result<WorkflowOutput>> + Send;

    /// How many rollouts may run at once over all workers; `None` leaves it to the engine.
    fn max_concurrent(&self, config: &Self::Config) -> Option<u32> {
        let _ = config;
        None
    }
}

/// A reward: how good the samples of a rollout are.
pub trait Grader: Send + Sync + 'static {
    /// `[grader]` of the run config; `()` for a grader without settings.
    type Config: DeserializeOwned + Send + Sync + 'static;

    /// Grades the samples of one rollout. Every sample needs a reward afterwards, unless it was
    /// taken out with [`GraderContext::remove_sample`].
    fn grade(&self, ctx: &GraderContext<Self::Config>) -> impl Future<Output = Result<()>> + Send;

    /// How many gradings may run at once over all workers; `None` leaves it to the engine.
    fn max_concurrent(&self, config: &Self::Config) -> Option<u32> {
        let _ = config;
        None
    }
}
