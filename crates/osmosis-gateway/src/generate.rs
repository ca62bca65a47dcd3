//! `POST /v1/generate`: one call in token ids, from body to answer.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use osmosis_core::SampleId;
use osmosis_dialect::{Dialect, Sampling, usage_in};
use serde_json::{Map, Value, json};

use crate::body::{BodyError, read_body};
use crate::door::Visit;
use crate::error_reply::ErrorReply;
use crate::exchange::{WholeReply, pass_whole, refuse, refused};
use crate::journey::Journey;
use crate::policy::{ChatCall, ChatReply, Fault, FaultKind, ReplyBody, TokenSlot};
use crate::record::OpenCall;
use crate::server::{Arrival, Shared, sampling_of};
use crate::suffered::Verdict;

/// The name in records.
const DIALECT: &str = "generate";

/// Errors have the shape that OpenAI's clients know.
const SHAPE: Dialect = Dialect::ChatCompletions;

/// Answers a call that has been identified.
pub(crate) async fn generate(
    shared: Arc<Shared>,
    visit: Visit,
    sample: SampleId,
    arrival: Arrival,
    body: Body,
) -> Response {
    let ended = visit.ended().clone();
    let (rollout_id, session) = (visit.rollout().clone(), visit.session());
    let purpose = visit.purpose();
    let (of_run, greedy) = (visit.sampling(shared.sampling), visit.decodes_greedily());
    let (clock, in_time) = (visit.clock(), visit.call_deadline());
    let served = visit
        .judge()
        .unwrap_or_else(|| shared.registry.run_policy());
    let read = tokio::select! {
        biased;
        () = ended.cancelled() => return ErrorReply::rollout_ended().response(SHAPE),
        read = read_body(body, shared.max_body_bytes, &shared.tasks) => read,
    };
    let begin = |request: Bytes| {
        let mut call = OpenCall::begin(
            Arc::clone(&shared),
            visit,
            sample.clone(),
            &arrival,
            &served.describe_for(&rollout_id),
            request,
        );
        call.speaks(DIALECT);
        call
    };
    let body = match read {
        Ok(body) => body,
        Err(BodyError::TooLarge) => {
            let refusal = ErrorReply::too_large(shared.max_body_bytes);
            return refuse(begin(Bytes::new()), SHAPE, &refusal, Verdict::Refused).await;
        }
        // No call has come; there is nothing to record.
        Err(BodyError::TooSlow) => {
            return ErrorReply::too_slow("the request body stopped coming").response(SHAPE);
        }
        Err(BodyError::Broken) => {
            return ErrorReply::bad_request("the request body broke off").response(SHAPE);
        }
    };
    let mut call = begin(body.clone());
    let entered = tokio::select! {
        biased;
        () = ended.cancelled() => {
            let verdict = call.given_up();
            return refuse(call, SHAPE, &ErrorReply::rollout_ended(), verdict).await;
        }
        entered = served.enter(shared.hold) => entered,
    };
    let pass = match entered {
        Ok(pass) => pass,
        Err(fault) => {
            let refusal = ErrorReply::of_fault(&fault);
            return refuse(call, SHAPE, &refusal, Verdict::Faulty(fault)).await;
        }
    };
    let answering = Arc::clone(&pass.policy);
    let policy = answering.describe_for(&rollout_id);
    let journey = Journey::of_task(clock);
    call.is_let_in(pass, &policy, journey.clone(), None);
    let body = match amended(&body, &sampling_of(of_run, purpose, &served)) {
        Ok((body, overridden)) => {
            if !greedy {
                shared.warn_of_overrides(&overridden);
            }
            body
        }
        Err(refusal) => return refuse(call, SHAPE, &refusal, Verdict::Refused).await,
    };
    let tokens = TokenSlot::default();
    call.goes_to_the_policy(policy.model.clone(), false, tokens.clone());
    let asked = answering.generate(ChatCall {
        rollout_id,
        sample_id: sample,
        dialect: SHAPE,
        dialect_headers: HeaderMap::new(),
        body,
        streamed: false,
        session,
        tokens,
        journey: journey.clone(),
    });
    let answer = tokio::select! {
        biased;
        () = ended.cancelled() => {
            let verdict = call.given_up();
            return refuse(call, SHAPE, &ErrorReply::rollout_ended(), verdict).await;
        }
        answer = in_time.keep(&journey, asked) => answer,
    };
    let answer = answer.and_then(|reply| match reply {
        ChatReply {
            status,
            content_type,
            body: ReplyBody::Whole(body),
        } => Ok((status, content_type, body)),
        ChatReply { .. } => Err(Fault {
            kind: FaultKind::Garbage,
            status: 502,
            message: format!("{} streamed an answer in ids", policy.endpoint),
        }),
    });
    match answer {
        Ok((status, content_type, body)) => {
            call.first_byte();
            let reply = WholeReply {
                status,
                content_type,
                usage: if status < 400 { usage_in(&body) } else { None },
                error: (status >= 400).then(|| refused(status, &body)),
            };
            pass_whole(call, SHAPE, reply, body).await
        }
        Err(fault) => {
            let refusal = ErrorReply::of_fault(&fault);
            refuse(call, SHAPE, &refusal, Verdict::Faulty(fault)).await
        }
    }
}

/// The body with the run's sampling filled in, and what of the caller's choices was replaced.
fn amended(body: &Bytes, sampling: &Sampling) -> Result<(Bytes, Vec<&'static str>), ErrorReply> {
    let mut request: Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
        ErrorReply::bad_request(format!("the body is not a valid request: {error}"))
    })?;
    let given = request
        .entry("sampling_params")
        .or_insert_with(|| json!({}));
    if given.is_null() {
        *given = json!({});
    }
    let Value::Object(params) = given else {
        return Err(ErrorReply::bad_request(
            "`sampling_params` is not an object",
        ));
    };
    let mut overridden = Vec::new();
    // A greedy call chose its temperature too.
    if params.get("greedy") == Some(&Value::Bool(true)) {
        params.entry("temperature").or_insert(json!(0.0));
        if sampling.overrides && sampling.temperature.is_some() {
            params.remove("greedy");
        }
    }
    for (name, value) in [
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
    ] {
        let Some(value) = value else { continue };
        let says = params.get(name).filter(|says| !says.is_null());
        if says.is_some() && !sampling.overrides {
            continue;
        }
        if says.is_some_and(|says| says.as_f64() != Some(value)) {
            overridden.push(name);
        }
        params.insert(name.to_owned(), json!(value));
    }
    if sampling.overrides {
        for (name, neutral) in [("top_k", Some(-1)), ("seed", None)] {
            if let Some(says) = params.remove(name).filter(|says| !says.is_null())
                && (neutral.is_none() || says.as_i64() != neutral)
            {
                overridden.push(name);
            }
        }
    }
    Ok((Bytes::from(Value::Object(request).to_string()), overridden))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_sampling_fills_gaps_or_wins() {
        let fill = Sampling {
            temperature: Some(0.5),
            top_p: Some(1.0),
            overrides: false,
        };
        let win = Sampling {
            overrides: true,
            ..fill
        };
        for (params, sampling, expected, overridden) in [
            (
                json!(null),
                fill,
                json!({"temperature": 0.5, "top_p": 1.0}),
                &[][..],
            ),
            (
                json!({"temperature": 1.0}),
                fill,
                json!({"temperature": 1.0, "top_p": 1.0}),
                &[][..],
            ),
            (
                json!({"temperature": 1.0}),
                win,
                json!({"temperature": 0.5, "top_p": 1.0}),
                &["temperature"],
            ),
            (
                json!({"greedy": true}),
                fill,
                json!({"greedy": true, "temperature": 0.0, "top_p": 1.0}),
                &[][..],
            ),
            (
                json!({"greedy": true}),
                win,
                json!({"temperature": 0.5, "top_p": 1.0}),
                &["temperature"],
            ),
            (
                json!({"seed": 7, "top_k": 40}),
                fill,
                json!({"seed": 7, "top_k": 40, "temperature": 0.5, "top_p": 1.0}),
                &[],
            ),
            (
                json!({"seed": 7, "top_k": 40}),
                win,
                json!({"temperature": 0.5, "top_p": 1.0}),
                &["top_k", "seed"],
            ),
            (
                json!({"seed": null, "top_k": -1}),
                win,
                json!({"temperature": 0.5, "top_p": 1.0}),
                &[],
            ),
        ] {
            let body =
                Bytes::from(json!({"input_ids": [1], "sampling_params": params}).to_string());
            let (amended, replaced) = amended(&body, &sampling).unwrap();
            let amended: Value = serde_json::from_slice(&amended).unwrap();
            assert_eq!(amended["sampling_params"], expected);
            assert_eq!(replaced, overridden, "{body:?}");
        }
        for bad in ["[]", "{\"sampling_params\": 1}", "{"] {
            assert!(amended(&Bytes::from(bad), &fill).is_err(), "{bad}");
        }
    }
}
