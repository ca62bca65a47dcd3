//! A token policy over engines that are asked over HTTP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use osmosis_core::generation::LogprobsOf;
use osmosis_core::{PolicyVersion, TaskClock};
use osmosis_gateway::{
    EngineKind, FaultKind, Finding, GatewayOptions, ProbeErrorKind, RemoteEngine,
    RemoteEngineOptions, Secret, ServerLogprobs, Servers as _, TokenPolicy,
};
use osmosis_tokens::{CallTree, Origin};
use serde_json::{Value, json};

use crate::embedded::{CALL_TEXT, records, with_tools};
use crate::engine_server::{CONTEXT, EngineServer, Says};
use crate::fixture::{API_KEY, House, streamed, user};
use crate::memory_store::MemoryStore;
use crate::toy::{self, IM_END, ids_of, logprob_of};

const KINDS: [EngineKind; 2] = [EngineKind::Vllm, EngineKind::Sglang];

pub(crate) async fn house(kind: EngineKind, server: &EngineServer) -> House {
    house_with(kind, server, |_| {}).await
}

async fn house_with(
    kind: EngineKind,
    server: &EngineServer,
    change: impl FnOnce(&mut RemoteEngineOptions),
) -> House {
    let mut options = RemoteEngineOptions::new(kind, server.v1(), "real-model");
    options.api_key = Some(Secret::new(API_KEY));
    options.first_retry_wait = Duration::from_millis(1);
    options.retries = 2;
    change(&mut options);
    let engine = RemoteEngine::new(options).unwrap();
    let policy = TokenPolicy::new(
        Arc::new(engine),
        Arc::new(toy::chat_format()),
        toy::options(),
    );
    House::with(policy, GatewayOptions::default(), MemoryStore::default()).await
}

/// The ids that the server was asked to go on from.
fn prompt(asked: &Value) -> Vec<u32> {
    let ids = asked.get("prompt").or(asked.get("input_ids")).unwrap();
    serde_json::from_value(ids.clone()).unwrap()
}

#[tokio::test]
async fn a_conversation_with_a_tool_keeps_earlier_ids_verbatim() {
    for (kind, incremental, version) in [
        (EngineKind::Vllm, false, 0),
        (EngineKind::Sglang, false, 7),
        (EngineKind::Sglang, true, 7),
    ] {
        let says = [Says::Text(CALL_TEXT), Says::Text("It is 42.")];
        let server = EngineServer::start_with(says, incremental).await;
        let house = house(kind, &server).await;
        let mut body = with_tools(user("6 times 7?"));
        let first = house.send(&body).await.json();
        let reply = first["choices"][0]["message"].clone();
        assert_eq!(reply["tool_calls"][0]["function"]["name"], "multiply");
        let result = json!({"role": "tool", "content": "42",
            "tool_call_id": reply["tool_calls"][0]["id"]});
        let messages = body["messages"].as_array_mut().unwrap();
        messages.extend([reply, result]);
        let second = house.send(&body).await.json();
        assert_eq!(second["choices"][0]["message"]["content"], "It is 42.");

        let asked = server.asked();
        let sampled = [ids_of(CALL_TEXT), vec![IM_END]].concat();
        let so_far = [prompt(&asked[0]), sampled.clone()].concat();
        assert!(prompt(&asked[1]).starts_with(&so_far), "{kind:?}");
        let calls = house.store.calls();
        let told: Vec<_> = calls.iter().flat_map(records).collect();
        assert_eq!(told[0].sampled, sampled);
        let logprobs: Vec<f32> = sampled.iter().map(|id| logprob_of(*id)).collect();
        assert_eq!(told[0].logprobs, logprobs);
        assert_eq!(told[0].logprobs_of, LogprobsOf::Tempered);
        assert_eq!(
            told[0].versions,
            vec![PolicyVersion(version); sampled.len()]
        );
        let kept = u32::try_from(so_far.len()).unwrap();
        assert_eq!(told[1].origin, Origin::Continues { call: 0, kept });
        let rows = CallTree::rows(&calls[0].sample_id, &told).unwrap();
        assert_eq!(rows.len(), 1);
        let end = [ids_of("It is 42."), vec![IM_END]].concat();
        assert_eq!(rows[0].ids, [prompt(&asked[1]), end].concat());
    }
}

#[tokio::test]
async fn settings_reach_the_server_and_logprobs_are_called_what_they_are() {
    for (kind, logprobs, expected) in [
        (
            EngineKind::Vllm,
            ServerLogprobs::Raw,
            LogprobsOf::Untempered,
        ),
        (
            EngineKind::Vllm,
            ServerLogprobs::Processed,
            LogprobsOf::Filtered,
        ),
        (
            EngineKind::Sglang,
            ServerLogprobs::Tempered,
            LogprobsOf::Tempered,
        ),
    ] {
        let server = EngineServer::start([Says::Text("abcdef")]).await;
        let house = house_with(kind, &server, |options| options.logprobs = logprobs).await;
        let mut body = user("hello");
        body["temperature"] = json!(0.5);
        body["top_p"] = json!(0.75);
        body["top_k"] = json!(40);
        body["max_tokens"] = json!(4);
        body["logprobs"] = json!(true);
        let answer = house.send(&body).await.json();
        assert_eq!(answer["choices"][0]["message"]["content"], "abcd");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        let entries = &answer["choices"][0]["logprobs"]["content"];
        assert_eq!(entries[0]["logprob"], json!(logprob_of(97)));
        let asked = &server.asked()[0];
        let (params, limit, ignore) = match kind {
            EngineKind::Vllm => (asked, "max_tokens", true),
            EngineKind::Sglang => (&asked["sampling_params"], "max_new_tokens", false),
        };
        for (name, value) in [
            ("temperature", json!(0.5)),
            ("top_p", json!(0.75)),
            ("top_k", json!(40)),
            (limit, json!(4)),
            ("stop_token_ids", json!([IM_END])),
            ("ignore_eos", json!(ignore)),
            ("repetition_penalty", json!(1.0)),
        ] {
            assert_eq!(params[name], value, "{kind:?} {name}");
        }
        let record = records(&house.store.calls()[0]).remove(0);
        assert_eq!(record.logprobs_of, expected);
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_leaves_what_came_and_is_not_tried_again() {
    for kind in KINDS {
        let server = EngineServer::start([Says::BreaksAfter("abc")]).await;
        let house = house(kind, &server).await;
        let answer = house.send(&streamed("hello")).await;
        assert!(answer.aborted, "{}", answer.text);
        assert!(
            answer.text.contains("upstream_cut_short"),
            "{}",
            answer.text
        );
        assert_eq!(server.asked().len(), 1);
        let calls = house.store.calls();
        let record = records(&calls[0]).remove(0);
        assert!(!record.complete);
        assert!(ids_of("abc").starts_with(&record.sampled) && !record.sampled.is_empty());
        let fault = house.session.close().await.last_fault.unwrap();
        assert_eq!(fault.kind, FaultKind::CutShort);
    }
}

#[tokio::test]
async fn passing_troubles_are_tried_again_before_the_first_token() {
    for kind in KINDS {
        for body in [user("hello"), streamed("hello")] {
            let says = [
                Says::Status(429, Some("0")),
                Says::Status(500, None),
                Says::Text("hi"),
            ];
            let server = EngineServer::start(says).await;
            let house = house(kind, &server).await;
            let answer = house.send(&body).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            assert_eq!(server.asked().len(), 3);
            assert_eq!(records(&house.store.calls()[0])[0].sampled.len(), 3);
            assert_eq!(house.session.close().await.last_fault, None);
        }
    }
}

#[tokio::test]
async fn every_fault_has_its_kind_and_status() {
    let overloaded = || vec![Says::Status(429, Some("0")); 3];
    for kind in KINDS {
        #[rustfmt::skip]
        let cases = [
            (overloaded(), FaultKind::Overloaded, 429, "(tried 3 times)", 3),
            (vec![Says::Status(503, None); 3], FaultKind::ServerError, 502, "not now", 3),
            (vec![Says::Status(401, None)], FaultKind::Misconfigured, 502, "status 401", 1),
            (vec![Says::Status(400, None)], FaultKind::Misconfigured, 502, "status 400", 1),
            (vec![Says::WithoutIds("hi")], FaultKind::Garbage, 502, "without `", 1),
            (vec![Says::Html], FaultKind::Garbage, 502, "`<html>hello</html>`", 1),
            (vec![Says::Error; 3], FaultKind::ServerError, 502, "out of memory", 3),
            (vec![Says::Silence], FaultKind::TimedOut, 504, "sent nothing for 200ms", 1),
        ];
        for (says, fault_kind, status, part, tries) in cases {
            for body in [user("hello"), streamed("hello")] {
                let server = EngineServer::start(says.clone()).await;
                let house = house_with(kind, &server, |options| {
                    options.first_byte_limit = Duration::from_millis(200);
                })
                .await;
                let answer = house.send(&body).await;
                assert_eq!(answer.status, status, "{kind:?} {}", answer.text);
                assert!(answer.error_message().contains(part), "{}", answer.text);
                assert_eq!(server.asked().len(), tries, "{part}");
                let fault = house.session.close().await.last_fault.unwrap();
                assert_eq!(fault.kind, fault_kind, "{part}");
            }
        }
    }
}

#[tokio::test]
async fn a_silent_server_is_given_up_before_the_deadline_and_retries_are_lost_time() {
    for kind in KINDS {
        let server = EngineServer::start([Says::Silence]).await;
        let house = house(kind, &server).await;
        let clock = Arc::new(TaskClock::new(Duration::from_secs(1)));
        clock.start(Instant::now());
        house.session.keep_time(Arc::clone(&clock));
        let answer = house.send(&user("hello")).await;
        assert_eq!(answer.status, 504, "{}", answer.text);
        let message = answer.error_message();
        assert!(message.contains("deadline is near"), "{message}");
        assert!(message.contains("had sent no answer after"), "{message}");
        assert!(clock.lost() > Duration::from_millis(100), "{clock:?}");
        let fault = house.session.close().await.last_fault.unwrap();
        assert_eq!(fault.kind, FaultKind::TimedOut);

        let says = [Says::Status(429, Some("0.2")), Says::Text("hi")];
        let server = EngineServer::start(says).await;
        let house = self::house(kind, &server).await;
        let clock = Arc::new(TaskClock::new(Duration::from_mins(1)));
        house.session.keep_time(Arc::clone(&clock));
        assert_eq!(house.send(&user("hello")).await.status, 200);
        assert!(clock.lost() >= Duration::from_millis(200), "{clock:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_unreachable() {
    let server = EngineServer::start([]).await;
    let address = server.v1();
    drop(server);
    let mut options = RemoteEngineOptions::new(EngineKind::Vllm, address, "m");
    options.retries = 1;
    options.first_retry_wait = Duration::from_millis(1);
    let engine = Arc::new(RemoteEngine::new(options).unwrap());
    let policy = TokenPolicy::new(engine, Arc::new(toy::chat_format()), toy::options());
    let house = House::with(policy, GatewayOptions::default(), MemoryStore::default()).await;
    let answer = house.send(&user("hello")).await;
    assert_eq!(answer.status, 502);
    assert!(answer.error_message().contains("vllm cannot be reached"));
}

#[tokio::test]
async fn a_probe_tells_a_wrong_key_from_a_server_that_is_down() {
    for kind in KINDS {
        let probed = |address: String| async move {
            let mut options = RemoteEngineOptions::new(kind, address, "real-model");
            options.api_key = Some(Secret::new(API_KEY));
            options.retries = 0;
            let engine = Arc::new(RemoteEngine::new(options).unwrap());
            let policy = TokenPolicy::new(engine, Arc::new(toy::chat_format()), toy::options());
            policy.probe().await.remove(0).finding
        };
        let server = EngineServer::start([Says::Text("hi"), Says::Status(401, None)]).await;
        assert_eq!(probed(server.v1()).await, Finding::Works);
        assert_eq!(server.asked().len(), 1);
        let Finding::Broken(error) = probed(server.v1()).await else {
            panic!("a key was not refused");
        };
        assert_eq!(error.kind(), ProbeErrorKind::Key, "{error}");
        let address = server.v1();
        drop(server);
        let Finding::Broken(error) = probed(address).await else {
            panic!("it is down");
        };
        assert_eq!(error.kind(), ProbeErrorKind::Address, "{error}");
    }
}

#[tokio::test]
async fn the_servers_context_limits_prompt_and_answer() {
    for kind in KINDS {
        let server = EngineServer::start([Says::Text("hi")]).await;
        let house = house(kind, &server).await;
        let long = house.send(&user(&"x".repeat(CONTEXT))).await;
        assert_eq!(long.status, 400);
        assert_eq!(long.json()["error"]["code"], "context_length_exceeded");
        assert!(server.asked().is_empty());
        house.send(&user("hello")).await;
        let asked = &server.asked()[0];
        let limit = match kind {
            EngineKind::Vllm => &asked["max_tokens"],
            EngineKind::Sglang => &asked["sampling_params"]["max_new_tokens"],
        };
        assert_eq!(*limit, json!(CONTEXT - prompt(asked).len()));
    }
}

#[tokio::test]
async fn a_caller_that_hangs_up_ends_the_generation_there() {
    for kind in KINDS {
        let server = EngineServer::start([Says::Silence]).await;
        let house = house(kind, &server).await;
        let calling = house.post(user("hello").to_string()).send();
        tokio::select! {
            _ = calling => panic!("there is no answer"),
            () = server.wait_for_arrival() => {}
        }
        server.wait_for_hang_up().await;
        house.session.close().await;
        let call = &house.store.calls()[0];
        assert!(call.error.as_deref().unwrap().starts_with("caller_hung_up"));
        assert!(!records(call)[0].complete);
    }
}
