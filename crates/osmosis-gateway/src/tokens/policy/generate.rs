//! Token in, token out: a call that brings ids and gets ids.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use osmosis_core::generation::{GenerationRequest, LogprobsOf, StopReason};
use serde::Deserialize;
use serde_json::{Value, json};

use super::checked_request::{self, Refusal};
use super::draw::{self, Place};
use super::reading::StopScan;
use super::running::{ChoiceSink, Running};
use super::wire::IMPOSSIBLE;
use super::{Cancelling, Inner, Refused};
use crate::policy::{ModelCall, ModelReply, ReplyBody};

/// The request, as far as it is read.
#[derive(Debug, Deserialize)]
struct GenerateRequest {
    #[serde(default)]
    input_ids: Value,
    #[serde(default)]
    sampling_params: Params,
    #[serde(default)]
    rid: Option<String>,
}

/// Names as SGLang and AReaL have them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Params {
    max_new_tokens: Value,
    min_new_tokens: Value,
    temperature: Value,
    greedy: Value,
    top_p: Value,
    top_k: Value,
    stop_token_ids: Value,
    stop: Value,
    ignore_eos: Value,
    seed: Value,
    n: Value,
    frequency_penalty: Value,
    presence_penalty: Value,
    repetition_penalty: Value,
    min_p: Value,
    logit_bias: Value,
}

impl Params {
    fn temperature(&self) -> Result<f32, Refusal> {
        if checked_request::flag("greedy", &self.greedy)? {
            return Ok(0.0);
        }
        checked_request::temperature(&self.temperature)
    }

    /// What would be ignored is refused.
    fn check_unsupported(&self) -> Result<(), Refusal> {
        if checked_request::choices(&self.n)? != 1 {
            let message = "`n` can only be 1: ask once for each answer";
            return Err(Refusal::unsupported("n", message));
        }
        for (name, value, neutral) in [
            ("min_new_tokens", &self.min_new_tokens, 0.0),
            ("frequency_penalty", &self.frequency_penalty, 0.0),
            ("presence_penalty", &self.presence_penalty, 0.0),
            ("repetition_penalty", &self.repetition_penalty, 1.0),
            ("min_p", &self.min_p, 0.0),
        ] {
            if checked_request::number(name, value)?
                .is_some_and(|given| (given - neutral).abs() > 0.0)
            {
                return Err(Refusal::unsupported(
                    name,
                    format!("`{name}` is {value}; only {neutral} is supported"),
                ));
            }
        }
        match &self.logit_bias {
            Value::Null => Ok(()),
            Value::Object(biases) if biases.is_empty() => Ok(()),
            _ => Err(Refusal::unsupported(
                "logit_bias",
                "`logit_bias` is not supported",
            )),
        }
    }

    /// The ids that end the answer: the model's own, unless it shall go on after them, and the caller's.
    fn stop_ids(&self, end_of_turn: &[u32]) -> Result<Vec<u32>, Refusal> {
        let mut stop_ids = ids("stop_token_ids", &self.stop_token_ids)?;
        if !checked_request::flag("ignore_eos", &self.ignore_eos)? {
            stop_ids.extend_from_slice(end_of_turn);
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        Ok(stop_ids)
    }
}

fn ids(name: &'static str, given: &Value) -> Result<Vec<u32>, Refusal> {
    let wrong = || Refusal::of(name, format!("`{name}` must be a list of token ids"));
    match given {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids
            .iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<_>>()
            .ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

impl Inner {
    pub(super) async fn generate(&self, call: &ModelCall) -> Result<ModelReply, Refused> {
        let asked_at = Instant::now();
        let asked: GenerateRequest = serde_json::from_slice(&call.body).map_err(|error| {
            Refusal::of(
                "input_ids",
                format!("the body is not a valid request: {error}"),
            )
        })?;
        let params = &asked.sampling_params;
        params.check_unsupported()?;
        let prompt = ids("input_ids", &asked.input_ids)?;
        if prompt.is_empty() {
            return Err(Refusal::of("input_ids", "`input_ids` is empty or missing").into());
        }
        self.check_length(prompt.len())?;
        let limits = [
            checked_request::count("max_new_tokens", &params.max_new_tokens)?,
            self.options.max_response_tokens,
        ];
        let room = self.engine.context_length() - prompt.len();
        let max_tokens = limits.into_iter().flatten().fold(room, usize::min);
        let temperature = params.temperature()?;
        let (top_p, top_k) = (
            checked_request::top_p(&params.top_p)?,
            checked_request::top_k(&params.top_k)?,
        );
        let stop_ids = params.stop_ids(self.chat().end_of_turn())?;
        let stops: Arc<[String]> = checked_request::stop_texts(params.stop.clone())?.into();
        let seed = checked_request::seed(&params.seed)?;

        let calls = call.history.calls_of(&call.sample_id, 1);
        let Some(planned) = calls.plan_ids(&prompt, 1).pop() else {
            return Err(Refusal::of("input_ids", "nothing to answer").into());
        };
        let place = Place {
            seed: self.options.seed,
            rollout: &call.rollout_id,
            sample: &call.sample_id,
            call: planned.number,
        };
        let request = GenerationRequest {
            prompt,
            max_tokens,
            temperature,
            top_p,
            top_k,
            stop_ids,
            alternatives: 0,
            key: seed.map_or_else(|| place.draw_key(0), |seed| draw::callers_draw_key(seed, 0)),
            constraint: None,
        };
        let logprobs_of = self.engine.logprobs_of(&request);
        let running = Arc::new(Running::new(
            calls,
            vec![planned.prompt],
            (temperature, logprobs_of),
            None,
            false,
            || StopScan::new(Arc::clone(&self.reading), Arc::clone(&stops)),
        ));
        call.tokens.fill(Arc::clone(&running) as _);
        let running = Cancelling(running);
        let sink = ChoiceSink {
            running: Arc::clone(&running.0),
            choice: 0,
            call_trace: call.call_trace.clone(),
        };
        self.engine.generate(request, Box::new(sink));
        let (tokens, end) = loop {
            match running.0.since(0, 0) {
                (tokens, Some(end)) => break (tokens, end),
                (_, None) => running.0.news().await,
            }
        };
        let reason = self.reason(&end)?;
        running.0.answered_in_ids(0);
        let seconds = |at: Instant| at.duration_since(asked_at).as_secs_f64();
        let logprobs = tokens.iter().map(|token| token.logprob.max(IMPOSSIBLE));
        let mut reply = json!({
            "output_ids": tokens.iter().map(|token| token.id).collect::<Vec<_>>(),
            "output_logprobs": logprobs.collect::<Vec<_>>(),
            "output_versions": tokens.iter().map(|token| token.version.0).collect::<Vec<_>>(),
            "stop_reason": match reason {
                StopReason::Length => "length",
                StopReason::Stop | StopReason::Cancelled => "stop",
            },
            "logprobs_of": name_of(logprobs_of),
            "latency": seconds(Instant::now()),
            "ttft": running.0.first_token_at(0).map(seconds),
        });
        if let Some(rid) = asked.rid {
            reply["rid"] = json!(rid);
        }
        Ok(ModelReply {
            status: 200,
            content_type: "application/json".to_owned(),
            body: ReplyBody::Whole(Bytes::from(reply.to_string())),
        })
    }
}

/// What the logprobs are, for callers.
fn name_of(logprobs: LogprobsOf) -> &'static str {
    match logprobs {
        LogprobsOf::Tempered => "tempered",
        LogprobsOf::Untempered => "untempered",
        LogprobsOf::Filtered => "filtered",
        LogprobsOf::Unknown => "unknown",
    }
}
