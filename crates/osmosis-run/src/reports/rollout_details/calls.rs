//! The model calls of a rollout, as they are listed.

use osmosis_core::{Attempt, PolicyVersion, RolloutId, SampleId};
use osmosis_store::{CallBody, CallPurpose, CallQuery, CallRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Wanted;
use super::exchange::{CallExchange, ReadExchange};
use super::versions::{CallVersions, Versions};
use crate::RunError;

/// A recorded call. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallDetails {
    /// From 0, in the order in which the rollout's calls finished: what `--raw CALL` takes.
    #[serde(default)]
    pub number: u32,
    /// Its number in `run.db`.
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
    /// Why each choice of the reply ends: `stop`, `tool_calls`, `length`, … as the server reported it.
    #[serde(default)]
    pub finish_reasons: Vec<String>,
    /// A choice ends because it reached its limit of tokens.
    #[serde(default)]
    pub cut_off: bool,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
    pub queued_at_ms: i64,
    pub sent_at_ms: Option<i64>,
    pub first_byte_at_ms: Option<i64>,
    pub done_at_ms: i64,
    /// What was sent and what came back; only where it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<CallExchange>,
}

/// The calls of an attempt, and what is known of the weights that answered them.
#[derive(Debug)]
pub(super) struct RecordedCalls {
    pub(super) records: Vec<CallRecord>,
    versions: CallVersions,
    /// One for each record.
    exchanges: Vec<ReadExchange>,
}

impl RecordedCalls {
    pub(super) async fn read(
        store: &dyn Store,
        rollout: &RolloutId,
        attempt: Option<Attempt>,
        wanted: Wanted,
    ) -> Result<Self, RunError> {
        let records = calls_of(store, rollout, attempt).await?;
        let versions = CallVersions::read(store, rollout, &records).await?;
        let mut exchanges = vec![];
        for record in &records {
            // One body is in memory at a time.
            let body = store.call_body(record.call_id).await?;
            exchanges.push(ReadExchange::of(record, body.as_ref(), wanted.exchanges));
        }
        Ok(Self {
            records,
            versions,
            exchanges,
        })
    }

    /// The weights that answered; `None` when the policy was not called.
    pub(super) fn versions(&self) -> Option<Versions> {
        self.versions.of_all()
    }

    /// Whether the policy was called in this run.
    pub(super) fn called_policy(&self) -> bool {
        let mut calls = self.records.iter();
        calls.any(|call| call.purpose == CallPurpose::Policy)
    }

    pub(super) fn details(&self) -> Vec<CallDetails> {
        let calls = (0..).zip(&self.records).zip(&self.exchanges);
        calls
            .map(|((number, call), read)| CallDetails {
                number,
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
                finish_reasons: read.finish_reasons.clone(),
                cut_off: read.cut_off,
                prompt_tokens: call.prompt_tokens,
                completion_tokens: call.completion_tokens,
                cached_tokens: call.cached_tokens,
                reasoning_tokens: call.reasoning_tokens,
                queued_at_ms: call.queued_at_ms,
                sent_at_ms: call.sent_at_ms,
                first_byte_at_ms: call.first_byte_at_ms,
                done_at_ms: call.done_at_ms,
                exchange: read.exchange.clone(),
            })
            .collect()
    }
}

/// The calls of an attempt, by default of the one whose result counts, or of the latest, in the order in which they are
/// numbered.
async fn calls_of(
    store: &dyn Store,
    rollout: &RolloutId,
    attempt: Option<Attempt>,
) -> Result<Vec<CallRecord>, RunError> {
    let query = CallQuery {
        rollout_id: rollout.clone(),
        attempt,
    };
    Ok(store.calls(query).await?)
}

/// The exact bytes of a call of an attempt, by its number from 0; `None` when there is no such call. The default attempt is
/// that of the rollout's calls.
pub async fn raw_call(
    store: &dyn Store,
    rollout: &RolloutId,
    attempt: Option<Attempt>,
    number: u32,
) -> Result<Option<CallBody>, RunError> {
    let calls = calls_of(store, rollout, attempt).await?;
    match calls.get(number as usize) {
        Some(call) => Ok(store.call_body(call.call_id).await?),
        None => Ok(None),
    }
}
