use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use camino::Utf8Path;
use futures_util::Stream;
use http::HeaderMap;
use osmosis_core::{PolicyVersion, RolloutId, SampleId};
use osmosis_dialect::{Dialect, OutputLimit, Usage};
use serde_json::json;

use crate::error::GatewayError;
use crate::journey::Journey;
use crate::probe::Probed;
use crate::session::Session;
use crate::upstream::{EndpointOptions, PoolLoad};

/// Something that answers chat calls: a script, an upstream server, an embedded model.
#[async_trait]
pub trait Policy: Send + Sync + fmt::Debug {
    fn describe(&self) -> PolicyDescription;

    /// Which policy answers the calls of this rollout.
    fn describe_for(&self, _rollout: &RolloutId) -> PolicyDescription {
        self.describe()
    }

    /// Whether it answers calls of this dialect itself. Those of other dialects are translated to chat
    /// and back, or refused.
    fn speaks(&self, dialect: Dialect) -> bool {
        dialect == Dialect::ChatCompletions
    }

    /// Answers one call. A `Fault` is turned into an error reply of the caller's dialect and counted
    /// against the infrastructure; a reply with an error status is passed on as it is.
    async fn chat(&self, call: ChatCall) -> Result<ChatReply, Fault>;

    /// Answers one call that brings token ids, and gets token ids. Policies without them refuse.
    async fn generate(&self, call: ChatCall) -> Result<ChatReply, Fault> {
        Ok(without_ids(&self.describe_for(&call.rollout_id)))
    }

    /// Asks each server behind it for next to nothing: do key, model and address hold? Empty for a
    /// policy without servers.
    async fn probe(&self) -> Vec<Probed> {
        Vec::new()
    }

    /// What it calls the limit of an answer's length, for calls that are translated to chat.
    fn output_limit(&self) -> OutputLimit {
        OutputLimit::default()
    }

    /// How the servers behind it are doing, when it has any.
    fn load(&self) -> Option<PoolLoad> {
        None
    }

    /// Says that other weights answer from now on; `false` when the policy knows its version itself.
    fn set_version(&self, _version: PolicyVersion) -> bool {
        false
    }

    /// Answers with weights from a checkpoint folder from the next token on; `None` when it has none to
    /// exchange.
    async fn load_weights(
        &self,
        _folder: &Utf8Path,
        _version: PolicyVersion,
    ) -> Option<Result<(), GatewayError>> {
        None
    }

    /// The same policy with this change; `None` when it can't be changed from outside.
    fn changed(&self, _change: &PolicyChange) -> Option<Result<Arc<dyn Policy>, GatewayError>> {
        None
    }
}

/// A change to what answers.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyChange {
    pub endpoints: Option<Vec<EndpointOptions>>,
    /// The model name that the endpoints are sent.
    pub model: Option<String>,
    pub version: PolicyVersion,
}

/// The refusal of a policy that has no token ids.
fn without_ids(policy: &PolicyDescription) -> ChatReply {
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
    ChatReply {
        status: 501,
        content_type: "application/json".to_owned(),
        body: ReplyBody::Whole(Bytes::from(error.to_string())),
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

/// One model call, already identified.
#[derive(Debug, Clone)]
pub struct ChatCall {
    pub rollout_id: RolloutId,
    pub sample_id: SampleId,
    /// The dialect of the body, and of the reply: one that the policy speaks.
    pub dialect: Dialect,
    /// The caller's headers that belong to the dialect (`anthropic-version`, ...).
    pub dialect_headers: HeaderMap,
    /// The request body as the policy shall see it (sampling filled in), a JSON object.
    pub body: Bytes,
    pub streamed: bool,
    /// What the calls of this rollout's attempt said before.
    pub session: Arc<Session>,
    /// Where a policy that knows its tokens says who tells them.
    pub tokens: TokenSlot,
    /// Where a policy with several servers says which one it asked.
    pub journey: Journey,
}

/// Knows what a call was in tokens.
pub trait TokenLedger: Send + Sync + fmt::Debug {
    /// Ends what is still sampled for the call, and tells what it was. Asked once, when the call is
    /// recorded: nothing is sampled for it afterwards.
    fn close(&self) -> TokenAccount;
}

/// What a call was in tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenAccount {
    /// An encoded [`osmosis_tokens::TokenRecord`] for each choice.
    pub records: Vec<Bytes>,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}

impl TokenAccount {
    /// The usage of a call whose reply reports none.
    pub(crate) fn usage(&self) -> Usage {
        // No prompt is empty: then nobody could tell.
        let is_known = self.prompt_tokens > 0;
        Usage {
            prompt_tokens: is_known.then_some(self.prompt_tokens),
            completion_tokens: is_known.then_some(self.completion_tokens),
            ..Usage::default()
        }
    }
}

/// A place for the ledger of one call. The gateway keeps the other end, and asks the ledger however the
/// call ends, also when its caller hangs up.
#[derive(Debug, Clone, Default)]
pub struct TokenSlot(Arc<OnceLock<Arc<dyn TokenLedger>>>);

impl TokenSlot {
    /// Says who knows the tokens of the call. The first ledger stays.
    pub fn fill(&self, ledger: Arc<dyn TokenLedger>) {
        let _ = self.0.set(ledger);
    }

    pub(crate) fn close(&self) -> Option<TokenAccount> {
        self.0.get().map(|ledger| ledger.close())
    }
}

/// The answer in the wire format of the call's dialect.
#[derive(Debug)]
pub struct ChatReply {
    pub status: u16,
    pub content_type: String,
    pub body: ReplyBody,
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

/// A failure that is not the agent's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    pub kind: FaultKind,
    /// The status the caller sees.
    pub status: u16,
    pub message: String,
}

/// What kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Nobody answered there.
    Unreachable,
    /// It took too long.
    TimedOut,
    /// 429, after the retries.
    Overloaded,
    /// 5xx, after the retries.
    ServerError,
    /// The reply is not what the protocol says.
    Garbage,
    /// The stream ended before its end.
    CutShort,
    /// 401, 402, 403, 404 or the like from the upstream: a wrong key or model name, or no credit. Trying
    /// again is no use.
    Misconfigured,
    /// So many calls wait already, or this one waited so long, that the gateway takes no more.
    QueueFull,
    /// The policy was paused, and not resumed in time.
    Paused,
}

impl FaultKind {
    /// The name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "upstream_unreachable",
            Self::TimedOut => "upstream_timed_out",
            Self::Overloaded => "upstream_overloaded",
            Self::ServerError => "upstream_server_error",
            Self::Garbage => "upstream_garbage",
            Self::CutShort => "upstream_cut_short",
            Self::Misconfigured => "upstream_misconfigured",
            Self::QueueFull => "gateway_queue_full",
            Self::Paused => "policy_paused",
        }
    }

    /// What an upstream's error status means; `None` for those that are the caller's own fault and are
    /// passed on to it as they are (400, 413, 422).
    pub(crate) fn of_status(status: u16) -> Option<Self> {
        match status {
            // The caller wrote the body, and nothing else of what the upstream got.
            ..=400 | 413 | 422 => None,
            408 => Some(Self::TimedOut),
            429 => Some(Self::Overloaded),
            500.. => Some(Self::ServerError),
            401..=499 => Some(Self::Misconfigured),
        }
    }

    /// Whether another attempt may fare better.
    pub fn worth_retrying(self) -> bool {
        match self {
            Self::Unreachable
            | Self::TimedOut
            | Self::Overloaded
            | Self::ServerError
            | Self::Garbage
            | Self::CutShort
            | Self::QueueFull
            | Self::Paused => true,
            Self::Misconfigured => false,
        }
    }
}
