//! The embedded policy as agents see it: what can be asked, and what is answered.

use std::sync::{Arc, mpsc};

use osmosis_core::generation::StopReason;
use osmosis_gateway::{GatewayOptions, Sampling, TokenPolicyOptions};
use osmosis_store::NewCall;
use osmosis_tokens::TokenRecord;
use serde_json::{Value, json};

use crate::fixture::{Answer, House, streamed, user};
use crate::memory_store::MemoryStore;
use crate::toy::{self, Engine, IM_END, Line, ids_of};

pub(crate) const CALL_TEXT: &str =
    "<tool_call>\n{\"name\": \"multiply\", \"arguments\": {\"a\": 6, \"b\": 7}}\n</tool_call>";

pub(crate) async fn house(engine: Engine) -> (House, Arc<toy::Log>) {
    house_with(engine, toy::options(), GatewayOptions::default()).await
}

pub(crate) async fn house_with(
    engine: Engine,
    policy: TokenPolicyOptions,
    options: GatewayOptions,
) -> (House, Arc<toy::Log>) {
    let (policy, log) = toy::policy_with(engine, policy);
    (
        House::with(policy, options, MemoryStore::default()).await,
        log,
    )
}

pub(crate) fn with_tools(mut body: Value) -> Value {
    body["tools"] =
        json!([{"type": "function", "function": {"name": "multiply", "parameters": {}}}]);
    body
}

pub(crate) fn records(call: &NewCall) -> Vec<TokenRecord> {
    call.tokens
        .iter()
        .map(|record| TokenRecord::decode(record).unwrap())
        .collect()
}

/// A reply without the time it was made.
fn timeless(answer: &Answer) -> Value {
    let mut reply = answer.json();
    assert!(reply["created"].as_u64().unwrap() > 1_700_000_000);
    reply["created"] = json!(0);
    reply
}

#[tokio::test]
async fn an_answer_has_the_shape_of_the_chat_completions_api() {
    let (house, log) = house(Engine::saying(&["Hi ✓"])).await;
    let answer = house.send(&user("hello")).await;
    assert_eq!(answer.status, 200);
    insta::assert_json_snapshot!(timeless(&answer));
    let prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
    let requests = log.requests.lock();
    assert_eq!(requests[0].prompt, ids_of(prompt));
    assert_eq!(requests[0].stop_ids, [IM_END]);
    let left = 2000 - requests[0].prompt.len();
    assert_eq!(requests[0].max_tokens, left);
}

#[tokio::test]
async fn settings_reach_the_engine() {
    let (house, log) = house(Engine::saying(&["a"])).await;
    let mut body = user("hello");
    body["temperature"] = json!(0.5);
    body["top_p"] = json!(0.9);
    body["top_k"] = json!(40);
    body["max_tokens"] = json!(9);
    body["chat_template_kwargs"] = json!({"mood": "gloomy: "});
    body["frequency_penalty"] = json!(0.1);
    body["ignore_eos"] = json!(true);
    house.send(&body).await;
    let request = log.requests.lock()[0].clone();
    assert_eq!(request.stop_ids, [0_u32; 0]);
    assert!((request.temperature - 0.5).abs() < 1e-9 && (request.top_p - 0.9).abs() < 1e-6);
    assert_eq!((request.top_k, request.max_tokens), (40, 9));
    assert!(request.prompt.ends_with(&ids_of("assistant\ngloomy: ")));
    let record = records(&house.store.calls()[0]).remove(0);
    assert!((record.temperature - 0.5).abs() < 1e-9);
}

#[tokio::test]
async fn a_stop_text_ends_the_answer_before_it() {
    for (stop, said, cut_at) in [
        (json!("END"), "Well, END of it", "Well, "),
        (json!(["nothing", "it is"]), "so it is done", "so "),
        (json!("✓"), "yes ✓ no", "yes "),
        (json!(["ab", "abc", ""]), "xabcd", "x"),
        (json!("never"), "plain", "plain"),
    ] {
        for stream in [false, true] {
            let (house, log) = house(Engine::saying(&[said])).await;
            let mut body = if stream {
                streamed("hello")
            } else {
                user("hello")
            };
            body["stop"] = stop.clone();
            let answer = house.send(&body).await;
            let text = if stream {
                answer.spelt()
            } else {
                answer.json()["choices"][0]["message"]["content"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            };
            assert_eq!(text, cut_at, "{said}");
            assert!(answer.text.contains("\"finish_reason\":\"stop\""));
            let record = records(&house.store.calls()[0]).remove(0);
            let whole = [ids_of(said), vec![IM_END]].concat();
            assert!(whole.starts_with(&record.sampled) && record.complete);
            if said != "plain" {
                // No token is sampled beyond the one that completes the stop.
                assert!(record.sampled.len() < whole.len() - 1);
                // The engine may tell its thread's end a moment after the answer.
                while log.ended.lock().is_empty() {
                    tokio::task::yield_now().await;
                }
                assert_eq!(
                    *log.ended.lock(),
                    [(record.sampled.len(), StopReason::Cancelled)]
                );
            }
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_cut() {
    let limited = TokenPolicyOptions {
        max_response_tokens: Some(4),
        ..toy::options()
    };
    let (house, _) = house_with(
        Engine::saying(&["abcdefg"]),
        limited,
        GatewayOptions::default(),
    )
    .await;
    let mut body = user("hello");
    body["max_completion_tokens"] = json!(1000);
    let answer = house.send(&body).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "abcd");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert!(records(&house.store.calls()[0])[0].complete);
}

#[tokio::test]
async fn logprobs_and_token_ids_come_when_asked_for() {
    for stream in [false, true] {
        let (house, log) = house(Engine::saying(&["Hé"])).await;
        let mut body = if stream {
            streamed("hello")
        } else {
            user("hello")
        };
        body["logprobs"] = json!(true);
        body["top_logprobs"] = json!(1);
        body["return_token_ids"] = json!(true);
        let answer = house.send(&body).await;
        let replies: Vec<Value> = if stream {
            let events = answer.events();
            events
                .iter()
                .filter_map(|event| serde_json::from_str(event).ok())
                .collect()
        } else {
            vec![answer.json()]
        };
        let choices: Vec<&Value> = replies
            .iter()
            .flat_map(|reply| reply["choices"].as_array().unwrap())
            .collect();
        let ids: Vec<&Value> = choices
            .iter()
            .flat_map(|c| c["token_ids"].as_array().into_iter().flatten())
            .collect();
        assert_eq!(ids, [72, 0xc3, 0xa9, 257]);
        let entries: Vec<&Value> = choices
            .iter()
            .flat_map(|c| c["logprobs"]["content"].as_array().into_iter().flatten())
            .collect();
        assert_eq!(entries.len(), 4);
        assert_eq!(
            entries[0],
            &json!({"bytes": [72], "token": "H", "logprob": -0.140_625,
                "top_logprobs": [{"bytes": [97], "token": "a", "logprob": -9999.0}]})
        );
        assert_eq!(
            replies[0]["prompt_token_ids"],
            json!(log.requests.lock()[0].prompt)
        );
    }
}

#[tokio::test]
async fn tokens_stream_as_they_come_and_only_a_tag_is_held_back() {
    let (sender, receiver) = mpsc::channel();
    let (house, _) = house(Engine::new([Line::Sent(receiver)])).await;
    let body = with_tools(streamed("6 times 7?"));
    let say = |text: &str| {
        for byte in text.bytes() {
            sender.send(u32::from(byte)).unwrap();
        }
    };
    say("Let me see.");
    let mut response = house.post(body.to_string()).send().await.unwrap();
    let mut came = String::new();
    let mut until = async |text: &str, came: &mut String| {
        while !came.contains(text) {
            let chunk = response.chunk().await.unwrap().unwrap();
            came.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    };
    // One delta or several, depending on how fast tokens come: only the last letter is surely at the end of one.
    until(".\"}", &mut came).await;
    assert!(house.store.calls().is_empty());
    say(" <tool");
    say("_kit>");
    until(">\"}", &mut came).await;
    say(CALL_TEXT);
    until("\"arguments\":\"{\\\"a\\\": 6, \\\"b\\\": 7}\"", &mut came).await;
    assert!(house.store.calls().is_empty());
    sender.send(IM_END).unwrap();
    until("[DONE]", &mut came).await;
    assert!(came.contains("\"finish_reason\":\"tool_calls\""));
    assert!(!came.contains("<tool_call>"));
    assert!(records(&house.store.calls()[0])[0].complete);
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_with_the_reason() {
    #[rustfmt::skip]
    let cases: &[(&str, Value, &str)] = &[
        ("tool_choice", json!("required"), "a tool call can't be forced here"),
        ("tool_choice", json!({"type": "function", "function": {"name": "multiply"}}), "a tool call can't be forced here"),
        ("response_format", json!({"type": "json_object"}), "replies can't be held to a format here"),
        ("messages", json!([]), "`messages` is empty"),
        ("messages", json!([{"role": "alien", "content": "x"}]), "no role for an alien"),
        ("messages", json!([{"role": "user", "content": [{"type": "image_url"}]}]), "image_url"),
        ("tools", json!(7), "`tools` is not an array"),
        ("tools", json!([7]), "`tools[0]` is not an object"),
        ("temperature", json!(-1), "`temperature` is -1"),
        ("temperature", json!("hot"), "`temperature` is not a number"),
        ("top_p", json!(0), "`top_p` is 0"),
        ("top_k", json!(-2), "`top_k` is -2"),
        ("max_tokens", json!(0), "`max_tokens` is 0"),
        ("n", json!(0), "`n` is 0"),
        ("n", json!(129), "`n` is 129"),
        ("stop", json!([1]), "`stop` must be"),
        ("seed", json!(1.5), "`seed` is 1.5"),
        ("logprobs", json!(5), "`logprobs` is neither"),
        ("top_logprobs", json!(3), "needs `logprobs`"),
        ("chat_template_kwargs", json!([]), "`chat_template_kwargs` is not an object"),
    ];
    let (house, _) = house(Engine::saying(&[])).await;
    for (field, value, expected) in cases {
        let mut body = with_tools(user("hello"));
        body[*field] = value.clone();
        let answer = house.send(&body).await;
        assert_eq!(answer.status, 400, "{field} {value}");
        let message = answer.error_message();
        assert!(message.contains(expected), "{field}: {message}");
        let recorded = house.store.calls().pop().unwrap().error;
        assert!(recorded.unwrap().ends_with(&message));
    }
    assert!(
        house
            .store
            .calls()
            .iter()
            .all(|call| call.tokens.is_empty())
    );
    let calls = house.session.close().await;
    assert_eq!(calls.last_fault, None, "it is not the policy's fault");
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_refused_with_both_numbers() {
    for (context, limit, expected) in [
        (
            40,
            None,
            "has 43 tokens, and the maximum context length is 40 tokens",
        ),
        (
            43,
            None,
            "has 43 tokens, and the maximum context length is 43 tokens",
        ),
        (2000, Some(42), "has 43 tokens, and this run allows 42"),
    ] {
        let mut engine = Engine::saying(&[]);
        engine.context = context;
        let options = TokenPolicyOptions {
            max_prompt_tokens: limit,
            ..toy::options()
        };
        let (house, _) = house_with(engine, options, GatewayOptions::default()).await;
        let answer = house.send(&user("how long is this prompt?")).await;
        assert_eq!(answer.status, 400);
        assert!(
            answer.error_message().contains(expected),
            "{}",
            answer.error_message()
        );
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    }
}

#[tokio::test]
async fn tools_are_hidden_when_they_must_not_be_used() {
    let (house, log) = house(Engine::saying(&[CALL_TEXT, CALL_TEXT, CALL_TEXT])).await;
    let mut body = with_tools(user("6 times 7?"));
    let called = house.send(&body).await.json();
    assert_eq!(
        called["choices"][0]["message"]["tool_calls"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    body["tool_choice"] = json!("none");
    let hidden = house.send(&body).await.json();
    let plain = house.send(&user("6 times 7?")).await.json();
    for reply in [hidden, plain] {
        assert_eq!(reply["choices"][0]["message"]["content"], CALL_TEXT);
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    }
    let requests = log.requests.lock();
    assert_ne!(requests[0].prompt, requests[1].prompt);
    assert_eq!(requests[1].prompt, requests[2].prompt);
}

#[tokio::test]
async fn in_training_the_runs_sampling_wins() {
    let options = GatewayOptions {
        sampling: Sampling {
            temperature: Some(0.25),
            top_p: Some(1.0),
            overrides: true,
        },
        ..GatewayOptions::default()
    };
    let (house, log) = house_with(Engine::saying(&["a"]), toy::options(), options).await;
    let mut body = user("hello");
    body["temperature"] = json!(0);
    body["top_p"] = json!(0.1);
    house.send(&body).await;
    let request = &log.requests.lock()[0];
    assert!((request.temperature - 0.25).abs() < 1e-9 && (request.top_p - 1.0).abs() < 1e-9);
}
