//! A call under way and its record: whatever happens to the call, it is recorded exactly once.

mod report;
mod settle;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
pub(crate) use osmosis_core::clock::now_ms;
use osmosis_core::{PolicyVersion, SampleId};
use osmosis_dialect::Usage;
use osmosis_store::{NewCall, Pieces, StoreError};

use crate::calls::call_trace::CallTrace;
use crate::calls::deadline::unanswered;
use crate::calls::error::{CallError, ErrorCode};
use crate::calls::replay::FirstUse;
use crate::calls::sent_bytes::SentBytes;
use crate::policy::registry::Pass;
use crate::policy::{Fault, FaultKind, PolicyDescription, TokenSlot};
use crate::serving::requests::Arrival;
use crate::serving::server::Shared;
use crate::sessions::fault_tally::{CallOutcome, Waited};
use crate::sessions::visit::Visit;
use crate::telemetry::spans::TraceParent;

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
    began: Instant,
    first_byte_after: Option<Duration>,
    pauses: Pauses,
    draft: NewCall,
    /// What the caller has been sent so far.
    sent: SentBytes,
    tokens: TokenSlot,
    call_trace: CallTrace,
    /// What answers; `None` when it did not come to that.
    answering: Option<Answering>,
    trace: Option<TraceParent>,
    is_retry: bool,
    span: tracing::Span,
}

/// The pauses of an answer that comes piece by piece.
#[derive(Debug, Default)]
struct Pauses {
    longest: Duration,
    /// Since when the caller waits for the next piece.
    since: Option<Instant>,
}

/// A pause within an answer that is shorter is none.
const SHORTEST_SILENCE: Duration = Duration::from_secs(2);

impl Pauses {
    fn end(&mut self) {
        if let Some(since) = self.since.take() {
            self.longest = self.longest.max(since.elapsed());
        }
    }

    /// How long nothing has come although more was wanted, when that is longer than ever before.
    fn silence(&self) -> Option<Duration> {
        let silence = self.since?.elapsed();
        let usual = self.longest.saturating_mul(2).max(SHORTEST_SILENCE);
        (silence > usual).then_some(silence)
    }
}

#[derive(Debug)]
struct Answering {
    pass: Pass,
    model: String,
    /// For the answer to be given again.
    first_use: Option<FirstUse>,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) status: u16,
    pub(crate) error: Option<CallError>,
    pub(crate) usage: Option<Usage>,
    pub(crate) outcome: CallOutcome,
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
            purpose: visit.purpose(),
            dialect: arrival.format.as_str().to_owned(),
            model: String::new(),
            upstream: policy.endpoint.clone(),
            policy_version: PolicyVersion(policy.version.0),
            streamed: false,
            status: 0,
            error: None,
            prompt_tokens: None,
            completion_tokens: None,
            cached_tokens: None,
            reasoning_tokens: None,
            queued_at_ms: arrival.at_ms,
            sent_at_ms: None,
            first_byte_at_ms: None,
            done_at_ms: arrival.at_ms,
            request,
            response: Pieces::default(),
            tokens: Vec::new(),
        };
        let span = tracing::debug_span!(
            "model_call",
            rollout = %draft.rollout_id,
            sample = %draft.sample_id,
            dialect = draft.dialect,
            upstream = tracing::field::Empty,
            outcome = tracing::field::Empty,
        );
        Self {
            shared,
            unrecorded: Some(Unrecorded {
                visit,
                began: Instant::now(),
                first_byte_after: None,
                pauses: Pauses::default(),
                draft,
                sent: SentBytes::default(),
                tokens: TokenSlot::default(),
                call_trace: CallTrace::default(),
                answering: None,
                trace: arrival.trace,
                is_retry: arrival.is_retry,
                span,
            }),
        }
    }

    /// The policy takes the call.
    pub(crate) fn is_let_in(
        &mut self,
        pass: Pass,
        policy: &PolicyDescription,
        call_trace: CallTrace,
        first_use: Option<FirstUse>,
    ) {
        if let Some(call) = &mut self.unrecorded {
            call.draft.upstream.clone_from(&policy.endpoint);
            call.draft.policy_version = policy.version;
            call.call_trace = call_trace;
            call.answering = Some(Answering {
                pass,
                model: policy.model.clone(),
                first_use,
            });
        }
    }

    /// What is logged about the call belongs here.
    pub(crate) fn span(&self) -> tracing::Span {
        let call = self.unrecorded.as_ref();
        call.map_or_else(tracing::Span::none, |call| call.span.clone())
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
        if let Some(call) = &mut self.unrecorded
            && call.draft.first_byte_at_ms.is_none()
        {
            call.draft.first_byte_at_ms = Some(now_ms());
            let sent_at = call.call_trace.sent_at().unwrap_or(call.began);
            call.first_byte_after = Some(sent_at.elapsed());
        }
    }

    /// The caller waits for the next piece of a stream.
    pub(crate) fn waits_for_more(&mut self) {
        if let Some(call) = &mut self.unrecorded {
            call.pauses.since.get_or_insert_with(Instant::now);
        }
    }

    /// What it says about the policy when nobody waits for the answer any more.
    pub(crate) fn given_up(&self) -> CallOutcome {
        let call = self.unrecorded.as_ref();
        call.map_or(CallOutcome::Unknown, Unrecorded::given_up)
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
            call.pauses.end();
            call.sent.push(bytes);
            call.sent.len()
        })
    }

    /// Queues the record, or commits it ([`Durability`](crate::Durability)). When this returns `Ok`, the last bytes may go to
    /// the caller. Dropping the returned future does not lose the record.
    pub(crate) async fn record(mut self, ending: Ending) -> Result<(), StoreError> {
        let Some(call) = self.unrecorded.take() else {
            return Ok(());
        };
        let mut recording = Box::pin(call.into_record(Arc::clone(&self.shared), ending));
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
            error: Some(CallError {
                code: ErrorCode::CallerHungUp,
                message: "the caller went away before the reply was complete".to_owned(),
            }),
            usage: None,
            outcome: call.given_up(),
            response: None,
        };
        let shared = Arc::clone(&self.shared);
        // Nobody is left to see an error; `into_record` logs it.
        self.shared.tasks.spawn_on(
            async move {
                let _ = call.into_record(shared, ending).await;
            },
            &self.shared.runtime,
        );
    }
}

impl Unrecorded {
    fn given_up(&self) -> CallOutcome {
        if self.answering.is_none() {
            let message = format!(
                "the policy was paused, and not resumed within {:.1} s",
                self.began.elapsed().as_secs_f64()
            );
            return CallOutcome::Unanswered {
                fault: Fault {
                    kind: FaultKind::Paused,
                    status: 503,
                    message,
                },
                waited: Waited::WhileItFailed,
            };
        }
        let progress = self.call_trace.progress();
        if !progress.is_outside() {
            return CallOutcome::Unknown;
        }
        if self.draft.first_byte_at_ms.is_none() {
            if progress.heard {
                return CallOutcome::Unknown;
            }
            let now = Instant::now();
            let clock = self.visit.clock();
            if clock.is_none_or(|clock| !clock.may_be_over(now)) {
                self.call_trace.lost(self.began, now);
            }
            return CallOutcome::Unanswered {
                fault: unanswered(&self.call_trace, self.began),
                waited: match progress.failing {
                    Some(_) => Waited::WhileItFailed,
                    None => Waited::InSilence(self.began.elapsed()),
                },
            };
        }
        let Some(silence) = self.pauses.silence() else {
            return CallOutcome::Unknown;
        };
        let endpoint = self.call_trace.endpoint();
        CallOutcome::Unanswered {
            fault: Fault {
                kind: FaultKind::TimedOut,
                status: 504,
                message: format!(
                    "{} fell silent for {:.1} s in the middle of a stream",
                    endpoint.unwrap_or_else(|| self.draft.upstream.clone()),
                    silence.as_secs_f64()
                ),
            },
            waited: Waited::InSilence(silence),
        }
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
