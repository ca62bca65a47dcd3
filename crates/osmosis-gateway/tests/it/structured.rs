//! Replies that must have a structure: JSON by a schema, forced tool calls. The model of these tests knows nothing and
//! draws any allowed token, so only the grammar can make its replies right.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    GenerationError, GenerationRequest, SampledToken, StopReason, TokenEngine, TokenSink,
};
use osmosis_gateway::{
    EndpointAddress, EndpointEngine, EndpointEngineOptions, GatewayOptions, Secret, TokenEndpoint,
    TokenEndpointOptions, TokenPolicy,
};
use osmosis_tokens::{CallTree, ChatFormat};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::embedded::records;
use crate::fixture::{Answer, House, streamed, user};
use crate::memory_store::MemoryStore;
use crate::toy::{self, Engine, IM_END};

/// Draws any allowed token with equal probability.
#[derive(Debug)]
struct Nonsense {
    chat: Arc<ChatFormat>,
    requests: Mutex<Vec<GenerationRequest>>,
}

impl Nonsense {
    fn new() -> Self {
        Self {
            chat: Arc::new(toy::chat_format()),
            requests: Mutex::default(),
        }
    }
}

impl TokenEngine for Nonsense {
    fn context_length(&self) -> usize {
        4000
    }

    fn version(&self) -> PolicyVersion {
        PolicyVersion(3)
    }

    fn constrains(&self) -> bool {
        true
    }

    fn generate(&self, request: GenerationRequest, sink: Box<dyn TokenSink>) {
        self.requests.lock().push(request.clone());
        let chat = Arc::clone(&self.chat);
        thread::spawn(move || {
            let mut sink = sink;
            let end = talk(&chat, &request, &mut *sink);
            sink.end(end);
        });
    }
}

fn talk(
    chat: &ChatFormat,
    request: &GenerationRequest,
    sink: &mut dyn TokenSink,
) -> Result<StopReason, GenerationError> {
    let failed = |error: osmosis_tokens::TokensError| GenerationError::Constraint {
        message: error.to_string(),
    };
    let grammars = chat.grammars().map_err(failed)?;
    let constraint = request.constraint.as_ref();
    let mut matcher = constraint
        .map(|constraint| grammars.compile(constraint))
        .transpose()
        .map_err(failed)?;
    let mut draw = u64::from_le_bytes(request.key.0[..8].try_into().unwrap());
    for _ in 0..request.max_tokens {
        let allowed = match &mut matcher {
            Some(matcher) => matcher.allowed().map_err(failed)?,
            None => vec![IM_END],
        };
        draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let id = allowed[usize::try_from(draw >> 33).unwrap() % allowed.len()];
        if let Some(matcher) = &mut matcher {
            matcher.take(id).map_err(failed)?;
        }
        let token = SampledToken {
            id,
            logprob: -(allowed.len() as f32).ln(),
            version: PolicyVersion(3),
            alternatives: Vec::new(),
            allowed: matcher
                .is_some()
                .then(|| u32::try_from(allowed.len()).unwrap()),
        };
        if sink.token(token) == ControlFlow::Break(()) {
            return Ok(StopReason::Cancelled);
        }
        if request.stop_ids.contains(&id) {
            return Ok(StopReason::Stop);
        }
    }
    Ok(StopReason::Length)
}

pub(crate) async fn house() -> House {
    house_of(Arc::new(Nonsense::new())).await
}

async fn house_of(engine: Arc<dyn TokenEngine>) -> House {
    let chat = Arc::new(toy::chat_format());
    let policy = TokenPolicy::new(engine, chat, toy::options());
    House::with(policy, GatewayOptions::default(), MemoryStore::default()).await
}

async fn post(house: &House, path: &str, body: &Value) -> Answer {
    let url = format!("{}/{path}", house.gateway.url());
    let call = house.client.post(url).bearer_auth(house.session.key());
    Answer::of(call.body(body.to_string()).send().await.unwrap()).await
}

fn animal() -> Value {
    json!({
        "type": "object",
        "properties": {
            "kind": {"type": "string", "enum": ["cat", "dog"]},
            "legs": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["kind", "legs"],
        "additionalProperties": false,
    })
}

#[track_caller]
fn is_animal(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap();
    assert!(
        ["cat", "dog"].contains(&value["kind"].as_str().unwrap()),
        "{text}"
    );
    assert!(value["legs"].as_u64().unwrap() <= 9, "{text}");
    assert_eq!(value.as_object().unwrap().len(), 2, "{text}");
}

fn tools() -> Value {
    let unit = json!({"type": "object", "properties": {"unit": {"enum": ["m", "s"]}},
        "required": ["unit"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "look", "parameters": animal()}},
        {"type": "function", "function": {"name": "measure", "parameters": unit}},
    ])
}

#[tokio::test]
async fn a_reply_follows_the_schema_whole_and_streamed_and_is_recorded_with_its_grammar() {
    let house = house().await;
    for stream in [false, true] {
        let mut body = if stream {
            streamed("Which?")
        } else {
            user("Which?")
        };
        body["response_format"] = json!({"type": "json_schema",
            "json_schema": {"name": "animal", "strict": true, "schema": animal()}});
        let answer = house.send(&body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        if stream {
            is_animal(&answer.spelt());
        } else {
            let choice = &answer.json()["choices"][0];
            is_animal(choice["message"]["content"].as_str().unwrap());
            assert_eq!(choice["finish_reason"], "stop");
        }
    }
    for call in house.store.calls() {
        let record = records(&call).remove(0);
        let recorded = record.constraint.clone().unwrap();
        assert!(recorded.constraint.grammar.contains("%json"));
        for (allowed, logprob) in recorded.allowed.iter().zip(&record.logprobs) {
            assert!((logprob + (*allowed as f32).ln()).abs() < 1e-6);
        }
        let sample = osmosis_core::SampleId::main();
        let row = CallTree::rows(&sample, &[record]).unwrap().remove(0);
        let choices = recorded.allowed.iter().filter(|count| **count > 1).count();
        assert!(choices > 0 && choices < recorded.allowed.len());
        let trained = row.loss_mask.iter().filter(|trained| **trained).count();
        assert_eq!(trained, choices, "forced tokens teach nothing");
        assert_eq!(row.constrained.len(), 1);
    }
}

#[tokio::test]
async fn any_json_object_comes_where_no_schema_is_given() {
    let house = house().await;
    let mut body = user("Which?");
    body["response_format"] = json!({"type": "json_object"});
    body["max_tokens"] = json!(3000);
    let answer = house.send(&body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let text = answer.json()["choices"][0]["message"]["content"].clone();
    let text = text.as_str().unwrap();
    assert!(text.starts_with('{'), "{text}");
    if answer.json()["choices"][0]["finish_reason"] == "stop" {
        assert!(serde_json::from_str::<Value>(text).unwrap().is_object());
    }
}

#[tokio::test]
async fn tools_are_called_where_they_must_be() {
    let house = house().await;
    let named = json!({"type": "function", "function": {"name": "measure"}});
    for (choice, stream) in [
        (json!("required"), false),
        (named.clone(), false),
        (named, true),
    ] {
        let mut body = if stream {
            streamed("Which?")
        } else {
            user("Which?")
        };
        body["tools"] = tools();
        body["tool_choice"] = choice.clone();
        let answer = house.send(&body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        if stream {
            assert!(answer.text.contains("\"finish_reason\":\"tool_calls\""));
            assert!(answer.text.contains("\"name\":\"measure\""));
            continue;
        }
        let reply = answer.json();
        let said = &reply["choices"][0];
        assert_eq!(said["finish_reason"], "tool_calls");
        assert_eq!(said["message"]["content"], Value::Null);
        let calls = said["message"]["tool_calls"].as_array().unwrap();
        assert!((1..=8).contains(&calls.len()));
        if choice != "required" {
            assert_eq!(calls.len(), 1);
            assert_eq!(calls[0]["function"]["name"], "measure");
        }
        for call in calls {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            match call["function"]["name"].as_str().unwrap() {
                "look" => is_animal(arguments),
                "measure" => {
                    let value: Value = serde_json::from_str(arguments).unwrap();
                    assert!(["m", "s"].contains(&value["unit"].as_str().unwrap()));
                }
                other => panic!("{other}"),
            }
        }
    }
    let mut one = user("Which?");
    one["tools"] = tools();
    one["tool_choice"] = json!("required");
    one["parallel_tool_calls"] = json!(false);
    for _ in 0..8 {
        let reply = house.send(&one).await.json();
        let calls = reply["choices"][0]["message"]["tool_calls"].clone();
        assert_eq!(calls.as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn the_other_dialects_ask_for_structure_in_their_own_words() {
    let house = house().await;
    let schema = animal();
    let text = json!({"input": "Which?",
        "text": {"format": {"type": "json_schema", "name": "animal", "schema": schema}}});
    let answer = post(&house, "responses", &text).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let reply = answer.json();
    is_animal(reply["output"][0]["content"][0]["text"].as_str().unwrap());

    let call = json!({"input": "Which?", "tool_choice": {"type": "function", "name": "look"},
        "tools": [{"type": "function", "name": "look", "parameters": schema}]});
    let answer = post(&house, "responses", &call).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    is_animal(answer.json()["output"][0]["arguments"].as_str().unwrap());

    let messages = json!([{"role": "user", "content": "Which?"}]);
    for choice in [
        json!({"type": "any"}),
        json!({"type": "tool", "name": "look"}),
    ] {
        let call = json!({"max_tokens": 900, "messages": messages, "tool_choice": choice,
            "tools": [{"name": "look", "input_schema": schema}]});
        let answer = post(&house, "messages", &call).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let content = answer.json()["content"][0].clone();
        assert_eq!(content["type"], "tool_use");
        is_animal(&content["input"].to_string());
    }
    let format = json!({"max_tokens": 900, "messages": messages,
        "output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let answer = post(&house, "messages", &format).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    is_animal(answer.json()["content"][0]["text"].as_str().unwrap());
}

#[tokio::test]
async fn a_structure_that_cannot_be_followed_is_a_400_with_the_reason_in_every_dialect() {
    let engine = Arc::new(Nonsense::new());
    let house = house_of(Arc::clone(&engine) as _).await;
    let impossible = json!({"type": "integer", "minimum": 5, "maximum": 3});
    let unknown = json!({"type": "string", "format": "moon-phase"});
    let messages = json!([{"role": "user", "content": "Which?"}]);
    let named = |schema: &Value| json!({"type": "json_schema", "name": "n", "schema": schema});
    #[rustfmt::skip]
    let cases = [
        ("chat/completions", json!({"messages": messages, "response_format":
            {"type": "json_schema", "json_schema": {"name": "n", "schema": impossible}}}), "nsatisfiable"),
        ("chat/completions", json!({"messages": messages, "response_format":
            {"type": "json_schema", "json_schema": {"name": "n"}}}), "schema` is not an object"),
        ("chat/completions", json!({"messages": messages, "response_format": {"type": "xml"}}), "xml"),
        ("chat/completions", json!({"messages": messages, "tool_choice": "required"}), "there are no `tools`"),
        ("chat/completions", json!({"messages": messages, "tools": tools(),
            "tool_choice": {"type": "function", "function": {"name": "lok"}}}), "names `lok`"),
        ("chat/completions", json!({"messages": messages, "tool_choice": "required", "tools":
            [{"type": "function", "function": {"name": "f", "parameters": unknown}}]}), "tool `f`: "),
        ("chat/completions", json!({"messages": messages, "ignore_eos": true,
            "response_format": {"type": "json_object"}}), "`ignore_eos`"),
        ("responses", json!({"input": "Which?", "text": {"format": named(&unknown)}}), "moon-phase"),
        ("messages", json!({"max_tokens": 9, "messages": messages,
            "output_config": {"format": {"type": "json_schema", "schema": unknown}}}), "moon-phase"),
    ];
    for (path, body, reason) in cases {
        let answer = post(&house, path, &body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        let error = answer.json()["error"].clone();
        assert_eq!(error["type"], "invalid_request_error", "{body}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(reason), "{body}: {message}");
    }
    assert!(engine.requests.lock().is_empty(), "the engine was asked");
}

fn endpoint_options() -> TokenEndpointOptions {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    TokenEndpointOptions::new(listen, Secret::new("0123456789abcdef"))
}

#[tokio::test]
async fn a_grammar_reaches_an_engine_of_another_process_or_is_refused() {
    let engines: Vec<(String, Arc<dyn TokenEngine>)> = vec![
        ("nonsense".to_owned(), Arc::new(Nonsense::new())),
        ("free".to_owned(), Arc::new(Engine::saying(&["Hi"]))),
    ];
    let endpoint = TokenEndpoint::start(endpoint_options(), engines)
        .await
        .unwrap();
    let connect = |name: &str| {
        let address = EndpointAddress::fixed(endpoint.url());
        let key = Secret::new("0123456789abcdef");
        EndpointEngine::connect(address, EndpointEngineOptions::new(key, name))
    };
    let mut body = user("Which?");
    body["response_format"] = json!({"type": "json_schema",
        "json_schema": {"name": "animal", "schema": animal()}});
    let house = house_of(Arc::new(connect("nonsense").await.unwrap())).await;
    let answer = house.send(&body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    is_animal(
        answer.json()["choices"][0]["message"]["content"]
            .as_str()
            .unwrap(),
    );
    let record = records(&house.store.calls()[0]).remove(0);
    assert!(record.constraint.unwrap().allowed.contains(&1));

    let house = house_of(Arc::new(connect("free").await.unwrap())).await;
    let answer = house.send(&body).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(answer.error_message().contains("takes no grammars"));
}
