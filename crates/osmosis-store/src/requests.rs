//! Requests to a rollout server: what is needed to run them and to call back, over restarts.

use bytes::Bytes;
use osmosis_core::RolloutId;

/// What a rollout server keeps of a request besides its row and its rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRecord {
    pub rollout_id: RolloutId,
    pub row_index: u64,
    /// Addresses and keys, encrypted by the server; gone once the request is settled.
    pub sealed: Option<Bytes>,
    /// Somebody asked to have it cancelled, and was told that it is.
    pub cancel_asked: bool,
    /// The workflow succeeded, and the completion callback says so, whatever a later attempt does.
    pub agent_done: bool,
    /// The completion callback was acknowledged, or refused for good.
    pub completion_delivered: bool,
    /// Every callback was acknowledged, or refused for good: nothing is left to do.
    pub settled: bool,
}

/// Something that happened to a request, for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestNote {
    /// It came again, with these addresses and keys. A request that is not kept yet is from now on.
    Sealed(Bytes),
    CancelAsked,
    AgentDone,
    CompletionDelivered,
    /// Nothing is left to do; what was sealed goes.
    Settled,
}
