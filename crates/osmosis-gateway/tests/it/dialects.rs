//! Agents that speak other dialects than the policy: what they get, and what is recorded of it.

use osmosis_gateway::{FaultKind, GatewayOptions, Sampling};
use osmosis_testkit::model_server::{Behaviour, Gate};
use osmosis_tokens::Origin;
use serde_json::{Value, json};

use crate::embedded::{CALL_TEXT, house, records};
use crate::fixture::{Answer, House, script_policy};
use crate::memory_store::MemoryStore;
use crate::toy::Engine;

/// A call in another dialect with the session's key, as that dialect's clients send it.
async fn call(house: &House, path: &str, body: &Value) -> Answer {
    Answer::of(send(house, path, body.to_string()).await).await
}

async fn send(house: &House, path: &str, body: String) -> reqwest::Response {
    let request = house
        .client
        .post(format!("{}/{path}", house.gateway.url()))
        .header("content-type", "application/json")
        .body(body);
    let request = if path.ends_with("messages") {
        request
            .header("x-api-key", house.session.key())
            .header("anthropic-version", "2023-06-01")
    } else {
        request.bearer_auth(house.session.key())
    };
    request.send().await.unwrap()
}

/// Names and data of the events of a stream.
fn events(text: &str) -> Vec<(String, Value)> {
    text.split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once('\n').unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            let name = name.strip_prefix("event: ").unwrap();
            assert_eq!(data["type"], name);
            (name.to_owned(), data)
        })
        .collect()
}

const QUESTION: &str = "What is 6 times 7?";

fn response_tools() -> Value {
    json!([{"type": "function", "name": "multiply", "parameters": {"type": "object"}}])
}

fn message_tools() -> Value {
    json!([{"name": "multiply", "input_schema": {"type": "object"}}])
}

fn message(content: &str) -> Value {
    json!({"model": "claude-x", "max_tokens": 64, "messages": [{"role": "user", "content": content}]})
}

#[tokio::test]
async fn a_response_is_made_of_a_chat_completion_and_recorded_as_what_the_caller_got() {
    let (house, server) = House::upstream(Behaviour::Answers).await;
    let body = json!({"model": "gpt-x", "input": QUESTION, "instructions": "Be brief.",
        "max_output_tokens": 50, "top_p": 0.5});
    let answer = call(&house, "responses", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    insta::assert_json_snapshot!(answer.json());
    let sent = &server.requests()[0].body;
    assert_eq!(
        *sent,
        json!({"model": "real-model", "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}],
            "max_tokens": 50, "top_p": 0.5, "temperature": 1.0})
    );
    let recorded = &house.store.calls()[0];
    assert_eq!(
        (recorded.dialect.as_str(), recorded.model.as_str()),
        ("responses", "gpt-x")
    );
    assert_eq!(recorded.request, body.to_string().as_bytes());
    assert_eq!(recorded.response, answer.text.as_bytes());
    assert_eq!(
        (recorded.prompt_tokens, recorded.completion_tokens),
        (Some(7), Some(5))
    );
}

#[tokio::test]
async fn a_response_streams_its_events_in_order() {
    let (house, _server) = House::upstream(Behaviour::Answers).await;
    let body = json!({"model": "m", "input": QUESTION, "tools": response_tools(), "stream": true});
    let answer = call(&house, "responses", &body).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    insta::assert_snapshot!(answer.text);
    let names: Vec<String> = events(&answer.text)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names.first().unwrap(), "response.created");
    assert_eq!(names.last().unwrap(), "response.completed");
    let recorded = &house.store.calls()[0];
    assert_eq!(recorded.response, answer.text.as_bytes());
    assert_eq!(recorded.completion_tokens, Some(5));
    assert!(recorded.streamed);
}

#[tokio::test]
async fn a_message_is_made_of_a_chat_completion_and_recorded_as_what_the_caller_got() {
    let (house, server) = House::upstream(Behaviour::Answers).await;
    let mut body = message(QUESTION);
    body["tools"] = message_tools();
    let answer = call(&house, "messages", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    insta::assert_json_snapshot!(answer.json());
    assert_eq!(server.requests()[0].body["model"], "real-model");
    assert_eq!(server.requests()[0].body["temperature"], 1.0);
    let recorded = &house.store.calls()[0];
    assert_eq!(
        (recorded.dialect.as_str(), recorded.model.as_str()),
        ("messages", "claude-x")
    );
    assert_eq!(recorded.request, body.to_string().as_bytes());
    assert_eq!(recorded.response, answer.text.as_bytes());
    assert_eq!(
        (recorded.prompt_tokens, recorded.completion_tokens),
        (Some(5), Some(5))
    );
}

#[tokio::test]
async fn a_message_streams_its_events_in_order() {
    let (house, _server) = House::upstream(Behaviour::Answers).await;
    let mut body = message(QUESTION);
    body["stream"] = json!(true);
    let answer = call(&house, "messages", &body).await;
    insta::assert_snapshot!(answer.text);
    let recorded = &house.store.calls()[0];
    assert_eq!(recorded.response, answer.text.as_bytes());
    assert_eq!(recorded.completion_tokens, Some(5));
}

#[tokio::test]
async fn the_first_event_of_a_translated_stream_passes_at_once() {
    for (path, body) in [
        ("responses", json!({"input": "hi", "stream": true})),
        (
            "messages",
            json!({"messages": [{"role": "user", "content": "hi"}], "stream": true}),
        ),
    ] {
        let gate = Gate::default();
        let (house, _server) = House::upstream(Behaviour::HeldAfterFirstEvent(gate.clone())).await;
        let mut response = send(&house, path, body.to_string()).await;
        // The upstream waits for the gate, so this can only be what has passed already.
        let first = response.chunk().await.unwrap().unwrap();
        assert!(
            first.starts_with(b"event: ") && first.ends_with(b"\n\n"),
            "{path}"
        );
        gate.open();
        let rest = Answer::of(response).await;
        assert!(!rest.aborted);
        let recorded = &house.store.wait_for(1).await[0];
        assert_eq!(
            recorded.response,
            [&first[..], rest.text.as_bytes()].concat()
        );
    }
}

#[tokio::test]
async fn what_goes_wrong_is_said_in_the_callers_dialect() {
    for (behaviour, status, kind) in [
        (
            Behaviour::Refuses { status: 400 },
            400,
            "invalid_request_error",
        ),
        (
            Behaviour::Refuses { status: 401 },
            401,
            "authentication_error",
        ),
        (Behaviour::Refuses { status: 429 }, 429, "rate_limit_error"),
        (Behaviour::Refuses { status: 503 }, 503, "overloaded_error"),
        (Behaviour::Garbage("<html>"), 502, "api_error"),
        (
            Behaviour::Garbage("{\"choices\":[]} trailing"),
            502,
            "api_error",
        ),
    ] {
        let (house, _server) =
            House::upstream_with(behaviour.clone(), |options| options.retries = 0).await;
        let answer = call(&house, "messages", &message("hi")).await;
        assert_eq!(answer.status, status, "{behaviour:?}: {}", answer.text);
        let said = answer.json();
        assert_eq!(
            (&said["type"], &said["error"]["type"]),
            (&json!("error"), &json!(kind))
        );
        assert!(!said["error"]["message"].as_str().unwrap().is_empty());
        assert_eq!(house.store.calls()[0].response, answer.text.as_bytes());
        let answer = call(&house, "responses", &json!({"input": "hi"})).await;
        assert_eq!(answer.status, status);
        answer.error_message();
    }
}

#[tokio::test]
async fn a_stream_that_breaks_tells_the_caller_in_its_dialect() {
    for (behaviour, kind) in [
        (Behaviour::CutsShort, FaultKind::CutShort),
        (Behaviour::EndsEarly, FaultKind::CutShort),
        (Behaviour::ReportsWithinStream, FaultKind::ServerError),
    ] {
        let (house, _server) = House::upstream(behaviour.clone()).await;
        let body = json!({"input": "hi", "stream": true});
        let answer = call(&house, "responses", &body).await;
        let told = events(&answer.text);
        let (name, error) = told.last().unwrap();
        assert_eq!(name, "error", "{behaviour:?}");
        assert_eq!(error["sequence_number"], told.len() - 1);
        assert_eq!(error["code"], kind.as_str());

        let mut body = message("hi");
        body["stream"] = json!(true);
        let answer = call(&house, "messages", &body).await;
        let (name, error) = events(&answer.text).pop().unwrap();
        assert_eq!(name, "error");
        assert_eq!(error["error"]["type"], "api_error");
        let recorded = &house.store.calls()[1];
        assert_eq!(recorded.response, answer.text.as_bytes());
        assert!(
            recorded
                .error
                .as_deref()
                .unwrap()
                .starts_with(kind.as_str())
        );
        assert_eq!(house.session.close().await.last_fault.unwrap().kind, kind);
    }
}

#[tokio::test]
async fn bodies_that_are_no_requests_are_refused_in_the_callers_dialect() {
    let house = House::scripted("[[reply]]\ntext = 'Hello.'\n").await;
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(9999), "]".repeat(9999));
    let bodies: [&[u8]; 9] = [
        b"",
        b"[]",
        b"{",
        b"{\"messages\":7,\"input\":7}",
        b"{\"messages\":[\"\xff\"]}",
        b"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":7}]}],\"input\":[{\"role\":7}]}",
        b"{\"input\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"temperature\":1e999}",
        b"{\"input\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":\"yes\"}",
        deep.as_bytes(),
    ];
    for body in bodies {
        for path in ["responses", "messages", "completions"] {
            let url = format!("{}/{path}", house.gateway.url());
            let request = house
                .client
                .post(url)
                .bearer_auth(house.session.key())
                .body(body.to_vec());
            let answer = Answer::of(request.send().await.unwrap()).await;
            assert_eq!(answer.status, 400, "{path} {}", answer.text);
            match path {
                "messages" => assert_eq!(answer.json()["error"]["type"], "invalid_request_error"),
                _ => assert!(!answer.error_message().is_empty()),
            }
        }
    }
}

#[tokio::test]
async fn what_is_not_served_is_refused_by_the_name_of_its_field() {
    let house = House::scripted("[[reply]]\ntext = 'Hello.'\n").await;
    let body = json!({"input": "hi", "previous_response_id": "resp_1"});
    let answer = call(&house, "responses", &body).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["param"], "previous_response_id");
    assert_eq!(answer.json()["error"]["code"], "unsupported_parameter");
    let body = json!({"prompt": "Once upon a time"});
    let answer = call(&house, "completions", &body).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], "unsupported_endpoint");
    let recorded = house.store.calls();
    assert_eq!(recorded[1].dialect, "completions");
    assert!(
        recorded[1]
            .error
            .as_deref()
            .unwrap()
            .starts_with("unsupported_endpoint: ")
    );
    let answer = call(&house, "messages/count_tokens", &message("hi")).await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["error"]["type"], "not_found_error");
    assert_eq!(house.store.calls().len(), 2);
}

#[tokio::test]
async fn identity_is_the_same_in_every_dialect() {
    let house = House::scripted("[[reply]]\ntext = 'Hello.'\n").await;
    let base = format!("{}/rollouts/r1-0/samples/solver", house.gateway.url());
    for url in [format!("{base}/messages"), format!("{base}/v1/messages")] {
        let request = house
            .client
            .post(url)
            .header("x-api-key", house.session.key());
        let answer = Answer::of(
            request
                .body(message("hi").to_string())
                .send()
                .await
                .unwrap(),
        )
        .await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let url = format!("{base}/responses");
    let request = house.client.post(url).bearer_auth(house.session.key());
    let answer = Answer::of(request.body("{\"input\":\"hi\"}").send().await.unwrap()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let recorded = house.store.calls();
    assert!(
        recorded
            .iter()
            .all(|call| call.sample_id.as_str() == "solver")
    );

    for (path, header, status, kind) in [
        (
            "messages",
            ("x-rollout-id", "r1-1"),
            403,
            "permission_error",
        ),
        (
            "rollouts/r2-0/messages",
            ("x-sample-id", "a"),
            403,
            "permission_error",
        ),
        (
            "messages",
            ("x-api-key", "wrong"),
            401,
            "authentication_error",
        ),
    ] {
        let url = format!("{}/{path}", house.gateway.url());
        let mut request = house.client.post(url).header(header.0, header.1);
        if header.0 != "x-api-key" {
            request = request.header("x-api-key", house.session.key());
        }
        let answer = Answer::of(
            request
                .body(message("hi").to_string())
                .send()
                .await
                .unwrap(),
        )
        .await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.json()["error"]["type"], kind);
    }
    assert_eq!(house.store.calls().len(), 3);
}

#[tokio::test]
async fn sampling_wins_in_training_in_every_dialect() {
    let (house, server) = House::upstream(Behaviour::Answers).await;
    drop(house);
    let mut options = osmosis_gateway::UpstreamOptions::new(server.url(), "real-model");
    options.retries = 0;
    let policy = osmosis_gateway::UpstreamPolicy::new(options).unwrap();
    let options = GatewayOptions {
        sampling: Sampling {
            temperature: Some(0.8),
            top_p: None,
            overrides: true,
        },
        ..GatewayOptions::default()
    };
    let house = House::with(policy, options, MemoryStore::default()).await;
    let mut body = message("hi");
    body["temperature"] = json!(0.1);
    assert_eq!(call(&house, "messages", &body).await.status, 200);
    let body = json!({"input": "hi", "temperature": 0.1});
    assert_eq!(call(&house, "responses", &body).await.status, 200);
    for request in server.requests() {
        assert_eq!(request.body["temperature"], 0.8);
    }
}

#[tokio::test]
async fn one_rollout_is_decoded_greedily_and_others_as_the_run_says() {
    let (house, server) = House::upstream(Behaviour::Answers).await;
    let mut body = message("hi");
    body["temperature"] = json!(0.9);
    body["top_p"] = json!(0.5);
    assert_eq!(call(&house, "messages", &body).await.status, 200);
    house.session.decode_greedily();
    assert_eq!(call(&house, "messages", &body).await.status, 200);
    let responses = json!({"input": "hi", "temperature": 0.1});
    assert_eq!(call(&house, "responses", &responses).await.status, 200);
    let asked: Vec<_> = server
        .requests()
        .iter()
        .map(|request| {
            (
                request.body["temperature"].clone(),
                request.body["top_p"].clone(),
            )
        })
        .collect();
    let greedy = (json!(0.0), json!(1.0));
    assert_eq!(asked, [(json!(0.9), json!(0.5)), greedy.clone(), greedy]);
}

#[tokio::test]
async fn a_caller_that_hangs_up_is_recorded_with_what_it_got() {
    let (house, server) = House::upstream(Behaviour::HeldAfterFirstEvent(Gate::default())).await;
    let body = json!({"input": "hi", "stream": true});
    let mut response = send(&house, "responses", body.to_string()).await;
    let first = response.chunk().await.unwrap().unwrap();
    drop(response);
    let recorded = &house.store.wait_for(1).await[0];
    assert!(
        recorded
            .error
            .as_deref()
            .unwrap()
            .starts_with("caller_hung_up: ")
    );
    assert_eq!(recorded.response, first);
    server.wait_for_hang_ups(1).await;
}

#[tokio::test]
async fn a_conversation_in_another_dialect_goes_on_with_the_ids_that_were_sampled() {
    let (house, _) = house(Engine::saying(&[CALL_TEXT, "It is 42."])).await;
    let mut input = vec![json!({"role": "user", "content": QUESTION})];
    let body = json!({"input": input, "tools": response_tools()});
    let first = call(&house, "responses", &body).await.json();
    let output = first["output"].as_array().unwrap();
    assert_eq!(output[0]["type"], "function_call", "{first}");
    input.extend(output.iter().cloned());
    input.push(
        json!({"type": "function_call_output", "call_id": output[0]["call_id"], "output": "42"}),
    );
    let body = json!({"input": input, "tools": response_tools(), "stream": true});
    let second = call(&house, "responses", &body).await;
    let (_, last) = events(&second.text).pop().unwrap();
    assert_eq!(
        last["response"]["output"][0]["content"][0]["text"],
        "It is 42."
    );
    let recorded = house.store.calls();
    assert!(matches!(
        records(&recorded[1])[0].origin,
        Origin::Continues { call: 0, .. }
    ));
    assert_eq!(recorded[1].completion_tokens, Some(10));

    let (house, _) = self::house(Engine::saying(&[CALL_TEXT, "It is 42."])).await;
    let mut body = message(QUESTION);
    body["tools"] = message_tools();
    let first = call(&house, "messages", &body).await.json();
    assert_eq!(first["stop_reason"], "tool_use", "{first}");
    let result =
        json!([{"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": "42"}]);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": first["content"]}));
    messages.push(json!({"role": "user", "content": result}));
    let second = call(&house, "messages", &body).await.json();
    assert_eq!(second["content"][0]["text"], "It is 42.");
    let recorded = house.store.calls();
    assert!(matches!(
        records(&recorded[1])[0].origin,
        Origin::Continues { call: 0, .. }
    ));
}

#[tokio::test]
async fn an_answer_without_a_word_is_still_an_answer() {
    let policy = script_policy("[[reply]]\ntext = ''\n");
    let house = House::with(policy, GatewayOptions::default(), MemoryStore::default()).await;
    for stream in [false, true] {
        let body = json!({"input": "hi", "stream": stream});
        let answer = call(&house, "responses", &body).await;
        let response = if stream {
            events(&answer.text).pop().unwrap().1["response"].clone()
        } else {
            answer.json()
        };
        assert_eq!(response["output"][0]["content"][0]["text"], "");
    }
    let answer = call(&house, "messages", &message("hi")).await.json();
    assert_eq!(answer["content"], json!([{"type": "text", "text": ""}]));
}

#[tokio::test]
async fn a_translated_call_names_the_limit_as_the_model_wants_it_and_the_next_one_knows() {
    for (path, body) in [
        (
            "responses",
            json!({"model": "m", "input": QUESTION, "max_output_tokens": 50}),
        ),
        ("messages", message(QUESTION)),
    ] {
        let (house, server) = House::upstream(Behaviour::Reasons).await;
        let first = call(&house, path, &body).await;
        assert_eq!(first.status, 200, "{}", first.text);
        let second = call(&house, path, &body).await;
        assert_eq!(second.status, 200, "{}", second.text);
        let limits: Vec<(bool, bool)> = server
            .requests()
            .iter()
            .map(|request| {
                let has = |name| request.body.get(name).is_some();
                (has("max_tokens"), has("max_completion_tokens"))
            })
            .collect();
        assert_eq!(
            limits,
            [(true, false), (false, true), (false, true)],
            "{path}"
        );
        let recorded = house.store.calls();
        assert_eq!(recorded.len(), 2, "a call is recorded once");
        for call in recorded {
            assert_eq!((call.status, call.error), (200, None));
            assert_eq!(call.cached_tokens, Some(2));
            assert_eq!(call.reasoning_tokens, Some(3));
        }
    }
}

#[tokio::test]
async fn a_chat_call_keeps_the_name_its_caller_gave_the_limit() {
    let (house, server) = House::upstream(Behaviour::Reasons).await;
    let body =
        json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    let answer = call(&house, "chat/completions", &body).await;
    assert_eq!(answer.status, 400);
    assert!(
        answer.text.contains("max_completion_tokens"),
        "{}",
        answer.text
    );
    assert_eq!(server.requests().len(), 1);
}
