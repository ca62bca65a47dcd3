//! Token ids in, token ids out.

use std::sync::{Arc, mpsc};

use osmosis_core::generation::StopReason;
use osmosis_core::{Attempt, PolicyVersion, RolloutId};
use osmosis_gateway::{EngineKind, GatewayOptions, Sampling};
use osmosis_store::CallPurpose;
use osmosis_tokens::Origin;
use serde_json::{Value, json};

use crate::embedded::{house, house_with, records};
use crate::engine_server::{EngineServer, Says};
use crate::fixture::{Answer, House, user};
use crate::remote_engine;
use crate::toy::{self, Engine, IM_END, Line, ids_of, logprob_of};

fn post(house: &House, path: &str, body: &Value) -> reqwest::RequestBuilder {
    house
        .client
        .post(format!("{}{path}", house.gateway.url()))
        .bearer_auth(house.session.key())
        .body(body.to_string())
}

async fn generate(house: &House, body: &Value) -> Answer {
    Answer::of(post(house, "/generate", body).send().await.unwrap()).await
}

#[tokio::test]
async fn ids_come_with_logprobs_and_versions_and_are_recorded() {
    let (house, log) = house(Engine::saying(&["Hi", "you"])).await;
    let prompt = ids_of("<|im_start|>user\nhello");
    let body = json!({"input_ids": prompt, "rid": "mine",
        "sampling_params": {"max_new_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 7,
            "stop_token_ids": [9], "n": 1}});
    let path = "/rollouts/r1-0/samples/solver/generate";
    let answer = Answer::of(post(&house, path, &body).send().await.unwrap()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let reply = answer.json();
    let sampled = [ids_of("Hi"), vec![IM_END]].concat();
    assert_eq!(reply["output_ids"], json!(sampled));
    let logprobs: Vec<f32> = sampled.iter().map(|id| logprob_of(*id)).collect();
    assert_eq!(reply["output_logprobs"], json!(logprobs));
    assert_eq!(reply["output_versions"], json!([7, 7, 7]));
    assert_eq!(
        (&reply["stop_reason"], &reply["rid"]),
        (&json!("stop"), &json!("mine"))
    );
    assert_eq!(reply["logprobs_of"], "tempered");
    let (latency, ttft) = (reply["latency"].as_f64(), reply["ttft"].as_f64());
    assert!(latency.unwrap() >= ttft.unwrap() && ttft.unwrap() >= 0.0);
    let request = log.requests.lock()[0].clone();
    assert_eq!(request.prompt, prompt);
    assert_eq!(request.stop_ids, [9, IM_END]);
    assert_eq!((request.max_tokens, request.top_k), (5, 7));
    assert!((request.temperature - 0.5).abs() < 1e-9);

    let longer = [prompt.clone(), sampled.clone(), ids_of("\nand")].concat();
    let next = json!({"input_ids": longer});
    Answer::of(post(&house, path, &next).send().await.unwrap()).await;
    let calls = house.store.calls();
    assert_eq!(calls[0].dialect, "generate");
    assert_eq!(calls[0].sample_id.as_str(), "solver");
    assert_eq!(calls[0].request, body.to_string().as_bytes());
    assert_eq!(calls[0].response, answer.text.as_bytes());
    assert_eq!(calls[0].prompt_tokens, Some(prompt.len() as u64));
    assert_eq!(calls[0].completion_tokens, Some(3));
    let first = records(&calls[0]).remove(0);
    assert_eq!(
        (first.prompt_suffix, first.sampled),
        (prompt.clone(), sampled)
    );
    assert_eq!(first.versions, [PolicyVersion(7); 3]);
    assert!(first.complete);
    let second = records(&calls[1]).remove(0);
    let kept = u32::try_from(prompt.len() + 3).unwrap();
    assert_eq!(second.origin, Origin::Continues { call: 0, kept });
    assert_eq!(second.prompt_suffix, ids_of("\nand"));
}

#[tokio::test]
async fn an_engine_elsewhere_answers_too() {
    for kind in [EngineKind::Vllm, EngineKind::Sglang] {
        let server = EngineServer::start([Says::Text("Hi")]).await;
        let house = remote_engine::house(kind, &server).await;
        let body = json!({"input_ids": ids_of("hello"), "sampling_params": {"max_new_tokens": 2}});
        let reply = generate(&house, &body).await.json();
        assert_eq!(reply["output_ids"], json!(ids_of("Hi")));
        assert_eq!(reply["stop_reason"], "length");
    }
}

#[tokio::test]
async fn the_sampling_of_a_training_run_wins() {
    let options = GatewayOptions {
        sampling: Sampling {
            temperature: Some(1.0),
            top_p: None,
            overrides: true,
        },
        ..GatewayOptions::default()
    };
    let (house, log) = house_with(Engine::saying(&["a"]), toy::options(), options).await;
    let body = json!({"input_ids": [1], "sampling_params": {"greedy": true, "top_p": 0.5}});
    assert_eq!(generate(&house, &body).await.status, 200);
    let request = log.requests.lock()[0].clone();
    assert!((request.temperature - 1.0).abs() < 1e-9 && (request.top_p - 0.5).abs() < 1e-9);
    assert_eq!(house.store.calls()[0].request, body.to_string().as_bytes());
}

#[tokio::test]
async fn a_rollout_that_is_decoded_greedily_is_in_ids_too() {
    let options = GatewayOptions {
        sampling: Sampling {
            temperature: Some(1.0),
            top_p: None,
            overrides: true,
        },
        ..GatewayOptions::default()
    };
    let (house, log) = house_with(Engine::saying(&["a"]), toy::options(), options).await;
    house.session.decode_greedily();
    let body = json!({"input_ids": [1], "sampling_params": {"temperature": 0.7, "top_p": 0.5}});
    assert_eq!(generate(&house, &body).await.status, 200);
    let request = log.requests.lock()[0].clone();
    assert!(request.temperature.abs() < 1e-9 && (request.top_p - 1.0).abs() < 1e-9);
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_and_recorded() {
    let (house, _) = house(Engine::saying(&[])).await;
    for (body, part) in [
        (json!({}), "`input_ids` is empty or missing"),
        (json!({"input_ids": []}), "`input_ids` is empty"),
        (json!({"input_ids": "hello"}), "must be a list of token ids"),
        (json!({"input_ids": [1, -1]}), "must be a list of token ids"),
        (
            json!({"input_ids": [1], "sampling_params": {"n": 4}}),
            "`n` can only be 1",
        ),
        (
            json!({"input_ids": [1], "sampling_params": {"min_new_tokens": 4}}),
            "`min_new_tokens` is 4",
        ),
        (
            json!({"input_ids": [1], "sampling_params": {"repetition_penalty": 1.2}}),
            "`repetition_penalty` is 1.2; only 1 is supported",
        ),
        (
            json!({"input_ids": [1], "sampling_params": {"min_p": 0.1}}),
            "`min_p` is 0.1; only 0 is supported",
        ),
        (
            json!({"input_ids": [1], "sampling_params": {"logit_bias": {"7": -100}}}),
            "`logit_bias` is not supported",
        ),
        (
            json!({"input_ids": [1], "sampling_params": {"temperature": -1}}),
            "`temperature` is -1",
        ),
        (
            json!({"input_ids": [1], "sampling_params": []}),
            "`sampling_params` is not an object",
        ),
        (
            json!({"input_ids": vec![1; 3000]}),
            "the maximum context length is 2000",
        ),
        (json!([]), "not a valid request"),
    ] {
        let answer = generate(&house, &body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.error_message().contains(part), "{}", answer.text);
    }
    assert_eq!(house.store.calls().len(), 13);
    let other = post(
        &house,
        "/rollouts/r9-9/generate",
        &json!({"input_ids": [1]}),
    );
    assert_eq!(other.send().await.unwrap().status().as_u16(), 403);
    let url = format!("{}/generate", house.gateway.url());
    let got = house
        .client
        .get(url)
        .bearer_auth(house.session.key())
        .send();
    assert_eq!(got.await.unwrap().status().as_u16(), 405);
}

#[tokio::test]
async fn a_policy_without_ids_says_so() {
    let house = House::scripted("[[reply]]\ntext = 'Hello.'\n").await;
    let answer = generate(&house, &json!({"input_ids": [1]})).await;
    assert_eq!(answer.status, 501);
    assert!(
        answer.error_message().contains("has no token ids"),
        "{}",
        answer.text
    );
    assert_eq!(answer.json()["error"]["code"], "no_token_ids");
    assert_eq!(house.send(&user("hello")).await.status, 200);
}

#[tokio::test]
async fn a_caller_that_hangs_up_and_a_rollout_that_ends_end_the_sampling() {
    for rollout_ends in [false, true] {
        let (sender, receiver) = mpsc::channel();
        let (house, log) = house(Engine::new([Line::Sent(receiver)])).await;
        sender.send(72).unwrap();
        let mut calling = Box::pin(post(&house, "/generate", &json!({"input_ids": [1]})).send());
        while log.requests.lock().is_empty() {
            tokio::select! {
                _ = &mut calling => panic!("there is no answer yet"),
                () = tokio::task::yield_now() => {}
            }
        }
        let store = house.store.clone();
        if rollout_ends {
            let (_, answer) = tokio::join!(house.session.close(), calling);
            assert_eq!(answer.unwrap().status().as_u16(), 410);
        } else {
            drop(calling);
            while store.calls().is_empty() {
                tokio::task::yield_now().await;
            }
        }
        // The engine hears of it with its next token.
        while log.ended.lock().is_empty() {
            let _ = sender.send(73);
            tokio::task::yield_now().await;
        }
        assert_eq!(log.ended.lock()[0].1, StopReason::Cancelled);
        let call = &store.calls()[0];
        assert!(!records(call)[0].complete);
        let error = call.error.as_deref().unwrap();
        let expected = if rollout_ends {
            "rollout_ended"
        } else {
            "caller_hung_up"
        };
        assert!(error.starts_with(expected), "{error}");
    }
}

/// A run whose `[sampling]` wins.
fn overriding() -> GatewayOptions {
    GatewayOptions {
        sampling: Sampling {
            temperature: Some(1.0),
            top_p: None,
            overrides: true,
        },
        ..GatewayOptions::default()
    }
}

const COOL: &str = r#"{"input_ids": [1], "sampling_params": {"temperature": 0.25}}"#;

#[tokio::test]
async fn the_sampling_of_the_run_is_not_for_a_judge_that_is_asked_in_ids() {
    let (house, of_run) = house_with(Engine::saying(&[]), toy::options(), overriding()).await;
    let (judge, log) = toy::policy_with(Engine::saying(&["a"]), toy::options());
    house.gateway.set_judge(Arc::new(judge));
    let judged = (RolloutId::of(1, 0), Attempt(3));
    let (session, _) = house.gateway.open_judge(judged.0, judged.1).unwrap();
    let url = format!("{}/generate", house.gateway.url());
    let asked = house.client.post(url).bearer_auth(session.key()).body(COOL);
    assert_eq!(asked.send().await.unwrap().status().as_u16(), 200);
    assert!((log.requests.lock()[0].temperature - 0.25).abs() < 1e-9);
    assert!(of_run.requests.lock().is_empty());
    assert_eq!(house.store.calls()[0].purpose, CallPurpose::Judge);
}

#[tokio::test]
async fn a_call_in_ids_goes_to_the_policy_that_it_names() {
    let (house, of_run) = house_with(Engine::saying(&["a"]), toy::options(), overriding()).await;
    let (judge, log) = toy::policy_with(Engine::saying(&["a"]), toy::options());
    house.gateway.register("judge", Arc::new(judge)).unwrap();
    let mut body: Value = serde_json::from_str(COOL).unwrap();
    body["model"] = json!("judge");
    assert_eq!(generate(&house, &body).await.status, 200);
    assert!((log.requests.lock()[0].temperature - 0.25).abs() < 1e-9);
    assert!(of_run.requests.lock().is_empty());
    // Any other name means the run's policy, as in a chat call.
    body["model"] = json!("osmosis-rollout");
    assert_eq!(generate(&house, &body).await.status, 200);
    assert!((of_run.requests.lock()[0].temperature - 1.0).abs() < 1e-9);
}

#[tokio::test]
async fn a_call_in_ids_that_is_repeated_under_its_key_is_answered_once() {
    let (house, log) = house(Engine::saying(&["a", "b"])).await;
    let body = json!({"input_ids": [1]});
    let ask = || post(&house, "/generate", &body).header("idempotency-key", "k1");
    let first = Answer::of(ask().send().await.unwrap()).await;
    let again = Answer::of(ask().send().await.unwrap()).await;
    assert_eq!((first.status, &first.text), (200, &again.text));
    assert_eq!(again.headers["idempotent-replayed"], "true");
    let other = json!({"input_ids": [2]});
    let other = post(&house, "/generate", &other).header("idempotency-key", "k1");
    assert_eq!(other.send().await.unwrap().status().as_u16(), 422);
    assert_eq!(log.requests.lock().len(), 1);
    assert_eq!(house.store.calls().len(), 2);
}
