//! A policy whose server tells token ids with its chat replies, when it is asked for them: vLLM's
//! `return_token_ids`.
//!
//! `request` asks, `reply` reads what came and takes out what the caller did not ask for, byte for byte,
//! `ledger` makes the records. Where a reply has no ids, the record says so, and why.

mod ledger;
mod reply;
mod request;

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use osmosis_dialect::Dialect;
use osmosis_dialect::sse::EventBuffer;

use self::ledger::Ledger;
use self::reply::Wanted;
use crate::policy::{
    CallFormat, Fault, Layer, ModelCall, ModelReply, Policy, ReplyBody, TokenLedger,
};
use crate::tokens::engine::ServerLogprobs;

/// Asks the policy behind it for token ids and logprobs, and records them.
#[derive(Debug)]
pub struct ReportedTokens {
    policy: Arc<dyn Policy>,
    logprobs: ServerLogprobs,
}

impl ReportedTokens {
    /// `logprobs` is what the server was set to give.
    pub fn new(policy: Arc<dyn Policy>, logprobs: ServerLogprobs) -> Self {
        Self { policy, logprobs }
    }
}

#[async_trait]
impl Layer for ReportedTokens {
    fn inner(&self) -> &Arc<dyn Policy> {
        &self.policy
    }

    fn around(&self, inner: Arc<dyn Policy>) -> Arc<dyn Policy> {
        Arc::new(Self::new(inner, self.logprobs))
    }

    async fn answer_through(&self, mut call: ModelCall) -> Result<ModelReply, Fault> {
        if call.format != CallFormat::Dialect(Dialect::ChatCompletions) {
            return self.policy.answer(call).await;
        }
        let Some(asked) = request::amend(&call.body, self.logprobs) else {
            // Whatever is wrong with it is the policy's to say.
            return self.policy.answer(call).await;
        };
        call.body = asked.body;
        let ledger = Arc::new(Ledger::new(
            Arc::clone(&call.history),
            call.sample_id.clone(),
            self.policy.describe_for(&call.rollout_id).version,
            asked.settings,
        ));
        let slot = call.tokens.clone();
        let reply = self.policy.answer(call).await?;
        if reply.status >= 400 {
            return Ok(reply);
        }
        slot.fill(Arc::clone(&ledger) as Arc<dyn TokenLedger>);
        let body = match reply.body {
            ReplyBody::Whole(body) => ReplyBody::Whole(read_whole(&ledger, body, asked.wanted)),
            ReplyBody::Stream(events) => {
                ReplyBody::Stream(Box::pin(watched(events, ledger, asked.wanted)))
            }
        };
        Ok(ModelReply { body, ..reply })
    }
}

fn read_whole(ledger: &Ledger, body: Bytes, wanted: Wanted) -> Bytes {
    let Some(read) = reply::read(&body, wanted) else {
        return body;
    };
    ledger.note(read.news);
    ledger.whole();
    read.stripped.map_or(body, Bytes::from)
}

/// A stream on its way, read and stripped event by event.
struct Watched {
    events: Pin<Box<dyn Stream<Item = Result<Bytes, Fault>> + Send>>,
    buffer: EventBuffer,
    ledger: Arc<Ledger>,
    wanted: Wanted,
    over: bool,
}

fn watched(
    events: Pin<Box<dyn Stream<Item = Result<Bytes, Fault>> + Send>>,
    ledger: Arc<Ledger>,
    wanted: Wanted,
) -> impl Stream<Item = Result<Bytes, Fault>> + Send {
    let state = Watched {
        events,
        buffer: EventBuffer::default(),
        ledger,
        wanted,
        over: false,
    };
    stream::unfold(state, |mut state| async move {
        state.next().await.map(|item| (item, state))
    })
}

impl Watched {
    async fn next(&mut self) -> Option<Result<Bytes, Fault>> {
        while !self.over {
            let passed = match self.events.next().await {
                Some(Ok(piece)) if self.buffer.push(&piece).is_ok() => self.complete(),
                Some(Ok(_)) | None => {
                    // What follows an event without end is for the gateway to judge.
                    self.over = true;
                    self.buffer.rest()
                }
                Some(Err(fault)) => {
                    self.over = true;
                    return Some(Err(fault));
                }
            };
            if !passed.is_empty() {
                return Some(Ok(passed));
            }
        }
        None
    }

    /// The events that are complete by now.
    fn complete(&mut self) -> Bytes {
        let mut passed = BytesMut::new();
        while let Some(event) = self.buffer.next() {
            match reply::read_event(&event, self.wanted) {
                Some(read) => {
                    self.ledger.note(read.news);
                    match read.stripped {
                        Some(stripped) => passed.extend_from_slice(stripped.as_bytes()),
                        None => passed.extend_from_slice(&event),
                    }
                }
                None => passed.extend_from_slice(&event),
            }
        }
        passed.freeze()
    }
}

/// A reply without what is said of tokens; `None` when it stays as it is.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn stripped_reply(body: &[u8]) -> Option<String> {
    reply::read(body, reply::Wanted::NOTHING)?.stripped
}

/// The same for an event of a stream.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn stripped_event(event: &[u8]) -> Option<String> {
    reply::read_event(event, reply::Wanted::NOTHING)?.stripped
}
