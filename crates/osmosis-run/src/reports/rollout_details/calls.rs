//! The model calls of a rollout, as they are listed.

use osmosis_core::{Attempt, PolicyVersion, RolloutId, SampleId};
use osmosis_store::{CallPurpose, CallQuery, CallRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::versions::{CallVersions, Versions};
use crate::RunError;

/// A recorded call without its bodies. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallDetails {
    pub call_id: u64,
    pub sample_id: SampleId,
    pub attempt: Attempt,
    pub purpose: CallPurpose,
    /// `chat_completions`, …
    pub dialect: String,
    /// As the caller named it.
    pub model: String,
    pub upstream: String,
    /// The weights that the call was sent to.
    pub policy_version: PolicyVersion,
    /// The weights that sampled its tokens; `null` for calls that are not the policy's.
    pub versions: Option<Versions>,
    pub streamed: bool,
    /// The HTTP status.
    pub status: u16,
    pub error: Option<String>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
    pub queued_at_ms: i64,
    pub sent_at_ms: Option<i64>,
    pub first_byte_at_ms: Option<i64>,
    pub done_at_ms: i64,
}

/// The calls of all attempts, and what is known of the weights that answered them.
#[derive(Debug)]
pub(super) struct RecordedCalls {
    pub(super) records: Vec<CallRecord>,
    versions: CallVersions,
}

impl RecordedCalls {
    pub(super) async fn read(store: &dyn Store, rollout: &RolloutId) -> Result<Self, RunError> {
        let query = CallQuery {
            rollout_id: rollout.clone(),
            attempt: None,
        };
        let records = store.calls(query).await?;
        let versions = CallVersions::read(store, rollout, &records).await?;
        Ok(Self { records, versions })
    }

    /// The weights that answered; `None` when the policy was not called.
    pub(super) fn versions(&self) -> Option<Versions> {
        self.versions.of_all()
    }

    pub(super) fn details(&self) -> Vec<CallDetails> {
        let calls = self.records.iter();
        calls
            .map(|call| CallDetails {
                call_id: call.call_id,
                sample_id: call.sample_id.clone(),
                attempt: call.attempt,
                purpose: call.purpose,
                dialect: call.dialect.clone(),
                model: call.model.clone(),
                upstream: call.upstream.clone(),
                policy_version: call.policy_version,
                versions: self.versions.of_call(call.call_id),
                streamed: call.streamed,
                status: call.status,
                error: call.error.clone(),
                prompt_tokens: call.prompt_tokens,
                completion_tokens: call.completion_tokens,
                cached_tokens: call.cached_tokens,
                reasoning_tokens: call.reasoning_tokens,
                queued_at_ms: call.queued_at_ms,
                sent_at_ms: call.sent_at_ms,
                first_byte_at_ms: call.first_byte_at_ms,
                done_at_ms: call.done_at_ms,
            })
            .collect()
    }
}
