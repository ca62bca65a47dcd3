//! A call under way and its record: whatever happens to the call, it is recorded exactly once.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use osmosis_core::{PolicyVersion, SampleId};
use osmosis_store::{NewCall, Store, StoreError};

use crate::completion::Usage;
use crate::door::{CallResult, Verdict, Visit};
use crate::policy::{Fault, FaultKind, PolicyDescription, TokenSlot};
use crate::server::{Arrival, Shared};

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        })
}

/// A call that is not recorded yet. Dropped before [`OpenCall::record`], it is one whose caller went
/// away, and is recorded as that.
#[derive(Debug)]
pub(crate) struct OpenCall {
    shared: Arc<Shared>,
    /// `None` once it is being recorded.
    unrecorded: Option<Unrecorded>,
}

#[derive(Debug)]
struct Unrecorded {
    visit: Visit,
    draft: NewCall,
    /// What the caller has been sent so far.
    sent: BytesMut,
    tokens: TokenSlot,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) status: u16,
    pub(crate) error: Option<String>,
    pub(crate) usage: Option<Usage>,
    pub(crate) verdict: Verdict,
    /// The whole response; `None` when it was streamed and is known already.
    pub(crate) response: Option<Bytes>,
}

impl OpenCall {
    pub(crate) fn begin(
        shared: Arc<Shared>,
        visit: Visit,
        sample_id: SampleId,
        arrival: &Arrival,
        policy: &PolicyDescription,
        request: Bytes,
    ) -> Self {
        visit.call_begins();
        let draft = NewCall {
            rollout_id: visit.rollout().clone(),
            attempt: visit.attempt(),
            sample_id,
            dialect: arrival.dialect.as_str().to_owned(),
            model: String::new(),
            upstream: policy.endpoint.clone(),
            policy_version: PolicyVersion(policy.version.0),
            streamed: false,
            status: 0,
            error: None,
            prompt_tokens: None,
            completion_tokens: None,
            queued_at_ms: arrival.at_ms,
            sent_at_ms: None,
            first_byte_at_ms: None,
            done_at_ms: arrival.at_ms,
            request,
            response: Bytes::new(),
            tokens: Vec::new(),
        };
        Self {
            shared,
            unrecorded: Some(Unrecorded {
                visit,
                draft,
                sent: BytesMut::new(),
                tokens: TokenSlot::default(),
            }),
        }
    }

    /// The request is going to the policy now.
    pub(crate) fn goes_to_the_policy(&mut self, model: String, streamed: bool, tokens: TokenSlot) {
        if let Some(call) = &mut self.unrecorded {
            call.draft.model = model;
            call.draft.streamed = streamed;
            call.draft.sent_at_ms = Some(now_ms());
            call.tokens = tokens;
        }
    }

    /// The policy has begun to answer.
    pub(crate) fn first_byte(&mut self) {
        if let Some(call) = &mut self.unrecorded {
            call.draft.first_byte_at_ms.get_or_insert_with(now_ms);
        }
    }

    /// A stream with this status has begun.
    pub(crate) fn stream_begins(&mut self, status: u16) {
        if let Some(call) = &mut self.unrecorded {
            call.draft.status = status;
        }
    }

    /// Notes what of a stream goes to the caller; returns how much that is by now.
    pub(crate) fn passes_on(&mut self, bytes: &[u8]) -> usize {
        self.unrecorded.as_mut().map_or(0, |call| {
            call.sent.extend_from_slice(bytes);
            call.sent.len()
        })
    }

    /// Queues the record. When this returns `Ok`, the last bytes may go to the caller. Dropping the
    /// returned future does not lose the record.
    pub(crate) async fn record(mut self, ending: Ending) -> Result<(), StoreError> {
        let Some(call) = self.unrecorded.take() else {
            return Ok(());
        };
        let store = self.shared.store.clone();
        let mut recording = Box::pin(call.into_record(store, ending));
        // Nearly always there is room in the queue, and no task is needed to get there.
        match futures_util::poll!(recording.as_mut()) {
            std::task::Poll::Ready(result) => result,
            std::task::Poll::Pending => self
                .shared
                .tasks
                .spawn(recording)
                .await
                .unwrap_or(Err(StoreError::Closed)),
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let Some(call) = self.unrecorded.take() else {
            return;
        };
        let ending = Ending {
            status: call.draft.status,
            error: Some(
                "caller_hung_up: the caller went away before the reply was complete".to_owned(),
            ),
            usage: None,
            verdict: Verdict::Unknown,
            response: None,
        };
        let store = self.shared.store.clone();
        // Nobody is left to see an error; `into_record` logs it.
        self.shared.tasks.spawn_on(
            async move {
                let _ = call.into_record(store, ending).await;
            },
            &self.shared.runtime,
        );
    }
}

impl Unrecorded {
    async fn into_record(
        self,
        store: Option<Arc<dyn Store>>,
        ending: Ending,
    ) -> Result<(), StoreError> {
        let Self {
            visit,
            mut draft,
            sent,
            tokens,
        } = self;
        let account = tokens.close();
        let usage = ending
            .usage
            .or_else(|| account.as_ref().map(Usage::of))
            .unwrap_or_default();
        draft.tokens = account.map(|account| account.records).unwrap_or_default();
        let mut verdict = ending.verdict;
        draft.status = ending.status;
        draft.error = ending.error;
        draft.prompt_tokens = usage.prompt_tokens;
        draft.completion_tokens = usage.completion_tokens;
        draft.response = ending.response.unwrap_or_else(|| sent.freeze());
        draft.done_at_ms = now_ms();
        let result = match store {
            Some(store) => store.record_call(draft).await,
            None => Ok(()),
        };
        if let Err(error) = &result {
            tracing::error!(rollout = %visit.rollout(), %error, "a model call could not be recorded");
            verdict = Verdict::Faulty(unrecordable(error));
        }
        visit.call_is_recorded(CallResult {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            verdict,
        });
        result
    }
}

/// The record comes before the answer: what cannot be recorded is not answered.
pub(crate) fn unrecordable(error: &StoreError) -> Fault {
    Fault {
        kind: FaultKind::ServerError,
        status: 500,
        message: format!("the call could not be recorded: {error}"),
    }
}
