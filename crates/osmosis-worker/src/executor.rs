//! The pool as the engine sees it.

use async_trait::async_trait;
use osmosis_core::execution::{GradeJob, GradeReport, RunJob, TaskReport, Terms};
use osmosis_core::{Attempt, RolloutId};
use osmosis_engine::Executor;
use tokio_util::sync::CancellationToken;

use crate::WorkerPool;

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
