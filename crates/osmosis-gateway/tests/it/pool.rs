//! Several endpoints behind one policy.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use osmosis_gateway::{BreakerSettings, FaultKind, Health, QueueLimits};

use crate::fixture::{Answer, streamed, user};
use crate::fleet::{Fleet, Mode, Peer, options_for};

#[tokio::test]
async fn a_rollout_stays_with_an_endpoint_and_rollouts_are_spread() {
    let (a, b) = (Peer::start("a").await, Peer::start("b").await);
    let fleet = Fleet::start(options_for(&[&a, &b])).await;
    let mut used = BTreeSet::new();
    for row in 0..6 {
        let session = fleet.session(row);
        let first = fleet.who_answers(&session).await;
        for _ in 0..4 {
            assert_eq!(fleet.who_answers(&session).await, first);
        }
        used.insert(first);
    }
    assert_eq!(used.len(), 2, "both are used");
    // A key that is many callers' is not pinned.
    let name = osmosis_core::RolloutId::new("standing").unwrap();
    let session = fleet.gateway.open_standing(name);
    let mut used = BTreeSet::new();
    for _ in 0..4 {
        used.insert(fleet.who_answers(&session).await);
    }
    assert_eq!(used.len(), 2);
}

#[tokio::test]
async fn calls_under_way_are_spread_by_load() {
    let peers = [
        Peer::start("a").await,
        Peer::start("b").await,
        Peer::start("c").await,
    ];
    let fleet = Fleet::start(options_for(&[&peers[0], &peers[1], &peers[2]])).await;
    for peer in &peers {
        peer.set(Mode::Held);
    }
    let sessions: Vec<_> = (0..9).map(|row| fleet.session(row)).collect();
    let calls = join_all(sessions.iter().map(|session| fleet.who_answers(session)));
    let release = async {
        for peer in &peers {
            peer.wait_for_arrivals(3).await;
        }
        let loads: Vec<u32> = fleet
            .status()
            .endpoints
            .iter()
            .map(|e| e.in_flight)
            .collect();
        assert_eq!(loads, [3, 3, 3]);
        for peer in &peers {
            peer.set(Mode::Answers);
        }
    };
    tokio::join!(calls, release);
    assert!(fleet.status().endpoints.iter().all(|e| e.in_flight == 0));
}

#[tokio::test]
async fn a_call_that_fails_at_one_endpoint_is_answered_by_another_at_once() {
    for status in [429, 500, 503] {
        let (a, b) = (Peer::start("a").await, Peer::start("b").await);
        a.set(Mode::Refuses(status));
        // Waiting before the retry would take an hour.
        let fleet = Fleet::start(options_for(&[&a, &b])).await;
        let session = fleet.session(0);
        for body in [user("hi"), streamed("hi")] {
            let answer = Answer::of(fleet.post(&session, &body).send().await.unwrap()).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
        }
        // The first call went to `a` first; the rollout then stays where it was answered.
        assert_eq!((a.arrivals(), b.arrivals()), (1, 2));
        let calls = fleet.store.calls();
        assert_eq!(calls.len(), 2);
        assert!(
            calls
                .iter()
                .all(|call| call.upstream == b.url && call.error.is_none())
        );
        assert_eq!(session.close().await.last_fault, None);
    }
}

#[tokio::test]
async fn an_endpoint_that_is_gone_is_failed_over_too() {
    let b = Peer::start("b").await;
    let gone = Peer::start("gone").await;
    let options = options_for(&[&gone, &b]);
    drop(gone);
    let fleet = Fleet::start(options).await;
    assert_eq!(fleet.who_answers(&fleet.session(0)).await, "b");
}

#[tokio::test]
async fn a_breaker_opens_and_closes_again_when_a_health_check_and_a_call_succeed() {
    let (a, b) = (Peer::start("a").await, Peer::start("b").await);
    let mut options = options_for(&[&a, &b]);
    options.breaker = BreakerSettings {
        failures: 3,
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(20),
    };
    let fleet = Fleet::start(options).await;
    a.set(Mode::Refuses(500));
    // Every new rollout begins at the endpoint whose turn it is.
    for row in 0..20 {
        assert_eq!(fleet.who_answers(&fleet.session(row)).await, "b");
    }
    assert_eq!(a.arrivals(), 3, "no call goes there while it is open");
    let seen = fleet.status().endpoints[0].clone();
    assert_eq!(seen.health, Health::Open);
    assert!(seen.last_error.unwrap().contains("status 500"));
    // Health checks that fail keep it open.
    a.wait_for_checks(3).await;
    assert_eq!(fleet.status().endpoints[0].health, Health::Open);
    a.set(Mode::Answers);
    fleet
        .until(|status| status.endpoints[0].health == Health::HalfOpen)
        .await;
    let mut row = 100;
    while fleet.status().endpoints[0].health != Health::Closed {
        fleet.who_answers(&fleet.session(row)).await;
        row += 1;
        assert!(row < 110, "nobody tried it");
    }
    assert_eq!(a.arrivals(), 4);
}

#[tokio::test]
async fn when_all_are_open_calls_fail_without_asking() {
    let a = Peer::start("a").await;
    let mut options = options_for(&[&a]);
    options.retries = 0;
    options.breaker = BreakerSettings {
        failures: 1,
        first_wait: Duration::from_hours(1),
        longest_wait: Duration::from_hours(1),
    };
    let fleet = Fleet::start(options).await;
    a.set(Mode::Refuses(500));
    let session = fleet.session(0);
    assert_eq!(fleet.ask(&session).await.status, 500);
    let answer = fleet.ask(&session).await;
    assert_eq!(answer.status, 503);
    let message = answer.error_message();
    assert!(
        message.contains("left alone") && message.contains("status 500"),
        "{message}"
    );
    assert_eq!(a.arrivals(), 1);
    assert_eq!(fleet.store.calls()[1].sent_at_ms, None);
    assert_eq!(
        session.close().await.last_fault.unwrap().kind,
        FaultKind::Unreachable
    );
}

#[tokio::test]
async fn an_endpoint_that_complains_of_too_many_is_given_fewer() {
    let a = Peer::start("a").await;
    a.set(Mode::Takes(4));
    let mut options = options_for(&[&a]);
    options.retries = 1_000;
    options.first_retry_wait = Duration::from_millis(1);
    options.longest_retry_wait = Duration::from_millis(5);
    let fleet = Fleet::start(options).await;
    assert_eq!(fleet.status().endpoints[0].limit, None);
    let sessions: Vec<_> = (0..64).map(|row| fleet.session(row)).collect();
    for _ in 0..3 {
        join_all(sessions.iter().map(|session| fleet.who_answers(session))).await;
    }
    let first_waves = a.arrivals();
    let limit = fleet.status().endpoints[0].limit.unwrap();
    assert!(limit <= 8, "{limit}");
    join_all(sessions.iter().map(|session| fleet.who_answers(session))).await;
    let refused = a.arrivals() - first_waves - 64;
    assert!(refused < 64, "{refused} refusals in a wave of 64");
    assert_eq!(
        fleet.status().endpoints[0].health,
        Health::Closed,
        "429 is a sign of life"
    );
    assert_eq!(fleet.store.calls().len(), 4 * 64);
}

#[tokio::test]
async fn beyond_the_queue_a_call_is_refused_with_a_time_to_come_back() {
    let a = Peer::start("a").await;
    let mut options = options_for(&[&a]);
    options.endpoints[0].max_in_flight = Some(1);
    options.queue = QueueLimits {
        length: 1,
        wait: Duration::from_mins(1),
    };
    let fleet = Fleet::start(options).await;
    a.set(Mode::Held);
    let (first, second, third) = (fleet.session(0), fleet.session(1), fleet.session(2));
    let rest = async {
        a.wait_for_arrivals(1).await;
        let queued = fleet.ask(&second);
        let more = async {
            fleet.until(|status| status.queued == 1).await;
            let answer = fleet.ask(&third).await;
            assert_eq!(answer.status, 429);
            assert_eq!(answer.headers["retry-after"], "1");
            assert_eq!(answer.headers["x-should-retry"], "true");
            assert!(answer.error_message().contains("1 calls wait already"));
            a.set(Mode::Answers);
        };
        tokio::join!(queued, more).0
    };
    let (one, two) = tokio::join!(fleet.ask(&first), rest);
    assert_eq!((one.status, two.status), (200, 200));
    let calls = fleet.store.calls();
    let refused = &calls[0];
    assert!(
        refused
            .error
            .as_deref()
            .unwrap()
            .starts_with("gateway_queue_full: ")
    );
    assert_eq!(refused.sent_at_ms, None);
    let waited = calls
        .iter()
        .find(|call| call.rollout_id.as_str() == "r1-0")
        .unwrap();
    assert!(waited.sent_at_ms.unwrap() >= waited.queued_at_ms);
    let fault = third.close().await.last_fault.unwrap();
    assert_eq!(fault.kind, FaultKind::QueueFull);
}

#[tokio::test]
async fn nobody_waits_longer_than_the_queue_allows_and_those_who_leave_make_room() {
    let a = Peer::start("a").await;
    let mut options = options_for(&[&a]);
    options.endpoints[0].max_in_flight = Some(1);
    options.queue.wait = Duration::from_millis(30);
    let fleet = Fleet::start(options).await;
    a.set(Mode::Held);
    let (first, second) = (fleet.session(0), fleet.session(1));
    let rest = async {
        a.wait_for_arrivals(1).await;
        let answer = fleet.ask(&second).await;
        assert_eq!(answer.status, 429);
        assert!(
            answer
                .error_message()
                .contains("no endpoint had room for 30ms")
        );
        assert_eq!(fleet.status().queued, 0);
        a.set(Mode::Answers);
    };
    assert_eq!(tokio::join!(fleet.ask(&first), rest).0.status, 200);

    let mut options = options_for(&[&a]);
    options.endpoints[0].max_in_flight = Some(1);
    let fleet = Fleet::start(options).await;
    a.set(Mode::Held);
    let (first, second) = (fleet.session(0), fleet.session(1));
    let before = a.arrivals();
    let rest = async {
        a.wait_for_arrivals(before + 1).await;
        let mut gone = Box::pin(fleet.ask(&second));
        tokio::select! {
            _ = &mut gone => panic!("it was answered"),
            () = fleet.until(|status| status.queued == 1) => drop(gone),
        }
        fleet.until(|status| status.queued == 0).await;
        a.set(Mode::Answers);
    };
    assert_eq!(tokio::join!(fleet.ask(&first), rest).0.status, 200);
    assert_eq!(fleet.status().endpoints[0].in_flight, 0);
    assert_eq!(fleet.who_answers(&fleet.session(2)).await, "a");
}
