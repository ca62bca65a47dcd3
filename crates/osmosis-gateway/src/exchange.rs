//! One model call from body to last byte.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use osmosis_core::SampleId;
use osmosis_dialect::sse::SseWatch;
use osmosis_dialect::{
    ChatRequest, Dialect, ReplyStamp, Sampling, Translator, Unreadable, Usage, checked, refusal_of,
    to_chat, usage_in,
};
use serde_json::Value;
use tracing::Instrument;

use crate::body::{BodyError, read_body};
use crate::door::Visit;
use crate::error_reply::ErrorReply;
use crate::journey::Journey;
use crate::policy::{ChatCall, ChatReply, Fault, FaultKind, Policy, ReplyBody, TokenSlot};
use crate::record::{Ending, OpenCall, unrecordable};
use crate::registry::Served;
use crate::replay::{self, Claim, Kept};
use crate::reply_stream::ReplyStream;
use crate::server::{Arrival, Shared, sampling_of};
use crate::suffered::Verdict;

/// Answers a call that has been identified.
pub(crate) async fn chat(
    shared: Arc<Shared>,
    visit: Visit,
    sample: SampleId,
    arrival: Arrival,
    body: Body,
) -> Response {
    let dialect = arrival.dialect;
    let ended = visit.ended().clone();
    let (rollout_id, session) = (visit.rollout().clone(), visit.session());
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
            return refuse(call, dialect, &refusal, Verdict::Refused).await;
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
        let digest = replay::digest(dialect.as_str(), sample.as_str(), &body);
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
            return refuse(call, dialect, &ErrorReply::key_reused(), Verdict::Refused).await;
        }
    };
    let mut call = begin(body.clone(), &served);
    let entered = tokio::select! {
        biased;
        () = ended.cancelled() => {
            let verdict = call.given_up();
            return refuse(call, dialect, &ErrorReply::rollout_ended(), verdict).await;
        }
        entered = served.enter(shared.hold) => entered,
    };
    let pass = match entered {
        Ok(pass) => pass,
        Err(fault) => {
            let refusal = ErrorReply::of_fault(&fault);
            return refuse(call, dialect, &refusal, Verdict::Faulty(fault)).await;
        }
    };
    let answering = Arc::clone(&pass.policy);
    let policy = answering.describe_for(&rollout_id);
    let journey = Journey::of_task(clock);
    call.is_let_in(pass, &policy, journey.clone(), first_use);
    let sampling = sampling_of(of_run, purpose, &served);
    let made = prepared(
        &*answering,
        dialect,
        &body,
        &policy.model,
        &sampling,
        arrival.at_ms,
    );
    let (request, mut translator) = match made {
        Ok(prepared) => prepared,
        Err(refusal) => return refuse(call, dialect, &refusal, Verdict::Refused).await,
    };
    let spoken = match &translator {
        None => dialect,
        Some(_) => Dialect::ChatCompletions,
    };
    let (streamed, wants_usage) = (request.streamed, request.wants_usage);
    // What an evaluation decides for itself is no news to the agent's author.
    if !greedy {
        shared.warn_of_overrides(&request.overridden);
    }
    let tokens = TokenSlot::default();
    call.goes_to_the_policy(request.model, streamed, tokens.clone());
    let span = call.span();
    let limit = answering.output_limit();
    let asked = answering.chat(ChatCall {
        rollout_id: rollout_id.clone(),
        sample_id: sample.clone(),
        dialect: spoken,
        dialect_headers: arrival.dialect_headers.clone(),
        body: request.body,
        streamed,
        session: Arc::clone(&session),
        tokens: tokens.clone(),
        journey: journey.clone(),
    });
    let mut answer = tokio::select! {
        biased;
        () = ended.cancelled() => {
            let verdict = call.given_up();
            return refuse(call, dialect, &ErrorReply::rollout_ended(), verdict).await;
        }
        answer = in_time.keep(&journey, asked.instrument(span.clone())) => answer,
    };
    // The name of the limit is ours in a translated call, and the policy has just said that it wants
    // the other.
    if matches!(answer, Ok(ChatReply { status: 400, .. }))
        && translator.is_some()
        && answering.output_limit() != limit
        && let Ok((request, again)) = prepared(
            &*answering,
            dialect,
            &body,
            &policy.model,
            &sampling,
            arrival.at_ms,
        )
    {
        translator = again;
        let asked = answering.chat(ChatCall {
            rollout_id,
            sample_id: sample,
            dialect: spoken,
            dialect_headers: arrival.dialect_headers.clone(),
            body: request.body,
            streamed,
            session,
            tokens,
            journey: journey.clone(),
        });
        answer = tokio::select! {
            biased;
            () = ended.cancelled() => {
                let verdict = call.given_up();
            return refuse(call, dialect, &ErrorReply::rollout_ended(), verdict).await;
            }
            answer = in_time.keep(&journey, asked.instrument(span)) => answer,
        };
    }
    match answer {
        Err(fault) => {
            let refusal = ErrorReply::of_fault(&fault);
            refuse(call, dialect, &refusal, Verdict::Faulty(fault)).await
        }
        Ok(ChatReply {
            status,
            content_type,
            body: ReplyBody::Whole(body),
        }) => {
            call.first_byte();
            let reply = WholeReply {
                status,
                content_type,
                usage: if status < 400 { usage_in(&body) } else { None },
                error: (status >= 400).then(|| refused(status, &body)),
            };
            if let Ok(body) = in_dialect(dialect, translator, status, body) {
                return pass_whole(call, dialect, reply, body).await;
            }
            let fault = garbage(&policy.endpoint, "sent a reply that can't be read");
            let refusal = ErrorReply::of_fault(&fault);
            refuse(call, dialect, &refusal, Verdict::Faulty(fault)).await
        }
        Ok(ChatReply {
            status,
            content_type,
            body: ReplyBody::Stream(upstream),
        }) => {
            call.stream_begins(status);
            let live = ReplyStream {
                call: Some(call),
                upstream,
                watch: SseWatch::new(spoken, !wants_usage),
                dialect,
                translator,
                endpoint: journey.endpoint().unwrap_or(policy.endpoint),
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

/// The call as the policy shall have it, and who translates its answer, when somebody has to.
fn prepared(
    policy: &dyn Policy,
    dialect: Dialect,
    body: &Bytes,
    model: &str,
    sampling: &Sampling,
    at_ms: i64,
) -> Result<(ChatRequest, Option<Translator>), ErrorReply> {
    if policy.speaks(dialect) {
        let request = ChatRequest::parse(dialect, body, model, sampling)?;
        return Ok((request, None));
    }
    let stamp = ReplyStamp {
        id: rand::random(),
        created: at_ms.unsigned_abs() / 1000,
    };
    let translated = to_chat(dialect, checked(body)?, policy.output_limit(), stamp)?;
    let mut request = ChatRequest::parse(
        Dialect::ChatCompletions,
        &translated.request,
        model,
        sampling,
    )?;
    // The translator does: both other dialects end their streams with it.
    request.wants_usage = true;
    Ok((request, Some(translated.translator)))
}

/// A whole reply in the dialect of its caller.
fn in_dialect(
    dialect: Dialect,
    translator: Option<Translator>,
    status: u16,
    body: Bytes,
) -> Result<Bytes, Unreadable> {
    match translator {
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
fn replayed(kept: Kept) -> Response {
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

/// Records a call that gets an error reply, then gives the reply.
pub(crate) async fn refuse(
    call: OpenCall,
    dialect: Dialect,
    refusal: &ErrorReply,
    verdict: Verdict,
) -> Response {
    let body = refusal.body(dialect);
    let ending = Ending {
        status: refusal.status.as_u16(),
        error: Some(refusal.for_record()),
        usage: None,
        verdict,
        response: Some(body.clone()),
    };
    match call.record(ending).await {
        Ok(()) => refusal.response_with(body),
        Err(error) => ErrorReply::of_fault(&unrecordable(&error)).response(dialect),
    }
}

/// That a policy refused, and why, as far as its reply says it in a line.
pub(crate) fn refused(status: u16, body: &[u8]) -> String {
    let reply = serde_json::from_slice(body).unwrap_or(Value::Null);
    let message = reply.pointer("/error/message").and_then(Value::as_str);
    let message: String = message.into_iter().flat_map(str::chars).take(300).collect();
    let colon = if message.is_empty() { "" } else { ": " };
    format!("upstream_refused: the upstream answered with status {status}{colon}{message}")
}

/// What there is to know of a reply that came in one piece, beside its body.
pub(crate) struct WholeReply {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) usage: Option<Usage>,
    pub(crate) error: Option<String>,
}

/// Records a whole reply, then passes it on as it is.
pub(crate) async fn pass_whole(
    call: OpenCall,
    dialect: Dialect,
    reply: WholeReply,
    body: Bytes,
) -> Response {
    let ending = Ending {
        status: reply.status,
        error: reply.error,
        usage: reply.usage,
        verdict: Verdict::Answered,
        response: Some(body.clone()),
    };
    match call.record(ending).await {
        Ok(()) => response(reply.status, &reply.content_type, Body::from(body)),
        Err(error) => ErrorReply::of_fault(&unrecordable(&error)).response(dialect),
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
