use std::time::Duration;

use osmosis_gateway::{Fault, FaultKind};
use osmosis_testkit::model_server::{Behaviour, Gate};
use serde_json::json;

use crate::fixture::{API_KEY, House, streamed, user};

/// Sends one call, plain or streamed, and returns the status, the message and the session's fault.
async fn failing(behaviour: Behaviour, as_stream: bool) -> (u16, String, Option<Fault>, usize) {
    let (house, server) = House::upstream_with(behaviour, |options| {
        options.first_byte_limit = Duration::from_millis(300);
        options.idle_limit = Duration::from_millis(300);
    })
    .await;
    let body = if as_stream {
        streamed("hi")
    } else {
        user("hi")
    };
    let answer = house.send(&body).await;
    let message = answer.error_message();
    assert!(!answer.text.contains(API_KEY), "{message}");
    let call = &house.store.calls()[0];
    assert_eq!(call.status, answer.status);
    assert_eq!(call.response, answer.text.as_bytes());
    assert!(!call.error.as_deref().unwrap().contains(API_KEY));
    let tries = server.requests().len();
    (
        answer.status,
        message,
        house.session.close().await.last_fault,
        tries,
    )
}

#[tokio::test]
async fn every_fault_of_an_upstream_has_its_kind_and_status() {
    #[rustfmt::skip]
    let cases = [
        (Behaviour::Down, FaultKind::Unreachable, 502, "cannot be reached", 0),
        (Behaviour::Held(Gate::default()), FaultKind::TimedOut, 504, "sent nothing for 300ms", 1),
        (Behaviour::Refuses { status: 429 }, FaultKind::Overloaded, 429, "refused, as always", 3),
        (Behaviour::Refuses { status: 500 }, FaultKind::ServerError, 500, "status 500", 3),
        (Behaviour::Refuses { status: 503 }, FaultKind::ServerError, 503, "(tried 3 times)", 3),
        (Behaviour::Refuses { status: 401 }, FaultKind::Misconfigured, 401, "with Bearer [redacted]", 1),
        (Behaviour::Refuses { status: 402 }, FaultKind::Misconfigured, 402, "status 402", 1),
        (Behaviour::Refuses { status: 403 }, FaultKind::Misconfigured, 403, "status 403", 1),
        (Behaviour::Refuses { status: 404 }, FaultKind::Misconfigured, 404, "status 404", 1),
        (Behaviour::Refuses { status: 408 }, FaultKind::TimedOut, 408, "status 408", 3),
        (Behaviour::Resets, FaultKind::Unreachable, 502, "broke the connection", 3),
        (Behaviour::Refuses { status: 307 }, FaultKind::Misconfigured, 502, "status 307", 1),
        (Behaviour::Garbage("<html>hello</html>"), FaultKind::Garbage, 502, "`<html>hello</html>`", 1),
        (Behaviour::Garbage("{\"choices\": ["), FaultKind::Garbage, 502, "no ", 1),
        (Behaviour::Garbage("{\"error\": \"overloaded\"}"), FaultKind::Garbage, 502, "overloaded", 1),
    ];
    for (behaviour, kind, status, part, tries) in cases {
        for as_stream in [false, true] {
            let (got, message, fault, tried) = failing(behaviour.clone(), as_stream).await;
            assert_eq!(got, status, "{behaviour:?} {message}");
            assert!(message.starts_with("http://127.0.0.1:"), "{message}");
            assert!(message.contains(part), "{behaviour:?} {message}");
            let fault = fault.unwrap();
            assert_eq!((fault.kind, fault.status), (kind, status), "{behaviour:?}");
            assert_eq!(tried, tries, "{behaviour:?}");
        }
    }
}

#[tokio::test]
async fn a_plain_reply_that_is_cut_short_is_a_fault() {
    let (status, message, fault, tries) = failing(Behaviour::CutsShort, false).await;
    assert_eq!(status, 502);
    assert!(message.contains("cut the reply short"), "{message}");
    assert_eq!(fault.unwrap().kind, FaultKind::CutShort);
    assert_eq!(tries, 1);
}

#[tokio::test]
async fn a_stream_that_falls_silent_is_a_fault() {
    let behaviour = Behaviour::HeldAfterFirstEvent(Gate::default());
    let (house, server) = House::upstream_with(behaviour, |options| {
        options.idle_limit = Duration::from_millis(100);
    })
    .await;
    let answer = house.send(&streamed("hi")).await;
    assert!(answer.aborted);
    assert!(answer.text.contains("upstream_timed_out"));
    server.wait_for_hang_ups(1).await;
    let fault = house.session.close().await.last_fault.unwrap();
    assert_eq!(fault.kind, FaultKind::TimedOut);
}

#[tokio::test]
async fn passing_troubles_are_tried_again_before_the_first_byte() {
    for status in [429, 500, 503] {
        for body in [user("hi"), streamed("hi")] {
            let behaviour = Behaviour::RefusesFirst {
                times: 2,
                status,
                retry_after: Some("0"),
            };
            let (house, server) = House::upstream(behaviour).await;
            let answer = house.send(&body).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            assert_eq!(server.requests().len(), 3);
            // The caller asked once, so there is one record.
            assert_eq!(house.store.calls().len(), 1);
            assert_eq!(house.session.close().await.last_fault, None);
        }
    }
}

#[tokio::test]
async fn retry_after_is_waited_for() {
    let behaviour = Behaviour::RefusesFirst {
        times: 1,
        status: 429,
        retry_after: Some("1"),
    };
    let (house, server) = House::upstream(behaviour).await;
    let started = std::time::Instant::now();
    assert_eq!(house.send(&user("hi")).await.status, 200);
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn the_fault_of_a_door_is_forgotten_when_a_later_call_succeeds() {
    let behaviour = Behaviour::RefusesFirst {
        times: 3,
        status: 500,
        retry_after: None,
    };
    let (house, _server) = House::upstream(behaviour).await;
    assert_eq!(house.send(&user("hi")).await.status, 500);
    assert_eq!(house.send(&user("hi")).await.status, 200);
    let calls = house.session.close().await;
    assert_eq!(calls.summary.model_calls, 2);
    assert_eq!(calls.last_fault, None);
}

#[tokio::test]
async fn a_refusal_that_is_the_callers_fault_passes_as_it_is_without_the_key() {
    for status in [400, 413, 422] {
        let (house, server) = House::upstream(Behaviour::Refuses { status }).await;
        let answer = house.send(&user("hi")).await;
        assert_eq!(answer.status, status);
        assert_eq!(
            answer.json(),
            json!({"error": {"message": "refused, as always, with Bearer [redacted]", "type": "fake_error", "param": null, "code": null}})
        );
        assert_eq!(server.requests().len(), 1);
        let call = &house.store.calls()[0];
        assert!(call.error.as_deref().unwrap().contains(&status.to_string()));
        assert_eq!(house.session.close().await.last_fault, None);
    }
}

#[tokio::test]
async fn the_upstream_is_told_who_asks_and_gets_its_own_key() {
    let (house, server) = House::upstream(Behaviour::Answers).await;
    let call = house
        .post(user("hi").to_string())
        .header("x-sample-id", "judge%20%E2%9C%93%25");
    assert_eq!(call.send().await.unwrap().status(), 200);
    let headers = &server.requests()[0].headers;
    assert_eq!(headers["authorization"], format!("Bearer {API_KEY}"));
    assert_eq!(headers["x-rollout-id"], "r1-0");
    assert_eq!(headers["x-sample-id"], "judge %E2%9C%93%25");
    assert_eq!(headers["content-type"], "application/json");
    assert!(!format!("{headers:?}").contains(house.session.key()));
    assert_eq!(server.requests()[0].body["model"], "real-model");
}

#[tokio::test]
async fn a_slow_upstream_within_its_limit_is_waited_for() {
    let behaviour = Behaviour::SlowFirstByte(Duration::from_millis(200));
    let (house, _server) = House::upstream(behaviour).await;
    assert_eq!(house.send(&user("hi")).await.status, 200);
}
