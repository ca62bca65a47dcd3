//! Token ids that an upstream reports with its chat replies.

use std::sync::Arc;
use std::time::Duration;

use osmosis_core::generation::LogprobsOf;
use osmosis_gateway::{
    GatewayOptions, Policy, ReportedTokens, Sampling, ServerLogprobs, UpstreamOptions,
    UpstreamPolicy,
};
use osmosis_tokens::Origin;
use serde_json::json;

use crate::embedded::records;
use crate::engine_server::{EngineServer, Says};
use crate::fixture::{House, streamed, user};
use crate::memory_store::MemoryStore;
use crate::toy::{IM_END, ids_of, logprob_of};

fn upstream(server: &EngineServer) -> UpstreamPolicy {
    let mut options = UpstreamOptions::new(server.v1(), "real-model");
    options.first_retry_wait = Duration::from_millis(1);
    UpstreamPolicy::new(options).unwrap()
}

async fn house_of(policy: impl Policy + 'static) -> House {
    let options = GatewayOptions {
        sampling: Sampling {
            temperature: Some(1.0),
            top_p: Some(1.0),
            overrides: false,
        },
        ..GatewayOptions::default()
    };
    House::with(policy, options, MemoryStore::default()).await
}

async fn house(server: &EngineServer) -> House {
    let policy = Arc::new(upstream(server));
    house_of(ReportedTokens::new(policy, ServerLogprobs::Raw)).await
}

#[tokio::test]
async fn ids_are_recorded_and_the_caller_sees_the_same_bytes_as_without() {
    for body in [user("hello"), streamed("hello")] {
        let server = EngineServer::start([Says::Text("Hi ✓"), Says::Text("Hi ✓")]).await;
        let plain = house_of(upstream(&server)).await.send(&body).await;
        let house = house(&server).await;
        let answer = house.send(&body).await;
        assert_eq!(answer.text, plain.text);
        assert!(!answer.text.contains("token_ids"));
        let asked = server.asked();
        assert_eq!(asked[0].get("return_token_ids"), None);
        assert_eq!(asked[1]["return_token_ids"], true);
        let call = &house.store.calls()[0];
        assert_eq!(call.response, answer.text.as_bytes());
        let record = records(call).remove(0);
        let sampled = [ids_of("Hi ✓"), vec![IM_END]].concat();
        let prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(record.prompt_suffix, ids_of(prompt));
        let logprobs: Vec<f32> = sampled.iter().map(|id| logprob_of(*id)).collect();
        assert_eq!(record.sampled, sampled);
        assert_eq!(record.logprobs, logprobs);
        assert_eq!(record.logprobs_of, LogprobsOf::Tempered);
        assert!(record.complete);
        assert_eq!(call.completion_tokens, Some(sampled.len() as u64));
    }
}

#[tokio::test]
async fn what_the_caller_asks_for_itself_it_gets() {
    for mut body in [user("hello"), streamed("hello")] {
        body["return_token_ids"] = json!(true);
        body["logprobs"] = json!(true);
        let server = EngineServer::start([Says::Text("Hi"), Says::Text("Hi")]).await;
        let plain = house_of(upstream(&server)).await.send(&body).await;
        let house = house(&server).await;
        let answer = house.send(&body).await;
        assert_eq!(answer.text, plain.text);
        assert!(answer.text.contains("\"prompt_token_ids\":["));
        assert!(answer.text.contains("\"logprob\":"));
        assert_eq!(records(&house.store.calls()[0])[0].sampled.len(), 3);
    }
}

#[tokio::test]
async fn a_conversation_goes_on_where_its_ids_do() {
    let server = EngineServer::start([Says::Text("One."), Says::Text("Two.")]).await;
    let house = house(&server).await;
    let mut body = user("Count.");
    let first = house.send(&body).await.json();
    let reply = first["choices"][0]["message"].clone();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.extend([reply, json!({"role": "user", "content": "Go on."})]);
    house.send(&body).await;
    let told: Vec<_> = house.store.calls().iter().flat_map(records).collect();
    let kept = told[0].prompt_suffix.len() + told[0].sampled.len();
    let kept = u32::try_from(kept).unwrap();
    assert_eq!(told[1].origin, Origin::Continues { call: 0, kept });
    // Ids that do not go on are said to begin anew.
    let mut other = user("Something else.");
    other["temperature"] = json!(0.5);
    drop(house);
    let server = EngineServer::start([Says::Text("One."), Says::Text("Two.")]).await;
    let house = house_of(ReportedTokens::new(
        Arc::new(upstream(&server)),
        ServerLogprobs::Raw,
    ))
    .await;
    house.send(&user("Count.")).await;
    house.send(&other).await;
    let told: Vec<_> = house.store.calls().iter().flat_map(records).collect();
    let reason = Some("no earlier call's ids begin its prompt".to_owned());
    assert_eq!(told[1].origin, Origin::Root { reason });
    assert_eq!(told[1].logprobs_of, LogprobsOf::Untempered);
}

#[tokio::test]
async fn a_reply_without_ids_passes_and_the_record_says_why_they_are_unknown() {
    let server = EngineServer::start([Says::WithoutIds("Hi there")]).await;
    let house = house(&server).await;
    let answer = house.send(&user("hello")).await;
    assert_eq!(
        answer.json()["choices"][0]["message"]["content"],
        "Hi there"
    );
    let call = &house.store.calls()[0];
    let record = records(call).remove(0);
    let why = record.ids_unknown().unwrap();
    assert!(why.contains("sent no `prompt_token_ids`"), "{why}");
    assert!(!record.complete);
    assert_eq!(
        (call.prompt_tokens, call.completion_tokens),
        (Some(9), Some(3))
    );
}

#[tokio::test]
async fn a_stream_that_is_cut_is_recorded_as_far_as_it_came() {
    let server = EngineServer::start([Says::BreaksAfter("abc")]).await;
    let house = house(&server).await;
    let answer = house.send(&streamed("hello")).await;
    assert!(answer.aborted);
    let record = records(&house.store.calls()[0]).remove(0);
    assert!(!record.complete);
    assert!(ids_of("abc").starts_with(&record.sampled) && !record.sampled.is_empty());
    assert_eq!(record.ids_unknown(), None);
}

#[tokio::test]
async fn an_error_of_the_upstream_is_passed_on_without_a_record_of_tokens() {
    let server = EngineServer::start([Says::Status(400, None)]).await;
    let house = house(&server).await;
    let answer = house.send(&user("hello")).await;
    assert_eq!(answer.status, 400);
    assert!(house.store.calls()[0].tokens.is_empty());
}
