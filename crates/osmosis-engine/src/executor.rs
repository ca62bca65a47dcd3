//! Where rollouts are run and graded: worker processes of ours, or somewhere else.

use std::fmt;

use async_trait::async_trait;
use osmosis_core::execution::{GradeJob, GradeReport, RunJob, TaskReport, Terms};
use osmosis_core::{Attempt, RolloutId};
use tokio_util::sync::CancellationToken;

/// Runs the workflow of a rollout, then its grader: the only way to user code. A `run` that is done is followed
/// by its `grade`; after any other result there is none.
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
