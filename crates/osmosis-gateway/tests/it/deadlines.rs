//! Whose time it is that passes while an upstream fails or says nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use osmosis_core::TaskClock;
use osmosis_gateway::FaultKind;
use osmosis_testkit::model_server::{Behaviour, Gate, ModelServer};
use tokio::task::JoinSet;

use crate::fixture::{House, streamed, user};

async fn timed(behaviour: Behaviour, limit: Duration) -> (House, ModelServer, Arc<TaskClock>) {
    let (house, server) = House::upstream(behaviour).await;
    let clock = Arc::new(TaskClock::new(limit));
    clock.start(Instant::now());
    house.session.keep_time(Arc::clone(&clock));
    (house, server, clock)
}

fn silent() -> Behaviour {
    Behaviour::Held(Gate::default())
}

#[tokio::test]
async fn a_silent_upstream_is_given_up_before_the_deadline_of_the_task_and_named() {
    for body in [user("hi"), streamed("hi")] {
        let limit = Duration::from_secs(1);
        let (house, server, clock) = timed(silent(), limit).await;
        let answer = house.send(&body).await;
        assert_eq!(answer.status, 504);
        assert_eq!(answer.headers["x-should-retry"], "false");
        let message = answer.error_message();
        assert!(message.starts_with(server.url()), "{message}");
        assert!(message.contains("had sent no answer after "), "{message}");
        assert!(message.contains("deadline is near"), "{message}");
        // The time was not the task's: it has as much again.
        assert!(clock.lost() > limit / 10, "{clock:?}");
        assert!(!clock.may_be_over(Instant::now()));
        let calls = house.session.close().await;
        assert_eq!(calls.last_fault.unwrap().kind, FaultKind::TimedOut);
    }
}

#[tokio::test]
async fn whoever_gives_up_on_a_silent_upstream_suffered_it() {
    for body in [user("hi"), streamed("hi")] {
        let (house, server, clock) = timed(silent(), Duration::from_mins(5)).await;
        let mut call = Box::pin(house.post(body.to_string()).send());
        tokio::select! {
            _ = &mut call => panic!("answered although the gate is shut"),
            () = server.wait_for_requests(1) => drop(call),
        }
        house.store.wait_for(1).await;
        let calls = house.session.close().await;
        let fault = calls.last_fault.clone().unwrap();
        assert_eq!(fault.kind, FaultKind::TimedOut);
        assert!(fault.message.contains("had sent no answer"), "{fault}");
        assert_eq!(calls.fault_behind(false), Some(&fault));
        assert_eq!(
            calls.fault_behind(true),
            Some(&fault),
            "before the deadline"
        );
        assert!(clock.lost() < Duration::from_mins(1));
    }
}

#[tokio::test]
async fn a_call_that_waits_when_the_door_is_closed_counts_like_one_that_was_given_up() {
    let (house, server, _clock) = timed(silent(), Duration::from_mins(5)).await;
    let mut call = JoinSet::new();
    call.spawn(house.post(user("hi").to_string()).send());
    server.wait_for_requests(1).await;
    let calls = house.session.close().await;
    assert_eq!(calls.last_fault.unwrap().kind, FaultKind::TimedOut);
    let answer = call.join_next().await.unwrap().unwrap();
    assert_eq!(answer.unwrap().status(), 410);
}

#[tokio::test]
async fn an_answer_that_is_slow_when_the_task_ends_is_no_fault_of_a_task_that_timed_out() {
    let over = Arc::new(TaskClock::new(Duration::from_hours(1)));
    over.start(Instant::now().checked_sub(Duration::from_hours(1)).unwrap());
    let (house, server) = House::upstream(silent()).await;
    house.session.keep_time(over);
    let mut call = JoinSet::new();
    call.spawn(house.post(user("hi").to_string()).send());
    server.wait_for_requests(1).await;
    let calls = house.session.close().await;
    drop(call);
    assert_eq!(calls.last_fault, None);
    assert_eq!(calls.fault_behind(true), None);
    assert!(calls.fault_behind(false).is_some());
}

#[tokio::test]
async fn retries_and_their_waits_are_not_the_tasks_time() {
    let behaviour = Behaviour::RefusesFirst {
        times: 2,
        status: 429,
        retry_after: Some("0.2"),
    };
    let (house, _server, clock) = timed(behaviour, Duration::from_mins(1)).await;
    assert_eq!(house.send(&user("hi")).await.status, 200);
    let lost = clock.lost();
    assert!(lost >= Duration::from_millis(400), "{lost:?}");
    assert!(lost < Duration::from_secs(30), "{lost:?}");
    let calls = house.session.close().await;
    assert_eq!(calls.fault_behind(true), None);
}

#[tokio::test]
async fn a_task_that_others_time_is_late_because_of_what_its_calls_lost() {
    let behaviour = Behaviour::RefusesFirst {
        times: 2,
        status: 500,
        retry_after: Some("0.2"),
    };
    let (house, _server) = House::upstream(behaviour).await;
    let clock = Arc::new(TaskClock::kept_elsewhere(Duration::from_secs(2)));
    house.session.keep_time(clock);
    assert_eq!(house.send(&user("hi")).await.status, 200);
    let calls = house.session.close().await;
    assert_eq!(calls.fault_behind(false), None);
    let fault = calls.fault_behind(true).unwrap();
    assert_eq!(fault.kind, FaultKind::ServerError);
}

#[tokio::test]
async fn connections_that_break_and_answers_in_turn_are_ridden_out() {
    let behaviour = Behaviour::InTurn(vec![
        Behaviour::Resets,
        Behaviour::Refuses { status: 503 },
        Behaviour::Answers,
    ]);
    let (house, server, _clock) = timed(behaviour, Duration::from_mins(1)).await;
    for _ in 0..3 {
        assert_eq!(house.send(&user("hi")).await.status, 200);
    }
    assert_eq!(server.requests().len(), 9);
    assert_eq!(house.session.close().await.last_fault, None);
}

#[tokio::test]
async fn the_last_call_of_each_sample_decides() {
    let behaviour = Behaviour::InTurn(vec![
        Behaviour::Refuses { status: 401 },
        Behaviour::Answers,
        Behaviour::Refuses { status: 400 },
    ]);
    let (house, _server) = House::upstream(behaviour).await;
    let send = async |sample: &str| {
        let call = house.post(user("hi").to_string());
        let answer = call.header("x-sample-id", sample).send().await.unwrap();
        answer.status().as_u16()
    };
    assert_eq!(send("a").await, 401);
    assert_eq!(send("b").await, 200);
    assert_eq!(send("b").await, 400);
    let calls = house.session.close().await;
    assert_eq!(calls.last_fault.unwrap().kind, FaultKind::Misconfigured);

    let behaviour = Behaviour::InTurn(vec![
        Behaviour::Refuses { status: 401 },
        Behaviour::Refuses { status: 413 },
    ]);
    let (house, _server) = House::upstream(behaviour).await;
    assert_eq!(house.send(&user("hi")).await.status, 401);
    assert_eq!(house.send(&user("hi")).await.status, 413);
    assert_eq!(
        house.session.close().await.last_fault,
        None,
        "the last one was the agent's"
    );
}
