//! What is recorded of the embedded policy's tokens, and what it remembers.

use std::collections::HashSet;
use std::sync::{Arc, mpsc};

use osmosis_core::generation::{GenerationError, LogprobsOf, StopReason};
use osmosis_core::{Attempt, PolicyVersion, RolloutId, SampleId};
use osmosis_gateway::{Gateway, GatewayOptions};
use osmosis_tokens::{CallTree, Origin, TokenRecord};
use serde_json::{Value, json};

use crate::embedded::{CALL_TEXT, house, records, with_tools};
use crate::fixture::{client, streamed, user};
use crate::toy::{self, CALL, Engine, IM_END, Line, ids_of, logprob_of};

#[tokio::test]
async fn what_was_sampled_is_recorded_token_by_token() {
    for stream in [false, true] {
        let (house, _) = house(Engine::saying(&["Hi"])).await;
        let body = if stream {
            streamed("hello")
        } else {
            user("hello")
        };
        house.send(&body).await;
        let call = &house.store.calls()[0];
        assert_eq!(call.policy_version, PolicyVersion(7));
        assert_eq!((call.status, &call.error), (200, &None));
        let sampled = vec![u32::from(b'H'), u32::from(b'i'), IM_END];
        let expected = TokenRecord {
            call: 0,
            origin: Origin::Root { reason: None },
            prompt_suffix: ids_of("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
            logprobs: sampled.iter().map(|id| logprob_of(*id)).collect(),
            logprobs_of: LogprobsOf::Tempered,
            versions: vec![PolicyVersion(7); 3],
            sampled,
            temperature: 1.0,
            complete: true,
            one_of_several: false,
            replaces: vec![],
            constraint: None,
        };
        assert_eq!(records(call), [expected]);
        assert_eq!(call.completion_tokens, Some(3));
    }
}

#[tokio::test]
async fn a_conversation_goes_on_with_the_ids_that_were_sampled() {
    for stream in [false, true] {
        // Not how the tokenizer would write the tag: only the sampled ids themselves can say so.
        let spelt: Vec<u32> = CALL_TEXT.bytes().map(u32::from).chain([IM_END]).collect();
        let engine = Engine::new([
            Line::Ids(spelt.clone()),
            Line::Ids([ids_of("42"), vec![IM_END]].concat()),
        ]);
        let (house, log) = house(engine).await;
        let mut body = with_tools(user("6 times 7?"));
        let first = house.send(&body).await.json();
        let message = first["choices"][0]["message"].clone();
        assert_eq!(first["choices"][0]["finish_reason"], "tool_calls");
        let call = &message["tool_calls"][0];
        let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "42"});
        let messages = body["messages"].as_array_mut().unwrap();
        messages.extend([message.clone(), result]);
        if stream {
            body["stream"] = json!(true);
        }
        house.send(&body).await;

        let requests = log.requests.lock();
        let earlier = [requests[0].prompt.clone(), spelt].concat();
        assert_eq!(requests[1].prompt[..earlier.len()], earlier);
        let calls = house.store.calls();
        let recorded: Vec<_> = calls.iter().flat_map(records).collect();
        assert!(
            matches!(recorded[1].origin, Origin::Continues { call: 0, kept } if kept as usize == earlier.len())
        );
        let rows = CallTree::rows(&SampleId::main(), &recorded).unwrap();
        assert_eq!(rows.len(), 1);
        let answer = [ids_of("42"), vec![IM_END]].concat();
        assert_eq!(rows[0].ids, [requests[1].prompt.clone(), answer].concat());
    }
}

#[tokio::test]
async fn samples_and_attempts_remember_nothing_of_each_other() {
    let (house, log) = house(Engine::saying(&["a", "b", "c", "d"])).await;
    let mut body = user("hello");
    house.send(&body).await;
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": "a"}));
    messages.push(json!({"role": "user", "content": "more"}));
    let post = |key: &str, sample: &str| {
        let request = house.client.post(house.chat_url()).bearer_auth(key);
        request
            .header("x-sample-id", sample)
            .body(body.to_string())
            .send()
    };
    post(house.session.key(), "judge").await.unwrap();
    let next_attempt = house.gateway.open(RolloutId::of(1, 0), Attempt(4));
    post(next_attempt.key(), "main").await.unwrap();
    post(house.session.key(), "main").await.unwrap();
    let calls = house.store.wait_for(4).await;
    let origins: Vec<_> = calls
        .iter()
        .map(|call| records(call)[0].origin.clone())
        .collect();
    let root = Origin::Root { reason: None };
    assert_eq!(origins[1..3], [root.clone(), root]);
    assert!(matches!(origins[3], Origin::Continues { call: 0, .. }));
    // A retry of the rollout draws the same numbers at the same place; other samples draw others.
    let requests = log.requests.lock();
    assert_eq!(requests[0].key, requests[2].key);
    assert_ne!(requests[0].key, requests[1].key);
    assert_ne!(requests[2].key, requests[3].key);
}

#[tokio::test]
async fn several_choices_are_several_calls() {
    for stream in [false, true] {
        let (house, log) = house(Engine::saying(&["one", "two", "three"])).await;
        let mut body = if stream {
            streamed("hello")
        } else {
            user("hello")
        };
        body["n"] = json!(3);
        let answer = house.send(&body).await;
        let call = &house.store.calls()[0];
        let records = records(call);
        assert_eq!(
            records.iter().map(|r| r.call).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert!(records.iter().all(|record| record.complete));
        // Which thread of the engine took which line is chance; the choice and its record agree.
        if !stream {
            for (index, record) in records.iter().enumerate() {
                let text = answer.json()["choices"][index]["message"]["content"].clone();
                let sampled = [ids_of(text.as_str().unwrap()), vec![IM_END]].concat();
                assert_eq!(record.sampled, sampled);
            }
        }
        assert_eq!(call.completion_tokens, Some(3 + 3 + 5 + 3));
        assert_eq!(
            call.prompt_tokens,
            Some(log.requests.lock()[0].prompt.len() as u64)
        );
        let keys: HashSet<_> = log
            .requests
            .lock()
            .iter()
            .map(|request| request.key)
            .collect();
        assert_eq!(keys.len(), 3);
        if stream {
            let ends = answer
                .events()
                .iter()
                .filter(|e| e.contains("\"finish_reason\":\"stop\""))
                .count();
            assert_eq!(ends, 3);
            assert!(answer.text.ends_with("data: [DONE]\n\n"));
        }
    }
}

#[tokio::test]
async fn a_callers_seed_gives_equal_requests_equal_draws() {
    let (house, log) = house(Engine::saying(&["a", "a", "a"])).await;
    let mut body = user("hello");
    body["seed"] = json!(5);
    house.send(&body).await;
    house.send(&body).await;
    body["seed"] = json!(6);
    house.send(&body).await;
    let requests = log.requests.lock();
    assert_eq!(requests[0].key, requests[1].key);
    assert_ne!(requests[0].key, requests[2].key);
    let ids: HashSet<_> = house
        .store
        .calls()
        .iter()
        .map(|call| {
            serde_json::from_slice::<Value>(&call.response.joined()).unwrap()["id"].to_string()
        })
        .collect();
    assert_eq!(ids.len(), 3, "completion ids differ even so");
}

#[tokio::test]
async fn a_caller_that_hangs_up_ends_the_sampling_and_is_recorded_with_what_there_was() {
    for stream in [false, true] {
        let (sender, receiver) = mpsc::channel();
        let (house, log) = house(Engine::new([Line::Sent(receiver)])).await;
        let body = if stream {
            streamed("hello")
        } else {
            user("hello")
        };
        for byte in b"once upon" {
            sender.send(u32::from(*byte)).unwrap();
        }
        if stream {
            let mut response = house.post(body.to_string()).send().await.unwrap();
            let mut came = String::new();
            while !came.contains("n\"}") {
                came.push_str(
                    std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap(),
                );
            }
            drop(response);
        } else {
            let mut asking = Box::pin(house.post(body.to_string()).send());
            while log.requests.lock().is_empty() {
                assert!(futures_util::poll!(asking.as_mut()).is_pending());
                tokio::task::yield_now().await;
            }
            drop(asking);
        }
        let call = house.store.wait_for(1).await.remove(0);
        assert!(call.error.as_deref().unwrap().starts_with("caller_hung_up"));
        let record = records(&call).remove(0);
        assert!(!record.complete);
        assert!(ids_of("once upon").starts_with(&record.sampled));
        assert_eq!(call.completion_tokens, Some(record.sampled.len() as u64));
        // The next token finds nobody.
        while log.ended.lock().is_empty() {
            let _ = sender.send(97);
            tokio::task::yield_now().await;
        }
        assert_eq!(log.ended.lock()[0].1, StopReason::Cancelled);
        let calls = house.session.close().await;
        assert_eq!(calls.summary.model_calls, 1);
    }
}

#[tokio::test]
async fn a_door_that_closes_records_what_was_sampled_by_then() {
    let (sender, receiver) = mpsc::channel();
    let (house, _) = house(Engine::new([Line::Sent(receiver)])).await;
    sender.send(97).unwrap();
    let mut response = house
        .post(streamed("hello").to_string())
        .send()
        .await
        .unwrap();
    response.chunk().await.unwrap().unwrap();
    house.session.close().await;
    let call = &house.store.calls()[0];
    let record = records(call).remove(0);
    assert_eq!(
        (record.sampled.as_slice(), record.complete),
        (&[97][..], false)
    );
}

/// A line, the status it leads to, and what the message says.
type Failing = (fn() -> Line, u16, &'static str);

#[tokio::test]
async fn an_engine_that_fails_is_a_fault() {
    let not_finite = || Line::Fails(vec![97], GenerationError::NotFinite);
    let shut_down = || Line::Fails(vec![], GenerationError::ShutDown);
    let lines: [Failing; 3] = [
        (not_finite, 500, "not finite"),
        (shut_down, 503, "shut down"),
        (|| Line::Vanishes, 503, "shut down"),
    ];
    for (line, status, expected) in lines {
        for stream in [false, true] {
            let (house, _) = house(Engine::new([line()])).await;
            let body = if stream {
                streamed("hello")
            } else {
                user("hello")
            };
            let answer = house.send(&body).await;
            assert!(answer.text.contains(expected), "{}", answer.text);
            if answer.status == 200 {
                assert!(stream && answer.aborted);
            } else {
                assert_eq!(answer.status, status);
            }
            let call = &house.store.calls()[0];
            assert!(!records(call)[0].complete);
            let fault = house.session.close().await.last_fault.unwrap();
            assert_eq!(fault.status, status);
        }
    }
}

#[tokio::test]
async fn calls_of_one_sample_run_side_by_side() {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel()).unzip();
    let (house, log) = house(Engine::new(receivers.into_iter().map(Line::Sent))).await;
    let ask = |text: &str| Box::pin(house.post(user(text).to_string()).send());
    let mut asking = [ask("a"), ask("b"), ask("c")];
    while log.requests.lock().len() < 3 {
        for one in &mut asking {
            assert!(futures_util::poll!(one).is_pending());
        }
        tokio::task::yield_now().await;
    }
    for sender in senders {
        sender.send(CALL).unwrap();
        sender.send(IM_END).unwrap();
    }
    for one in asking {
        assert_eq!(one.await.unwrap().status(), 200);
    }
    let mut numbers: Vec<_> = house
        .store
        .calls()
        .iter()
        .map(|call| records(call)[0].call)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2]);
}

#[tokio::test]
async fn a_standing_door_serves_without_a_store_and_forgets_the_oldest() {
    const CALLS: usize = 600;
    let texts = vec!["a"; CALLS];
    let (policy, log) = toy::policy(Engine::saying(&texts));
    let gateway = Gateway::start_unrecorded(GatewayOptions::default(), Arc::new(policy))
        .await
        .unwrap();
    let session = gateway.open_standing(RolloutId::new("gateway").unwrap());
    let client = client();
    let url = format!("{}/chat/completions", gateway.url());
    for _ in 0..CALLS {
        let request = client.post(&url).bearer_auth(session.key());
        let response = request
            .body(user("hello").to_string())
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
    }
    let keys: HashSet<_> = log
        .requests
        .lock()
        .iter()
        .map(|request| request.key)
        .collect();
    assert_eq!(keys.len(), CALLS, "what is forgotten is not drawn again");
    assert_eq!(session.close().await.summary.model_calls, CALLS as u64);
}
