//! Rollouts that are run and graded at a rollout server. The client of such servers is in a crate above
//! this one, so it comes in through these traits.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use osmosis_core::{Attempt, RolloutId};
use osmosis_engine::{Executor, GradeJob, GradeReport, RunJob, TaskReport, Terms};
use osmosis_gateway::{Annex, Gateway};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::RunError;
use crate::life::Part;
use crate::runs::Pinned;

/// A rollout server that an evaluation is to use.
#[async_trait]
pub trait RolloutServer: fmt::Debug + Send + Sync {
    /// Its address, for people.
    fn url(&self) -> &str;

    /// Texts that must never be written down.
    fn secrets(&self) -> Vec<String>;

    /// What a resume must find as it is now, and what it goes on with.
    fn pin(&self, facts: &mut Pinned);

    /// Asks whether it is there.
    async fn reach(&self) -> Result<Box<dyn ReachedServer>, RunError>;
}

/// A rollout server that answered.
pub trait ReachedServer: fmt::Debug + Send + Sync {
    /// What it says of itself.
    fn health(&self) -> &Value;

    /// What our gateway has to serve beside model calls, for the server to call us back.
    fn callbacks(&self) -> Annex;

    /// Where our gateway has to listen for the server to reach it.
    fn listen(&self) -> SocketAddr;

    /// Has rollouts run there, which reach us at this gateway.
    fn executor(self: Box<Self>, gateway: &Gateway) -> Arc<dyn RemoteExecutor>;
}

/// Runs rollouts elsewhere until it is brought down.
pub trait RemoteExecutor: Executor + Part {}

/// A remote executor as the engine takes it.
#[derive(Debug)]
pub struct SharedExecutor(pub Arc<dyn RemoteExecutor>);

#[async_trait]
impl Executor for SharedExecutor {
    fn alias(&self, rollout: &RolloutId, attempt: Attempt) -> Option<RolloutId> {
        self.0.alias(rollout, attempt)
    }

    fn self_graded(&self) -> bool {
        self.0.self_graded()
    }

    async fn run(&self, job: RunJob, terms: Terms, cancel: &CancellationToken) -> TaskReport {
        self.0.run(job, terms, cancel).await
    }

    async fn grade(&self, job: GradeJob, terms: Terms, cancel: &CancellationToken) -> GradeReport {
        self.0.grade(job, terms, cancel).await
    }
}
