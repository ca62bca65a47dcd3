use osmosis_core::{Attempt, RolloutId};
use osmosis_gateway::GatewayOptions;
use osmosis_testkit::model_server::Behaviour;
use serde_json::json;

use crate::fixture::{Answer, House, script_policy, user};
use crate::memory_store::MemoryStore;

#[tokio::test]
async fn a_call_is_recorded_raw_with_its_usage_and_times() {
    let (house, server) = House::upstream(Behaviour::Answers).await;
    let request = "{ \"model\": \"osmosis-rollout\", \"messages\": [{\"role\":\"user\",\"content\":\"What is 6 times 7?\"}], \"seed\": 9007199254740993 }";
    let answer = Answer::of(house.post(request).send().await.unwrap()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.json()["choices"][0]["message"]["content"],
        "The answer is 42."
    );

    let calls = house.store.calls();
    assert_eq!(calls.len(), 1);
    let call = &calls[0];
    assert_eq!(call.rollout_id, RolloutId::of(1, 0));
    assert_eq!(call.attempt, Attempt(3));
    assert_eq!(call.sample_id.as_str(), "main");
    assert_eq!(call.dialect, "chat_completions");
    assert_eq!(call.model, "osmosis-rollout");
    assert_eq!(call.upstream, server.url());
    assert_eq!(
        (call.streamed, call.status, &call.error),
        (false, 200, &None)
    );
    assert_eq!(
        (call.prompt_tokens, call.completion_tokens),
        (Some(5), Some(5))
    );
    assert_eq!(call.request, request.as_bytes());
    assert_eq!(call.response, answer.text.as_bytes());
    let (sent, first) = (call.sent_at_ms.unwrap(), call.first_byte_at_ms.unwrap());
    assert!(call.queued_at_ms > 0 && call.queued_at_ms <= sent);
    assert!(sent <= first && first <= call.done_at_ms);

    let received = &server.requests()[0];
    assert_eq!(
        received.raw,
        "{ \"model\": \"real-model\", \"messages\": [{\"role\":\"user\",\"content\":\"What is 6 times 7?\"}], \"seed\": 9007199254740993 ,\"temperature\":1.0,\"top_p\":1.0}"
    );
    let calls = house.session.close().await;
    assert_eq!(calls.summary.model_calls, 1);
    assert_eq!(
        (calls.summary.prompt_tokens, calls.summary.completion_tokens),
        (5, 5)
    );
    assert_eq!(calls.last_fault, None);
    assert!(calls.model_time.as_nanos() > 0);
}

#[tokio::test]
async fn a_bad_request_is_refused_and_recorded() {
    let house = House::scripted("[[reply]]\ntext = 'Hello.'\n").await;
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(500), "]".repeat(500));
    let cases: &[&[u8]] = &[
        b"",
        b"not json",
        b"[1, 2]",
        b"{\"messages\": [",
        b"{\"model\": \"m\"}",
        b"{\"messages\": \"hi\"}",
        b"{\"messages\": [\"\xff\"]}",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",
        b"{\"messages\": [{\"content\": \"no role\"}]}",
        deep.as_bytes(),
    ];
    for (index, body) in cases.iter().enumerate() {
        let answer = Answer::of(house.post(body.to_vec()).send().await.unwrap()).await;
        assert_eq!(answer.status, 400, "{}", String::from_utf8_lossy(body));
        assert!(!answer.error_message().is_empty());
        let calls = house.store.calls();
        assert_eq!(calls.len(), index + 1);
        assert_eq!(calls[index].status, 400);
        assert_eq!(calls[index].request, *body);
        assert_eq!(calls[index].response, answer.text.as_bytes());
        assert!(calls[index].error.is_some());
    }
    // It is the agent's fault, not the policy's.
    assert_eq!(house.session.close().await.last_fault, None);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_with_413() {
    let options = GatewayOptions {
        max_body_bytes: 1000,
        ..GatewayOptions::default()
    };
    let policy = script_policy("[[reply]]\ntext = 'Hello.'\n");
    let house = House::with(policy, options, MemoryStore::default()).await;
    for size in [1001, 5_000_000] {
        let answer = Answer::of(house.post(vec![b' '; size]).send().await.unwrap()).await;
        assert_eq!(answer.status, 413);
        assert!(answer.error_message().contains("1000 bytes"));
    }
    let calls = house.store.calls();
    assert_eq!(calls.len(), 2);
    assert!(calls[1].request.is_empty());
    let fits = user("hi").to_string();
    assert_eq!(house.post(fits).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_call_that_cannot_be_recorded_is_not_answered() {
    let policy = script_policy("[[reply]]\ntext = 'Hello.'\n");
    let house = House::with(policy, GatewayOptions::default(), MemoryStore::broken()).await;
    let answer = house.send(&user("hi")).await;
    assert_eq!(answer.status, 500);
    assert!(
        answer
            .error_message()
            .contains("could not be recorded: database: no space left")
    );

    let mut streamed = user("hi");
    streamed["stream"] = json!(true);
    let answer = house.send(&streamed).await;
    assert!(answer.aborted);
    assert!(!answer.text.contains("[DONE]"));
    assert!(answer.text.contains("could not be recorded"));
    assert!(house.session.close().await.last_fault.is_some());
}

#[tokio::test]
async fn the_record_is_queued_before_the_answer_leaves() {
    let house = House::scripted("[[reply]]\ntext = 'Hello.'\n").await;
    house.store.pause();
    let mut waiting = Box::pin(house.post(user("hi").to_string()).send());
    // Nothing may come while the store does not take the record.
    let early = tokio::time::timeout(std::time::Duration::from_millis(100), &mut waiting).await;
    assert!(early.is_err(), "answered before it was recorded");
    house.store.resume();
    assert_eq!(waiting.await.unwrap().status(), 200);
    assert_eq!(house.store.calls().len(), 1);
}

#[tokio::test]
async fn what_the_caller_asks_for_passes_through() {
    let (house, server) = House::upstream(Behaviour::Answers).await;
    let mut body = user("What is 6 times 7?");
    body["tools"] = json!([{"type": "function", "function": {"name": "multiply"}}]);
    body["tool_choice"] = json!("auto");
    body["temperature"] = json!(0);
    body["stop"] = json!(["\n"]);
    body["logprobs"] = json!(true);
    let answer = house.send(&body).await;
    let call = answer.json()["choices"][0]["message"]["tool_calls"][0].clone();
    assert_eq!(
        call["function"],
        json!({"name": "multiply", "arguments": "{\"a\":6,\"b\":7}"})
    );
    let received = server.requests()[0].body.clone();
    for key in [
        "tools",
        "tool_choice",
        "stop",
        "logprobs",
        "temperature",
        "messages",
    ] {
        assert_eq!(received[key], body[key], "{key}");
    }
    body["messages"] = json!([
        {"role": "user", "content": "What is 6 times 7?"},
        answer.json()["choices"][0]["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": "42"},
    ]);
    let answer = house.send(&body).await;
    assert_eq!(
        answer.json()["choices"][0]["message"]["content"],
        "The answer is 42."
    );
}
