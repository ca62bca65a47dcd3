//! Where rollouts are run and graded: worker processes of ours, or somewhere else.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use osmosis_core::{Attempt, RolloutId, Sample};
use osmosis_worker::{GradeJob, Isolation, RunJob, TaskReport, WorkerPool};
use tokio_util::sync::CancellationToken;

/// How one attempt at a rollout is to be executed.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub attempt: Attempt,
    pub isolation: Isolation,
    /// The deadline of the workflow, from when user code starts.
    pub agent_limit: Duration,
    /// The same for the grader.
    pub grade_limit: Duration,
}

/// What came back from a grader.
#[derive(Debug)]
pub struct GradeReport {
    pub task: TaskReport,
    /// The samples as they are to be recorded when they have no grade.
    pub samples: Vec<Sample>,
}

/// Runs the workflow of a rollout, then its grader. A `run` that is done is followed by its `grade`;
/// after any other result there is none.
#[async_trait]
pub trait Executor: fmt::Debug + Send + Sync {
    /// What an attempt is called where it runs, when that is not its own id. Model calls come under this
    /// name.
    fn alias(&self, rollout: &RolloutId, attempt: Attempt) -> Option<RolloutId>;

    /// Whether the workflow takes rows as they are and is its own grader: `run` then answers with rewards,
    /// and `grade` is never called.
    fn self_graded(&self) -> bool {
        false
    }

    /// Runs the workflow. Who is asked to cancel answers `Cancelled`, soon.
    async fn run(&self, job: RunJob, terms: Terms, cancel: &CancellationToken) -> TaskReport;

    /// Grades what `run` has done.
    async fn grade(&self, job: GradeJob, terms: Terms, cancel: &CancellationToken) -> GradeReport;
}

#[async_trait]
impl Executor for WorkerPool {
    fn alias(&self, _rollout: &RolloutId, _attempt: Attempt) -> Option<RolloutId> {
        None
    }

    fn self_graded(&self) -> bool {
        self.manifest().self_graded
    }

    async fn run(&self, job: RunJob, terms: Terms, cancel: &CancellationToken) -> TaskReport {
        Self::run(self, job, terms.isolation, terms.agent_limit, cancel).await
    }

    async fn grade(&self, job: GradeJob, terms: Terms, cancel: &CancellationToken) -> GradeReport {
        let samples = job.samples.clone();
        let task = Self::grade(self, job, terms.isolation, terms.grade_limit, cancel).await;
        GradeReport { task, samples }
    }
}
