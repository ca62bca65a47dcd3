use osmosis_testkit::model_server::{Behaviour, Gate};
use serde_json::{Value, json};

use crate::fixture::{Answer, House, streamed};

#[tokio::test]
async fn the_first_event_arrives_before_the_upstream_has_finished() {
    let gate = Gate::default();
    let (house, _server) = House::upstream(Behaviour::HeldAfterFirstEvent(gate.clone())).await;
    let mut response = house.post(streamed("hi").to_string()).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    // The upstream waits for the gate, so this can only be what has passed already.
    let first = response.chunk().await.unwrap().unwrap();
    assert!(first.ends_with(b"\n\n"));
    assert!(house.store.calls().is_empty());
    gate.open();
    let rest = Answer::of(response).await;
    assert!(rest.text.ends_with("data: [DONE]\n\n"));
    let call = &house.store.wait_for(1).await[0];
    assert_eq!(call.response, [&first[..], rest.text.as_bytes()].concat());
    assert!(call.streamed);
    assert_eq!((call.status, &call.error), (200, &None));
}

#[tokio::test]
async fn usage_is_recorded_but_shown_only_to_those_who_asked() {
    for asked in [false, true] {
        let (house, server) = House::upstream(Behaviour::Answers).await;
        let mut body = streamed("What is 6 times 7?");
        if asked {
            body["stream_options"] = json!({"include_usage": true});
        }
        let answer = house.send(&body).await;
        assert_eq!(answer.spelt(), "The answer is 42.");
        assert_eq!(answer.text.contains("\"prompt_tokens\""), asked);
        assert_eq!(answer.events().last().unwrap(), "[DONE]");
        let call = &house.store.calls()[0];
        assert_eq!(
            (call.prompt_tokens, call.completion_tokens),
            (Some(5), Some(5))
        );
        assert_eq!(call.response, answer.text.as_bytes());
        assert_eq!(
            server.requests()[0].body["stream_options"],
            json!({"include_usage": true})
        );
    }
}

#[tokio::test]
async fn tool_calls_come_as_deltas() {
    let (house, _server) = House::upstream(Behaviour::Answers).await;
    let mut body = streamed("What is 6 times 7?");
    body["tools"] = json!([{"type": "function", "function": {"name": "multiply"}}]);
    let answer = house.send(&body).await;
    let deltas: Vec<Value> = answer
        .events()
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .filter_map(|chunk| {
            chunk["choices"][0]["delta"]["tool_calls"][0]["function"]
                .as_object()
                .cloned()
        })
        .map(Value::Object)
        .collect();
    assert_eq!(deltas[0]["name"], "multiply");
    let arguments: String = deltas
        .iter()
        .filter_map(|delta| delta["arguments"].as_str())
        .collect();
    assert_eq!(arguments, "{\"a\":6,\"b\":7}");
}

#[tokio::test]
async fn a_caller_that_hangs_up_is_recorded_and_the_upstream_is_told() {
    let (house, server) = House::upstream(Behaviour::HeldAfterFirstEvent(Gate::default())).await;
    let mut response = house.post(streamed("hi").to_string()).send().await.unwrap();
    let first = response.chunk().await.unwrap().unwrap();
    drop(response);
    let call = &house.store.wait_for(1).await[0];
    assert!(
        call.error
            .as_deref()
            .unwrap()
            .starts_with("caller_hung_up: ")
    );
    assert_eq!(call.status, 200);
    assert_eq!(call.response, first);
    server.wait_for_hang_ups(1).await;
    let calls = house.session.close().await;
    assert_eq!((calls.summary.model_calls, calls.last_fault), (1, None));
}

#[tokio::test]
async fn a_caller_that_hangs_up_before_any_reply_is_recorded_with_status_0() {
    for body in [crate::fixture::user("hi"), streamed("hi")] {
        let (house, server) = House::upstream(Behaviour::Held(Gate::default())).await;
        let mut call = Box::pin(house.post(body.to_string()).send());
        tokio::select! {
            _ = &mut call => panic!("answered although the gate is shut"),
            () = server.wait_for_requests(1) => drop(call),
        }
        let call = &house.store.wait_for(1).await[0];
        assert_eq!(call.status, 0);
        assert!(call.response.is_empty());
        assert!(
            call.error
                .as_deref()
                .unwrap()
                .starts_with("caller_hung_up: ")
        );
        server.wait_for_hang_ups(1).await;
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_short_reaches_the_caller_as_an_error() {
    for behaviour in [Behaviour::CutsShort, Behaviour::EndsEarly] {
        let (house, server) = House::upstream(behaviour.clone()).await;
        let answer = house.send(&streamed("hi")).await;
        assert!(answer.aborted, "{behaviour:?}");
        let events = answer.events();
        assert_eq!(events.len(), 3, "{behaviour:?} {events:?}");
        let error: Value = serde_json::from_str(&events[2]).unwrap();
        assert_eq!(error["error"]["code"], "upstream_cut_short");
        assert!(
            error["error"]["message"]
                .as_str()
                .unwrap()
                .starts_with(server.url())
        );
        let call = &house.store.calls()[0];
        assert_eq!(call.response, answer.text.as_bytes());
        assert!(
            call.error
                .as_deref()
                .unwrap()
                .starts_with("upstream_cut_short: ")
        );
        // It began, so it was not tried again.
        assert_eq!(server.requests().len(), 1);
        let fault = house.session.close().await.last_fault.unwrap();
        assert_eq!(fault.kind, osmosis_gateway::FaultKind::CutShort);
    }
}

#[tokio::test]
async fn an_error_within_a_stream_passes_on_and_is_a_fault() {
    let (house, _server) = House::upstream(Behaviour::ReportsWithinStream).await;
    let answer = house.send(&streamed("hi")).await;
    assert!(answer.text.contains("out of memory"));
    assert!(answer.text.ends_with("data: [DONE]\n\n"));
    let fault = house.session.close().await.last_fault.unwrap();
    assert!(fault.message.contains("out of memory"), "{fault}");
    assert_eq!(house.store.calls()[0].response, answer.text.as_bytes());
}

#[tokio::test]
async fn a_server_that_leaves_out_done_has_still_finished() {
    let (house, _server) = House::upstream(Behaviour::NeverSaysDone).await;
    let answer = house.send(&streamed("hi")).await;
    assert!(!answer.aborted);
    assert_eq!(answer.spelt(), "Hello from the model server.");
    assert_eq!(house.store.calls()[0].error, None);
}

#[tokio::test]
async fn a_server_that_cannot_stream_is_streamed_for() {
    let (house, _server) = House::upstream(Behaviour::CannotStream).await;
    let answer = house.send(&streamed("What is 6 times 7?")).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(answer.spelt(), "The answer is 42.");
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
    assert!(!answer.text.contains("\"prompt_tokens\""));
    assert_eq!(house.store.calls()[0].completion_tokens, Some(5));
}
