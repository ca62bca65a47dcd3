//! What a policy can do beyond answering chat calls.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use camino::Utf8Path;
use osmosis_core::PolicyVersion;
use osmosis_dialect::{Dialect, OutputLimit};

use super::Policy;
use crate::error::GatewayError;
use crate::policy::probe_finding::Probed;
use crate::policy::upstream::{EndpointOptions, PoolLoad};

/// What a policy can do. The default is a policy that answers chat calls and nothing else.
#[derive(Clone, Copy, Default)]
pub struct Capabilities<'a> {
    /// The dialects it answers itself. Calls of others are translated to chat and back, or refused.
    pub dialects: DialectSet,
    /// Whether it answers calls that bring token ids, with token ids.
    pub token_ids: bool,
    /// What it calls the limit of an answer's length, for calls that are translated to chat.
    pub output_limit: OutputLimit,
    /// Weights that can be exchanged.
    pub weights: Option<&'a dyn Weights>,
    /// Servers, or something else that may be down.
    pub servers: Option<&'a dyn Servers>,
    /// It can be changed from outside.
    pub updates: Option<&'a dyn Updates>,
}

impl fmt::Debug for Capabilities<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capabilities")
            .field("dialects", &self.dialects)
            .field("token_ids", &self.token_ids)
            .field("output_limit", &self.output_limit)
            .field("weights", &self.weights.is_some())
            .field("servers", &self.servers.is_some())
            .field("updates", &self.updates.is_some())
            .finish()
    }
}

/// Some of the dialects; Chat Completions is always among them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DialectSet(u8);

impl DialectSet {
    pub fn contains(self, dialect: Dialect) -> bool {
        self.0 & bit(dialect) != 0
    }
}

impl Default for DialectSet {
    fn default() -> Self {
        Self(bit(Dialect::ChatCompletions))
    }
}

impl FromIterator<Dialect> for DialectSet {
    fn from_iter<I: IntoIterator<Item = Dialect>>(dialects: I) -> Self {
        let bits = dialects.into_iter().map(bit);
        Self(bits.fold(Self::default().0, |all, one| all | one))
    }
}

impl fmt::Debug for DialectSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contained = Dialect::ALL.iter().filter(|one| self.contains(**one));
        f.debug_set().entries(contained).finish()
    }
}

fn bit(dialect: Dialect) -> u8 {
    match dialect {
        Dialect::ChatCompletions => 1,
        Dialect::Responses => 2,
        Dialect::Completions => 4,
        Dialect::Messages => 8,
    }
}

/// Exchanges the weights of a policy in this process.
#[async_trait]
pub trait Weights: Send + Sync {
    /// Answers with weights from a checkpoint folder from the next token on.
    async fn load(&self, folder: &Utf8Path, version: PolicyVersion) -> Result<(), GatewayError>;
}

/// What a policy depends on and can be asked about.
#[async_trait]
pub trait Servers: Send + Sync {
    /// Asks each server for next to nothing: do key, model and address hold?
    async fn probe(&self) -> Vec<Probed>;

    /// How a pool of servers is doing; `None` when there is no pool.
    fn load(&self) -> Option<PoolLoad> {
        None
    }
}

/// Changes that come from outside.
pub trait Updates: Send + Sync {
    /// Other weights answer from now on.
    fn set_version(&self, version: PolicyVersion);

    /// The same policy with this change.
    fn changed(&self, change: &PolicyChange) -> Result<Arc<dyn Policy>, GatewayError>;
}

/// A change to what answers.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyChange {
    pub endpoints: Option<Vec<EndpointOptions>>,
    /// The model name that the endpoints are sent.
    pub model: Option<String>,
    pub version: PolicyVersion,
}
