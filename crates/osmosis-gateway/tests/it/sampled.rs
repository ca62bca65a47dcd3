//! What makes a recorded token one that can be trained on: drawn from the run's distribution, for the
//! agent, and given to it.

use osmosis_core::{Attempt, RolloutId};
use osmosis_gateway::{GatewayOptions, RolloutSession, Sampling};
use osmosis_store::CallPurpose;
use serde_json::{Value, json};

use crate::embedded::{house, house_with, records};
use crate::fixture::{Answer, House, user};
use crate::toy::{self, Engine};

fn training() -> GatewayOptions {
    GatewayOptions {
        sampling: Sampling {
            temperature: Some(1.0),
            top_p: Some(1.0),
            overrides: true,
        },
        ..GatewayOptions::default()
    }
}

async fn ask(house: &House, key: &str, path: &str, body: &Value) -> Answer {
    let call = house
        .client
        .post(format!("{}/{path}", house.gateway.url()))
        .bearer_auth(key)
        .header("content-type", "application/json")
        .body(body.to_string());
    Answer::of(call.send().await.unwrap()).await
}

#[tokio::test]
async fn seed_and_top_k_of_a_call_never_reach_the_sampler_in_training() {
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "seed": 7, "top_k": 1});
    let ids = json!({"input_ids": [1], "sampling_params": {"seed": 7, "top_k": 1}});
    let mut anthropic = chat.clone();
    anthropic["max_tokens"] = json!(9);
    for (path, body) in [
        ("chat/completions", &chat),
        ("messages", &anthropic),
        ("generate", &ids),
    ] {
        for (options, same) in [(training(), false), (GatewayOptions::default(), true)] {
            let engine = Engine::saying(&["a", "b"]);
            let (house, log) = house_with(engine, toy::options(), options).await;
            for _ in 0..2 {
                let answer = ask(&house, house.session.key(), path, body).await;
                assert_eq!(answer.status, 200, "{path}: {}", answer.text);
            }
            let requests = log.requests.lock();
            assert_eq!(requests[0].key == requests[1].key, same, "{path}");
            let top_k = usize::from(same);
            assert!(requests.iter().all(|r| r.top_k == top_k), "{path}");
        }
    }
}

fn open_other(house: &House) -> RolloutSession {
    let calls = house.store.calls();
    let (rollout, attempt) = calls
        .first()
        .map_or((RolloutId::of(0, 0), Attempt(1)), |call| {
            (call.rollout_id.clone(), call.attempt)
        });
    house.gateway.open_other(rollout, attempt)
}

#[tokio::test]
async fn calls_through_the_second_door_are_apart_from_those_of_the_policy() {
    let engine = Engine::saying(&["policy", "other"]);
    let (house, log) = house_with(engine, toy::options(), training()).await;
    let mut body = user("hello");
    body["temperature"] = json!(0.5);
    let path = "chat/completions";
    let first = ask(&house, house.session.key(), path, &body).await.json();
    let other = open_other(&house);
    let second = ask(&house, other.key(), path, &body).await.json();
    assert_ne!(first["id"], second["id"]);
    let purposes: Vec<CallPurpose> = house.store.calls().iter().map(|c| c.purpose).collect();
    assert_eq!(purposes, [CallPurpose::Policy, CallPurpose::Other]);
    {
        let requests = log.requests.lock();
        let temperatures: Vec<f32> = requests.iter().map(|r| r.temperature).collect();
        assert_eq!(temperatures, [1.0, 0.5], "its sampling is its own");
        assert_ne!(requests[0].key, requests[1].key);
    }
    assert_eq!(house.gateway.call_totals().model_calls, 1);
    assert_eq!(house.gateway.live().rollouts.len(), 1);
    other.close().await;
    assert_eq!(house.session.close().await.summary.model_calls, 1);
}

#[tokio::test]
async fn a_door_that_is_asked_to_keeps_what_was_sampled() {
    let (house, _) = house(Engine::saying(&["a", "b", "c"])).await;
    house.send(&user("before")).await;
    house.session.keep_completions();
    house.send(&user("counted")).await;
    house.session.keep_details();
    house.send(&user("hello")).await;
    let recorded = house.store.calls()[2].clone();
    let through = house.session.close().await;
    let given = through.completions.iter();
    let given: Vec<(bool, &[u32])> = given
        .map(|one| (one.id.is_some(), &one.calls[..]))
        .collect();
    assert_eq!(given, [(false, &[1][..]), (true, &[2])]);
    let kept: Vec<_> = through.token_records.iter().map(|(_, r)| r).collect();
    assert_eq!(kept, recorded.tokens.iter().collect::<Vec<_>>());
    assert_eq!(through.token_records[0].0, recorded.sample_id);
}

#[tokio::test]
async fn choices_and_retries_are_recorded_as_such() {
    let (house, _) = house(Engine::saying(&["a", "b", "c", "d", "e"])).await;
    let mut two = user("hello");
    two["n"] = json!(2);
    house.send(&two).await;
    let retried = |count: &str| {
        house
            .post(user("again").to_string())
            .header("x-stainless-retry-count", count)
    };
    // Asked twice; then once more, because no answer came.
    for count in ["0", "0", "1"] {
        let answer = Answer::of(retried(count).send().await.unwrap()).await;
        assert_eq!(answer.status, 200);
    }
    let calls = house.store.calls();
    let told: Vec<(u32, bool, Vec<u32>)> = calls
        .iter()
        .flat_map(records)
        .map(|record| (record.call, record.one_of_several, record.replaces))
        .collect();
    let expected = [
        (0, true, vec![]),
        (1, true, vec![]),
        (2, false, vec![]),
        (3, false, vec![]),
        (4, false, vec![3]),
    ];
    assert_eq!(told, expected);
}
