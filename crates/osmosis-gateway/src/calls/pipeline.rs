//! One model call from body to last byte. Calls in text and calls in token ids go the same way.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use osmosis_core::SampleId;
use osmosis_dialect::sse::SseWatch;
use osmosis_dialect::{Dialect, Sampling, Unreadable, refusal_of, usage_in};
use osmosis_store::CallPurpose;
use serde_json::Value;
use tracing::Instrument;

use crate::calls::call_trace::CallTrace;
use crate::calls::error::{CallError, ErrorCode};
use crate::calls::prepared::PreparedCall;
use crate::calls::record::{Ending, OpenCall, unrecordable};
use crate::calls::replay::{self, Claim, StoredAnswer};
use crate::calls::reply_stream::ReplyStream;
use crate::policy::registry::Served;
use crate::policy::{CallFormat, Fault, FaultKind, ModelCall, ModelReply, ReplyBody, TokenSlot};
use crate::serving::body::{BodyError, read_body};
use crate::serving::error_reply::ErrorReply;
use crate::serving::requests::Arrival;
use crate::serving::server::Shared;
use crate::sessions::fault_tally::CallOutcome;
use crate::sessions::visit::Visit;

/// Answers a call that has been identified.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    visit: Visit,
    sample: SampleId,
    arrival: Arrival,
    body: Body,
) -> Response {
    let format = arrival.format;
    let dialect = format.error_dialect();
    let ended = visit.ended().clone();
    let (rollout_id, history) = (visit.rollout().clone(), visit.history());
    let replays = visit.replays();
    let (judge, purpose) = (visit.judge(), visit.purpose());
    let (of_run, greedy) = (visit.sampling(shared.sampling), visit.decodes_greedily());
    let (clock, in_time) = (visit.clock(), visit.call_deadline());
    let read = tokio::select! {
        biased;
        () = ended.cancelled() => return ErrorReply::rollout_ended().response(dialect),
        read = read_body(body, shared.max_body_bytes, &shared.tasks) => read,
    };
    let begin = |request: Bytes, served: &Served| {
        OpenCall::begin(
            Arc::clone(&shared),
            visit,
            sample.clone(),
            &arrival,
            &served.describe_for(&rollout_id),
            request,
        )
    };
    let body = match read {
        Ok(body) => body,
        Err(BodyError::TooLarge) => {
            let refusal = ErrorReply::too_large(shared.max_body_bytes);
            let served = judge.unwrap_or_else(|| shared.registry.run_policy());
            let call = begin(Bytes::new(), &served);
            return refuse(call, dialect, &refusal, CallOutcome::Refused).await;
        }
        // No call has come; there is nothing to record.
        Err(BodyError::TooSlow) => {
            return ErrorReply::too_slow("the request body stopped coming").response(dialect);
        }
        Err(BodyError::Broken) => {
            return ErrorReply::bad_request("the request body broke off").response(dialect);
        }
    };
    let served = judge.unwrap_or_else(|| shared.registry.for_request(&body));
    let claim = async {
        let key = arrival.replay_key.as_deref()?;
        let digest = replay::digest(format.as_str(), sample.as_str(), &body);
        Some(replays.claim(key, digest).await)
    };
    let claim = tokio::select! {
        biased;
        () = ended.cancelled() => return ErrorReply::rollout_ended().response(dialect),
        claim = claim => claim,
    };
    let first_use = match claim {
        None => None,
        Some(Claim::First(first_use)) => Some(first_use),
        Some(Claim::Again(kept)) => {
            shared.metrics.count_replay();
            return replayed(kept);
        }
        Some(Claim::OtherRequest) => {
            let call = begin(body.clone(), &served);
            return refuse(
                call,
                dialect,
                &ErrorReply::key_reused(),
                CallOutcome::Refused,
            )
            .await;
        }
    };
    let mut call = begin(body.clone(), &served);
    let entered = tokio::select! {
        biased;
        () = ended.cancelled() => {
            let outcome = call.given_up();
            return refuse(call, dialect, &ErrorReply::rollout_ended(), outcome).await;
        }
        entered = served.enter(shared.hold) => entered,
    };
    let pass = match entered {
        Ok(pass) => pass,
        Err(fault) => return refuse_faulty(call, dialect, fault).await,
    };
    let answering = pass.policy_for(&rollout_id);
    let policy = answering.describe();
    let call_trace = CallTrace::of_task(clock);
    call.is_let_in(pass, &policy, call_trace.clone(), first_use);
    // `[sampling]` is for the policy under study, not for what else is asked.
    let sampling = if served.is_the_runs && purpose == CallPurpose::Policy {
        of_run
    } else {
        Sampling::default()
    };
    let prepare = || {
        let capabilities = answering.capabilities();
        PreparedCall::new(
            format,
            &body,
            &policy.model,
            &sampling,
            &capabilities,
            arrival.at_ms,
        )
    };
    let mut prepared = match prepare() {
        Ok(prepared) => prepared,
        Err(refusal) => return refuse(call, dialect, &refusal, CallOutcome::Refused).await,
    };
    // What an evaluation decides for itself is no news to the agent's author.
    if !greedy {
        shared.warn_of_overrides(&prepared.overridden);
    }
    let tokens = TokenSlot::default();
    let model = std::mem::take(&mut prepared.model);
    call.goes_to_the_policy(model, prepared.streamed, tokens.clone());
    let span = call.span();
    let mut is_first = true;
    let answer = loop {
        let limit = answering.output_limit();
        let asked = answering.answer(ModelCall {
            rollout_id: rollout_id.clone(),
            sample_id: sample.clone(),
            format: prepared.format,
            dialect_headers: arrival.dialect_headers.clone(),
            body: std::mem::take(&mut prepared.body),
            streamed: prepared.streamed,
            history: Arc::clone(&history),
            tokens: tokens.clone(),
            call_trace: call_trace.clone(),
        });
        let answer = tokio::select! {
            biased;
            () = ended.cancelled() => {
                let outcome = call.given_up();
                return refuse(call, dialect, &ErrorReply::rollout_ended(), outcome).await;
            }
            answer = in_time.keep(&call_trace, asked.instrument(span.clone())) => answer,
        };
        // The name of the limit is ours in a translated call, and the policy has just said that it wants
        // the other.
        if is_first
            && prepared.translator.is_some()
            && matches!(answer, Ok(ModelReply { status: 400, .. }))
            && answering.output_limit() != limit
            && let Ok(again) = prepare()
        {
            is_first = false;
            prepared = again;
            continue;
        }
        break answer;
    };
    let ModelReply {
        status,
        content_type,
        body,
    } = match answer {
        Ok(reply) => reply,
        Err(fault) => {
            shared.note_run_fault(&fault);
            return refuse_faulty(call, dialect, fault).await;
        }
    };
    match body {
        ReplyBody::Whole(body) => {
            call.first_byte();
            let usage = if status < 400 { usage_in(&body) } else { None };
            let endpoint = call_trace
                .endpoint()
                .unwrap_or_else(|| policy.endpoint.clone());
            let error = (status >= 400).then(|| refused(&endpoint, status, &body));
            let Ok(body) = in_dialect(dialect, prepared, status, body) else {
                let fault = garbage(&policy.endpoint, "sent a reply that can't be read");
                return refuse_faulty(call, dialect, fault).await;
            };
            let ending = Ending {
                status,
                error,
                usage,
                outcome: CallOutcome::Answered,
                response: Some(body.clone()),
            };
            match call.record(ending).await {
                Ok(()) => response(status, &content_type, Body::from(body)),
                Err(error) => ErrorReply::of_fault(&unrecordable(&error)).response(dialect),
            }
        }
        ReplyBody::Stream(upstream) => {
            let CallFormat::Dialect(spoken) = prepared.format else {
                let fault = garbage(&policy.endpoint, "streamed an answer in ids");
                return refuse_faulty(call, dialect, fault).await;
            };
            call.stream_begins(status);
            let live = ReplyStream {
                call: Some(call),
                upstream,
                watch: SseWatch::new(spoken, !prepared.wants_usage),
                dialect,
                translator: prepared.translator,
                endpoint: call_trace.endpoint().unwrap_or(policy.endpoint),
                status,
                ended: Box::pin(ended.cancelled_owned()),
                aborting: false,
            };
            let mut response = response(status, &content_type, live.into_body());
            response
                .headers_mut()
                .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            response
        }
    }
}

/// A whole reply in the dialect of its caller.
fn in_dialect(
    dialect: Dialect,
    prepared: PreparedCall,
    status: u16,
    body: Bytes,
) -> Result<Bytes, Unreadable> {
    match prepared.translator {
        None => Ok(body),
        Some(_) if status >= 400 => Ok(refusal_of(dialect, status, body)),
        Some(translator) => translator.whole(&body),
    }
}

fn garbage(endpoint: &str, what: &str) -> Fault {
    Fault {
        kind: FaultKind::Garbage,
        status: 502,
        message: format!("{endpoint} {what}"),
    }
}

/// The answer of an earlier call, given again.
fn replayed(kept: StoredAnswer) -> Response {
    let content_type = if kept.streamed {
        "text/event-stream"
    } else {
        "application/json"
    };
    let mut response = response(kept.status, content_type, Body::from(kept.body));
    response
        .headers_mut()
        .insert("idempotent-replayed", HeaderValue::from_static("true"));
    response
}

/// Records a call that failed for no fault of its caller's, then gives the error reply.
async fn refuse_faulty(call: OpenCall, dialect: Dialect, fault: Fault) -> Response {
    let refusal = ErrorReply::of_fault(&fault);
    refuse(call, dialect, &refusal, CallOutcome::Faulty(fault)).await
}

/// Records a call that gets an error reply, then gives the reply.
async fn refuse(
    call: OpenCall,
    dialect: Dialect,
    refusal: &ErrorReply,
    outcome: CallOutcome,
) -> Response {
    let body = refusal.body(dialect);
    let ending = Ending {
        status: refusal.status.as_u16(),
        error: Some(refusal.for_record()),
        usage: None,
        outcome,
        response: Some(body.clone()),
    };
    match call.record(ending).await {
        Ok(()) => refusal.response_with(body),
        Err(error) => ErrorReply::of_fault(&unrecordable(&error)).response(dialect),
    }
}

/// That a policy refused, and why, as far as its reply says it in a line.
fn refused(endpoint: &str, status: u16, body: &[u8]) -> CallError {
    let reply = serde_json::from_slice(body).unwrap_or(Value::Null);
    let message = reply.pointer("/error/message").and_then(Value::as_str);
    let message: String = message.into_iter().flat_map(str::chars).take(300).collect();
    let colon = if message.is_empty() { "" } else { ": " };
    CallError {
        code: ErrorCode::UpstreamRefused,
        message: format!("{endpoint} answered with status {status}{colon}{message}"),
    }
}

fn response(status: u16, content_type: &str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let content_type = HeaderValue::from_str(content_type)
        .unwrap_or_else(|_| HeaderValue::from_static("application/octet-stream"));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    response
}
