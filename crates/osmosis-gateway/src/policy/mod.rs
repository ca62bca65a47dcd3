//! What answers model calls: the [`Policy`] trait, what it is asked and what it answers.
//!
//! A policy says what it is (`describe`), answers (`answer`), and names what else it can do
//! ([`Capabilities`]). A policy around another one is a [`Layer`], which forwards all of that. `registry` holds
//! those that are served, by name; `upstream` is a pool of servers, `relay` a server for each rollout, and `probe`
//! the tiny call before a run.

mod capabilities;
mod fault;
mod layer;
pub(crate) mod probe;
pub(crate) mod probe_finding;
pub(crate) mod registry;
pub(crate) mod relay;
mod tokens;
pub(crate) mod upstream;
pub(crate) mod weights;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use http::HeaderMap;
use osmosis_core::{PolicyVersion, RolloutId, SampleId};
use osmosis_dialect::{Dialect, OutputLimit};
use serde_json::json;

pub use self::capabilities::{Capabilities, DialectSet, PolicyChange, Servers, Updates, Weights};
pub use self::fault::{Fault, FaultKind};
pub use self::layer::Layer;
pub use self::tokens::{TokenAccount, TokenLedger, TokenSlot};
use crate::calls::call_trace::CallTrace;
use crate::policy::probe_finding::Probed;
use crate::policy::upstream::PoolLoad;
use crate::sessions::call_history::CallHistory;

/// Something that answers model calls: a script, an upstream server, an embedded model.
#[async_trait]
pub trait Policy: Send + Sync + fmt::Debug {
    fn describe(&self) -> PolicyDescription;

    /// Answers one call. A `Fault` is turned into an error reply of the caller's dialect and counted
    /// against the infrastructure; a reply with an error status is passed on as it is.
    async fn answer(&self, call: ModelCall) -> Result<ModelReply, Fault>;

    /// What else it can do.
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities::default()
    }

    /// The policy that answers the calls of this rollout, when rollouts have policies of their own.
    fn for_rollout(&self, _rollout: &RolloutId) -> Option<Arc<dyn Policy>> {
        None
    }
}

/// What follows from the capabilities.
impl dyn Policy + '_ {
    /// Which policy answers the calls of this rollout.
    pub fn describe_for(&self, rollout: &RolloutId) -> PolicyDescription {
        match self.for_rollout(rollout) {
            Some(policy) => policy.describe(),
            None => self.describe(),
        }
    }

    /// Whether it answers calls of this dialect itself.
    pub fn speaks(&self, dialect: Dialect) -> bool {
        self.capabilities().dialects.contains(dialect)
    }

    pub fn output_limit(&self) -> OutputLimit {
        self.capabilities().output_limit
    }

    /// Asks each server behind it for next to nothing; empty for a policy without servers.
    pub async fn probe(&self) -> Vec<Probed> {
        match self.capabilities().servers {
            Some(servers) => servers.probe().await,
            None => Vec::new(),
        }
    }

    /// How the servers behind it are doing, when it has any.
    pub fn load(&self) -> Option<PoolLoad> {
        self.capabilities().servers?.load()
    }

    /// Says that other weights answer from now on; `false` when the policy knows its version itself.
    pub fn set_version(&self, version: PolicyVersion) -> bool {
        let updates = self.capabilities().updates;
        if let Some(updates) = updates {
            updates.set_version(version);
        }
        updates.is_some()
    }
}

/// Which policy this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDescription {
    /// What `/v1/models` lists and the upstream is sent.
    pub model: String,
    /// Where calls go, without credentials; for records and messages.
    pub endpoint: String,
    pub version: PolicyVersion,
}

/// What a call is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFormat {
    /// Text, in one of the dialects of agents.
    Dialect(Dialect),
    /// Token ids, at `/v1/generate`.
    TokenIds,
}

impl CallFormat {
    /// The name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dialect(dialect) => dialect.as_str(),
            Self::TokenIds => "generate",
        }
    }

    /// The dialect of its error replies. Those of token calls have the shape that OpenAI's clients know.
    pub fn error_dialect(self) -> Dialect {
        match self {
            Self::Dialect(dialect) => dialect,
            Self::TokenIds => Dialect::ChatCompletions,
        }
    }
}

/// One model call, already identified.
#[derive(Debug, Clone)]
pub struct ModelCall {
    pub rollout_id: RolloutId,
    pub sample_id: SampleId,
    /// The format of the body, and of the reply: a dialect that the policy speaks, or token ids.
    pub format: CallFormat,
    /// The caller's headers that belong to the dialect (`anthropic-version`, ...).
    pub dialect_headers: HeaderMap,
    /// The request body as the policy shall see it (sampling filled in), a JSON object.
    pub body: Bytes,
    pub streamed: bool,
    /// What the calls of this rollout's attempt said before.
    pub history: Arc<CallHistory>,
    /// Where a policy that knows its tokens says who tells them.
    pub tokens: TokenSlot,
    /// Where a policy with several servers says which one it asked.
    pub call_trace: CallTrace,
}

/// The answer in the wire format of the call.
#[derive(Debug)]
pub struct ModelReply {
    pub status: u16,
    pub content_type: String,
    pub body: ReplyBody,
}

impl ModelReply {
    /// The refusal of a call in token ids, of a policy that has none.
    pub fn no_token_ids(policy: &PolicyDescription) -> Self {
        let message = format!(
            "policy `{}` at {} has no token ids: `generate` needs an embedded model, or vLLM or SGLang with \
             the model's tokenizer folder",
            policy.model, policy.endpoint
        );
        let error = json!({"error": {
            "message": message,
            "type": "invalid_request_error",
            "param": null,
            "code": "no_token_ids",
        }});
        Self {
            status: 501,
            content_type: "application/json".to_owned(),
            body: ReplyBody::Whole(Bytes::from(error.to_string())),
        }
    }
}

/// A whole body, or server-sent events as they come.
pub enum ReplyBody {
    Whole(Bytes),
    Stream(Pin<Box<dyn Stream<Item = Result<Bytes, Fault>> + Send>>),
}

impl fmt::Debug for ReplyBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "Whole({} bytes)", bytes.len()),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}
