//! The model calls of a rollout, as they are listed.

use std::fmt::Write;

use osmosis_run::RunError;
use osmosis_store::{CallPurpose, CallQuery, CallRecord, RunKind, Store};
use osmosis_store_sqlite::SqliteStore;
use serde_json::{Value, json};

use super::versions::{CallVersions, Versions};
use crate::figures::ms_text;

pub(super) struct RecordedCalls {
    pub(super) calls: Vec<CallRecord>,
    versions: CallVersions,
    kind: RunKind,
}

impl RecordedCalls {
    pub(super) async fn read(
        store: &SqliteStore,
        kind: RunKind,
        query: CallQuery,
    ) -> Result<Self, RunError> {
        let rollout = query.rollout_id.clone();
        let calls = store.calls(query).await?;
        let versions = CallVersions::read(store, &rollout, &calls).await?;
        Ok(Self {
            calls,
            versions,
            kind,
        })
    }

    /// The weights that answered.
    pub(super) fn versions(&self) -> Option<Versions> {
        self.versions.of_all()
    }

    /// Versions as they are told to people: of a policy that has only one there is nothing to tell.
    pub(super) fn told(&self, versions: Option<Versions>) -> Option<Versions> {
        versions.filter(|versions| versions.any_new() || self.kind == RunKind::Training)
    }

    /// One line for each.
    pub(super) fn push_lines(&self, text: &mut String) {
        for call in &self.calls {
            let versions = self.told(self.versions.of_call(call.call_id));
            let tokens =
                |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |n| n.to_string());
            let part = |count: Option<u64>, of: &str| {
                count.map_or_else(String::new, |n| format!(" ({n} {of})"))
            };
            let _ = writeln!(
                text,
                "  {:>6}  {}  {}  {}  {}{}+{}{} tokens  {}{}{}",
                call.call_id,
                match call.purpose {
                    CallPurpose::Policy => call.sample_id.as_str(),
                    CallPurpose::Judge => "(judge)",
                    CallPurpose::Other => "(other)",
                },
                call.status,
                call.upstream,
                tokens(call.prompt_tokens),
                part(call.cached_tokens, "cached"),
                tokens(call.completion_tokens),
                part(call.reasoning_tokens, "reasoning"),
                ms_text((call.done_at_ms - call.queued_at_ms) as f64),
                versions.map_or_else(String::new, |versions| format!("  {versions}")),
                call.error
                    .as_ref()
                    .map_or_else(String::new, |error| format!("  {error}")),
            );
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let call = |call: &CallRecord| {
            json!({
                "call_id": call.call_id, "sample_id": call.sample_id, "attempt": call.attempt,
                "purpose": call.purpose,
                "dialect": call.dialect, "model": call.model, "upstream": call.upstream,
                "policy_version": call.policy_version,
                "versions": self.versions.of_call(call.call_id), "streamed": call.streamed,
                "status": call.status, "error": call.error,
                "prompt_tokens": call.prompt_tokens, "completion_tokens": call.completion_tokens,
                "cached_tokens": call.cached_tokens, "reasoning_tokens": call.reasoning_tokens,
                "queued_at_ms": call.queued_at_ms, "sent_at_ms": call.sent_at_ms,
                "first_byte_at_ms": call.first_byte_at_ms, "done_at_ms": call.done_at_ms,
            })
        };
        self.calls.iter().map(call).collect()
    }
}
