//! Whatever is sampled and whatever is asked, a stream tells the same message as a whole reply, and
//! nothing panics.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::StreamExt;
use http::HeaderMap;
use osmosis_core::generation::{
    GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_core::{PolicyVersion, RolloutId, SampleId};
use osmosis_gateway::{
    CallFormat, CallHistory, Dialect, ModelCall, ModelReply, Policy, ReplyBody, TokenPolicy,
    TokenSlot,
};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::toy::{self, CALL, CALL_END, Engine, IM_END, IM_START, Line, ids_of};

fn call(body: &Value) -> ModelCall {
    ModelCall {
        rollout_id: RolloutId::of(0, 0),
        sample_id: SampleId::main(),
        format: CallFormat::Dialect(Dialect::default()),
        dialect_headers: HeaderMap::new(),
        body: Bytes::from(body.to_string()),
        streamed: body["stream"] == true,
        history: Arc::new(CallHistory::default()),
        call_trace: osmosis_gateway::CallTrace::default(),
        tokens: TokenSlot::default(),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

fn ask(policy: &dyn Policy, body: &Value) -> Result<(u16, Bytes), String> {
    runtime().block_on(async {
        let ModelReply { status, body, .. } = policy
            .answer(call(body))
            .await
            .map_err(|fault| fault.message)?;
        match body {
            ReplyBody::Whole(bytes) => Ok((status, bytes)),
            ReplyBody::Stream(mut stream) => {
                let mut all = Vec::new();
                while let Some(chunk) = stream.next().await {
                    all.extend_from_slice(&chunk.map_err(|fault| fault.message)?);
                }
                Ok((status, Bytes::from(all)))
            }
        }
    })
}

/// Samples when it is told to.
#[derive(Debug)]
struct Stepping {
    ids: Mutex<VecDeque<u32>>,
    under_way: Mutex<Option<UnderWay>>,
}

struct UnderWay(Vec<u32>, Box<dyn TokenSink>);

impl std::fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UnderWay")
    }
}

impl TokenEngine for Stepping {
    fn context_length(&self) -> usize {
        2000
    }

    fn version(&self) -> PolicyVersion {
        PolicyVersion(7)
    }

    fn generate(&self, request: GenerationRequest, sink: Box<dyn TokenSink>) {
        *self.under_way.lock() = Some(UnderWay(request.stop_ids, sink));
    }
}

impl Stepping {
    fn step(&self) {
        let Some(UnderWay(stop_ids, mut sink)) = self.under_way.lock().take() else {
            return;
        };
        let Some(id) = self.ids.lock().pop_front() else {
            return sink.end(Ok(StopReason::Length));
        };
        let token = SampledToken {
            id,
            logprob: -1.0,
            version: PolicyVersion(7),
            alternatives: Vec::new(),
            allowed: None,
        };
        if sink.token(token).is_break() {
            sink.end(Ok(StopReason::Cancelled));
        } else if stop_ids.contains(&id) {
            sink.end(Ok(StopReason::Stop));
        } else {
            *self.under_way.lock() = Some(UnderWay(stop_ids, sink));
        }
    }
}

/// A stream that is read after every `stride` tokens.
fn ask_step_by_step(ids: Vec<u32>, body: &Value, stride: usize) -> Vec<u8> {
    let engine = Arc::new(Stepping {
        ids: Mutex::new(ids.into()),
        under_way: Mutex::default(),
    });
    let chat = Arc::new(toy::chat_format());
    let policy = TokenPolicy::new(Arc::clone(&engine) as _, chat, toy::options());
    runtime().block_on(async {
        let mut asking = policy.answer(call(body));
        let mut stream = loop {
            match futures_util::poll!(asking.as_mut()) {
                Poll::Pending => (0..stride).for_each(|_| engine.step()),
                Poll::Ready(reply) => match reply.unwrap().body {
                    ReplyBody::Stream(stream) => break stream,
                    ReplyBody::Whole(bytes) => return bytes.to_vec(),
                },
            }
        };
        let mut all = Vec::new();
        loop {
            match futures_util::poll!(stream.next()) {
                Poll::Pending => (0..stride).for_each(|_| engine.step()),
                Poll::Ready(Some(chunk)) => all.extend_from_slice(&chunk.unwrap()),
                Poll::Ready(None) => return all,
            }
        }
    })
}

/// What the deltas of a stream add up to: message, finish reason, token ids.
fn joined(stream: &[u8]) -> Value {
    let mut message = Map::new();
    let mut finish = Value::Null;
    let mut ids = Vec::new();
    let text = std::str::from_utf8(stream).unwrap();
    let mut events: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(events.pop(), Some("data: [DONE]"));
    for event in events {
        let chunk: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        let choice = &chunk["choices"][0];
        ids.extend(
            choice["token_ids"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
        if !choice["finish_reason"].is_null() {
            assert!(finish.is_null());
            finish = choice["finish_reason"].clone();
        }
        for (name, value) in choice["delta"].as_object().unwrap() {
            match (name.as_str(), value) {
                ("tool_calls", Value::Array(calls)) => {
                    let known = message.entry("tool_calls").or_insert_with(|| json!([]));
                    let known = known.as_array_mut().unwrap();
                    for call in calls {
                        let mut call = call.clone();
                        let index = call.as_object_mut().unwrap().shift_remove("index");
                        assert_eq!(index, Some(json!(known.len())));
                        known.push(call);
                    }
                }
                (_, Value::String(more)) => {
                    let said = message
                        .get(name)
                        .and_then(Value::as_str)
                        .unwrap_or_default();
                    message.insert(name.clone(), json!(format!("{said}{more}")));
                }
                (_, value) => {
                    message.insert(name.clone(), value.clone());
                }
            }
        }
    }
    json!({"message": message, "finish_reason": finish, "token_ids": ids})
}

/// Pieces of answers: text, tags whole and half, calls good and bad, bytes that are no text.
fn piece() -> impl Strategy<Value = Vec<u32>> {
    let texts = prop::sample::select(vec![
        "Hello",
        " ",
        "\n",
        "  \n ",
        "<",
        "<tool",
        "_call>",
        "<tool_call>",
        "</tool_call>",
        "</",
        "<think>",
        "</think>",
        "<thi",
        "{",
        "}",
        "\"",
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        "{\"name\": \"\", \"arguments\": {}}",
        "{\"name\": \"g\", \"arguments\": \"{}\"}",
        "{\"name\": \"h\", \"arguments\": {\"t\": \"</tool_call>\"}}",
        "{\"x\": \"<tool_call>\"}",
        "[1, 2",
        "12",
        "✓",
        "é",
        "STOP",
        "ST",
        "\u{fffd}",
    ]);
    prop_oneof![
        6 => texts.prop_map(ids_of),
        2 => prop::sample::select(vec![vec![CALL], vec![CALL_END], vec![IM_START], ids_of("<think>")]),
        2 => Just(ids_of("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>")),
        // The same letters, one token each.
        1 => Just("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>".bytes().map(u32::from).collect()),
        2 => prop::collection::vec(128..256_u32, 1..4),
        1 => Just(vec![IM_END]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_stream_tells_the_same_message_as_a_whole_reply(
        pieces in prop::collection::vec(piece(), 0..12),
        tools in any::<bool>(),
        stop in any::<bool>(),
        stride in 1..4_usize,
    ) {
        let ids = pieces.concat();
        let (policy, _) = toy::policy(Engine::new([Line::Ids(ids.clone())]));
        let mut body = json!({"messages": [{"role": "user", "content": "x"}], "return_token_ids": true});
        if tools {
            body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
        }
        if stop {
            body["stop"] = json!(["STOP", "l_c"]);
        }
        let (_, whole) = ask(&policy, &body).unwrap();
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        body["stream"] = json!(true);
        let stream = ask_step_by_step(ids, &body, stride);
        let told = joined(&stream);
        let choice = &whole["choices"][0];
        for part in ["message", "finish_reason", "token_ids"] {
            prop_assert_eq!(&told[part], &choice[part], "{}", part);
        }
    }

    #[test]
    fn no_request_panics(
        field in prop::sample::select(vec![
            "messages", "tools", "tool_choice", "chat_template_kwargs", "temperature", "top_p", "top_k",
            "max_tokens", "max_completion_tokens", "stop", "seed", "n", "logprobs", "top_logprobs",
            "response_format", "stream_options", "return_token_ids", "nonsense",
        ]),
        value in prop::sample::select(vec![
            json!(null), json!(0), json!(-1), json!(1), json!(3), json!(1e308), json!(u64::MAX), json!("auto"), json!(""),
            json!([]), json!({}), json!([[]]), json!([{}]), json!(true), json!({"type": "text"}),
            json!([{"role": "user"}]), json!([{"role": "user", "content": {"a": []}}]),
            json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]),
            json!([{"role": "assistant", "tool_calls": 7, "content": null}]),
        ]),
        stream in any::<bool>(),
    ) {
        let (policy, _) = toy::policy(Engine::saying(&["a", "a", "a"]));
        let mut body = json!({"messages": [{"role": "user", "content": "x"}], "stream": stream});
        body[field] = value;
        let (status, _) = ask(&policy, &body).unwrap();
        prop_assert!(status == 200 || status == 400);
    }
}
