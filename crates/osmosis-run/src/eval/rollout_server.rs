//! Rollouts that are run and graded at a rollout server. The client of such servers is in a crate above
//! this one, so it comes in through these traits.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use osmosis_engine::Executor;
use osmosis_gateway::{ExtraRoutes, Gateway};
use serde_json::Value;

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
    fn callbacks(&self) -> ExtraRoutes;

    /// Where our gateway has to listen for the server to reach it.
    fn listen(&self) -> SocketAddr;

    /// Has rollouts run there, which reach us at this gateway.
    fn executor(self: Box<Self>, gateway: &Gateway) -> Arc<dyn RemoteExecutor>;
}

/// Runs rollouts elsewhere until it is brought down.
pub trait RemoteExecutor: Executor + Part {}
