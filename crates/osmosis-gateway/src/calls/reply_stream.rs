//! A stream from its first event to its last, on the way from the policy to the caller.

use std::pin::Pin;

use axum::body::Body;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use osmosis_dialect::sse::{LARGE_EVENT, SseWatch, StreamEnd};
use osmosis_dialect::{Dialect, Translator, Unreadable};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::calls::record::{Ending, OpenCall, unrecordable};
use crate::policy::{Fault, FaultKind};
use crate::serving::error_reply::ErrorReply;
use crate::sessions::fault_tally::CallOutcome;

/// A stream beyond this is taken for one that never ends.
const MAX_STREAM_BYTES: usize = 256 << 20;

/// A stream on its way from the policy to the caller.
pub(crate) struct ReplyStream {
    /// `None` once it is recorded.
    pub(crate) call: Option<OpenCall>,
    pub(crate) upstream: Pin<Box<dyn Stream<Item = Result<Bytes, Fault>> + Send>>,
    pub(crate) watch: SseWatch,
    /// What the caller speaks.
    pub(crate) dialect: Dialect,
    pub(crate) translator: Option<Translator>,
    pub(crate) endpoint: String,
    pub(crate) status: u16,
    pub(crate) ended: Pin<Box<WaitForCancellationFutureOwned>>,
    pub(crate) aborting: bool,
}

const UNREADABLE_EVENT: &str = "sent an event that can't be read";

/// What a stream waited for.
enum Came {
    Next(Result<Bytes, Fault>),
    End,
    /// Nobody wants the rest.
    RolloutEnd,
}

/// What that means for the caller.
enum Taken {
    Passed(Bytes),
    Last(Bytes, StreamEnd),
    Garbage(&'static str),
    Broken(ErrorReply, CallOutcome),
}

/// The body breaks off on purpose, so that no client takes it for a whole one.
#[derive(Debug, thiserror::Error)]
#[error("the stream was aborted")]
struct StreamAborted;

impl ReplyStream {
    pub(crate) fn into_body(self) -> Body {
        // In a box: the stream would have room for it twice, as its state and as what works on it.
        let live = Box::new(self);
        Body::from_stream(stream::unfold(live, |mut live| async move {
            live.next().await.map(|item| (item, live))
        }))
    }

    /// The next bytes for the caller. The call is recorded before its last bytes are returned.
    async fn next(&mut self) -> Option<Result<Bytes, StreamAborted>> {
        if self.aborting {
            self.aborting = false;
            // The server writes out what it has while it waits; an error would throw it away.
            tokio::task::yield_now().await;
            return Some(Err(StreamAborted));
        }
        loop {
            self.call.as_mut()?.waits_for_more();
            let came = tokio::select! {
                biased;
                () = self.ended.as_mut() => Came::RolloutEnd,
                came = self.upstream.next() => came.map_or(Came::End, Came::Next),
            };
            match self.take(came) {
                Taken::Passed(passed) if passed.is_empty() => {}
                Taken::Passed(passed) => return Some(Ok(passed)),
                // In a box: otherwise each stream has room for its end from the beginning.
                Taken::Last(last, end) => return Box::pin(self.finish(last, end)).await,
                Taken::Garbage(what) => return Box::pin(self.fail(FaultKind::Garbage, what)).await,
                Taken::Broken(refusal, outcome) => {
                    return Box::pin(self.break_off(&refusal, outcome)).await;
                }
            }
        }
    }

    /// Looks at what came, and notes what of it is passed on.
    fn take(&mut self, came: Came) -> Taken {
        let chunk = match came {
            Came::Next(Ok(chunk)) => chunk,
            Came::Next(Err(fault)) => {
                return Taken::Broken(ErrorReply::of_fault(&fault), CallOutcome::Faulty(fault));
            }
            Came::End => {
                let (last, end) = self.watch.finish();
                return Taken::Last(last, end);
            }
            Came::RolloutEnd => {
                let outcome = self
                    .call
                    .as_ref()
                    .map_or(CallOutcome::Unknown, OpenCall::given_up);
                return Taken::Broken(ErrorReply::rollout_ended(), outcome);
            }
        };
        if let Some(call) = &mut self.call {
            call.first_byte();
        }
        let Ok(mut passed) = self.watch.push(&chunk) else {
            return Taken::Garbage(LARGE_EVENT);
        };
        if self.watch.is_done() {
            let (_, end) = self.watch.finish();
            return Taken::Last(passed, end);
        }
        if let Some(translator) = &mut self.translator {
            match translator.push(&passed) {
                Ok(translated) => passed = translated,
                Err(Unreadable) => return Taken::Garbage(UNREADABLE_EVENT),
            }
        }
        let length = self.call.as_mut().map_or(0, |call| call.passes_on(&passed));
        if length > MAX_STREAM_BYTES {
            return Taken::Garbage("sent a stream without end");
        }
        Taken::Passed(passed)
    }

    /// The policy has said all it will say.
    async fn finish(
        &mut self,
        last: Bytes,
        end: StreamEnd,
    ) -> Option<Result<Bytes, StreamAborted>> {
        let (failure, outcome) = match end {
            StreamEnd::Whole => (None, CallOutcome::Answered),
            StreamEnd::Reported(message) => {
                let fault = Fault {
                    kind: FaultKind::ServerError,
                    status: 500,
                    message: format!(
                        "{} reported an error within the stream: {message}",
                        self.endpoint
                    ),
                };
                (
                    Some(ErrorReply::of_fault(&fault)),
                    CallOutcome::Faulty(fault),
                )
            }
            StreamEnd::CutShort => {
                return self
                    .fail(FaultKind::CutShort, "ended the stream before its end")
                    .await;
            }
        };
        let Ok(last) = self.last_words(last, failure.as_ref()) else {
            return self.fail(FaultKind::Garbage, UNREADABLE_EVENT).await;
        };
        let mut call = self.call.take()?;
        call.passes_on(&last);
        let ending = Ending {
            status: self.status,
            error: failure.as_ref().map(ErrorReply::for_record),
            usage: self.watch.usage(),
            outcome,
            response: None,
        };
        match call.record(ending).await {
            Ok(()) => (!last.is_empty()).then_some(Ok(last)),
            Err(error) => {
                self.aborting = true;
                Some(Ok(self.event(&ErrorReply::of_fault(&unrecordable(&error)))))
            }
        }
    }

    /// What the caller gets of the end of a stream: what the policy said, or the same in the caller's
    /// dialect, which has its own way to end and to say that something went wrong.
    fn last_words(
        &mut self,
        last: Bytes,
        failure: Option<&ErrorReply>,
    ) -> Result<Bytes, Unreadable> {
        let Some(translator) = &mut self.translator else {
            return Ok(last);
        };
        let said = translator.push(&last)?;
        let end = match failure {
            None => translator.finish(),
            Some(failure) => self.event(failure),
        };
        Ok(Bytes::from([said, end].concat()))
    }

    /// An error in the midst of the stream.
    fn event(&self, error: &ErrorReply) -> Bytes {
        let sequence = match &self.translator {
            None => self.watch.events(),
            Some(translator) => translator.sequence(),
        };
        error.event(self.dialect, sequence)
    }

    async fn fail(&mut self, kind: FaultKind, what: &str) -> Option<Result<Bytes, StreamAborted>> {
        let fault = Fault {
            kind,
            status: 502,
            message: format!("{} {what}", self.endpoint),
        };
        let refusal = ErrorReply::of_fault(&fault);
        self.break_off(&refusal, CallOutcome::Faulty(fault)).await
    }

    /// Tells the caller in an event, then breaks the body off.
    async fn break_off(
        &mut self,
        refusal: &ErrorReply,
        outcome: CallOutcome,
    ) -> Option<Result<Bytes, StreamAborted>> {
        let mut call = self.call.take()?;
        let event = self.event(refusal);
        call.passes_on(&event);
        let ending = Ending {
            status: self.status,
            error: Some(refusal.for_record()),
            usage: self.watch.usage(),
            outcome,
            response: None,
        };
        self.aborting = true;
        match call.record(ending).await {
            Ok(()) => Some(Ok(event)),
            Err(error) => Some(Ok(self.event(&ErrorReply::of_fault(&unrecordable(&error))))),
        }
    }
}
