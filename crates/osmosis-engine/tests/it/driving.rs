//! A run from its first claim to its end.

use std::time::Duration;

use osmosis_core::{Outcome, Phase};
use osmosis_engine::{EngineErrorKind, RunEnd, RunEvent};

use crate::fake_executor::Play;
use crate::fake_sessions::{ADVERTISED, FakeSessions};
use crate::house::{House, LEASE, within};

#[tokio::test(start_paused = true)]
async fn every_rollout_is_run_graded_and_recorded() {
    let mut house = House::with(3, 2, FakeSessions::with_judge());
    assert_eq!(house.run().await.unwrap(), RunEnd::Complete);
    assert_eq!(house.outcomes(3), ["scored", "scored", "scored"]);

    let done = house.queue.completion(0).unwrap();
    assert!(matches!(
        &done.outcome,
        Outcome::Scored { passed: true, .. }
    ));
    assert_eq!(done.samples.len(), 1);
    assert_eq!((done.calls.model_calls, done.calls.judge.calls), (1, 1));

    let executed = house.executor.executed();
    let of_first: Vec<_> = executed
        .iter()
        .filter(|one| one.rollout.as_str() == "r0-0")
        .map(|one| (one.phase, one.access.clone().unwrap(), one.label.clone()))
        .collect();
    let access = |key: &str| (ADVERTISED.to_owned(), key.to_owned());
    let label = Some("42".to_owned());
    assert_eq!(
        of_first,
        [
            (Phase::Agent, access("r0-0#1"), label.clone()),
            (Phase::Grade, access("r0-0#1 judge"), label),
        ]
    );
    assert_eq!(house.sessions.open_keys(), [""; 0]);
    assert_eq!(house.sessions.ended_keys().len(), 6);

    let events = house.events();
    assert!(matches!(events[0], RunEvent::Began { total: 3, done: 0 }));
    let finished = |event: &&RunEvent| matches!(event, RunEvent::Finished { .. });
    assert_eq!(events.iter().filter(finished).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn no_more_rollouts_are_under_way_than_allowed() {
    let house = House::of(5, 2);
    for row in 0..5 {
        let work = Play::WorksAfter(Duration::from_secs(10));
        house.executor.plays(row, Phase::Agent, [work]);
    }
    let began = tokio::time::Instant::now();
    assert_eq!(house.run().await.unwrap(), RunEnd::Complete);
    assert_eq!(began.elapsed().as_secs(), 30, "two at once, five in all");
}

#[tokio::test(start_paused = true)]
async fn leases_are_kept_while_a_rollout_takes_longer_than_one() {
    let house = House::of(1, 1);
    let work = Play::WorksAfter(10 * LEASE);
    house.executor.plays(0, Phase::Agent, [work]);
    assert_eq!(house.run().await.unwrap(), RunEnd::Complete);
    assert_eq!(house.queue.tried(0), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_rollout_whose_lease_is_lost_is_cancelled_and_leaves_no_result() {
    for phase in [Phase::Agent, Phase::Grade] {
        let house = House::of(2, 2);
        house.executor.plays(0, phase, [Play::UntilCancelled]);
        let (end, ()) = tokio::join!(house.run(), async {
            house.executor.begun(3).await;
            house.queue.taken_over(0);
        });
        assert_eq!(end.unwrap(), RunEnd::Stopped { left: 1 }, "another has it");
        assert_eq!(house.executor.cancelled(), 1);
        assert_eq!(house.outcomes(2), ["-", "scored"], "{phase}");
        assert_eq!(house.sessions.open_keys(), [""; 0]);
        assert_eq!(
            house.queue.tried(0),
            (2, 0, 0),
            "what is another's is not released"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_comes_after_the_lease_was_lost_is_not_told_as_one() {
    let mut house = House::of(1, 1);
    let work = Play::WorksAfter(Duration::from_secs(1));
    house.executor.plays(0, Phase::Grade, [work]);
    let (end, ()) = tokio::join!(house.run(), async {
        house.executor.begun(2).await;
        house.queue.taken_over(0);
    });
    assert_eq!(end.unwrap(), RunEnd::Stopped { left: 1 });
    let events = house.events();
    let finished = |event: &RunEvent| matches!(event, RunEvent::Finished { .. });
    assert!(!events.iter().any(finished), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_drain_finishes_what_runs_and_begins_nothing() {
    let mut house = House::of(4, 2);
    for row in 0..4 {
        let work = Play::WorksAfter(Duration::from_secs(10));
        house.executor.plays(row, Phase::Agent, [work]);
    }
    let (end, ()) = tokio::join!(house.run(), async {
        house.executor.begun(2).await;
        house.stop.drain.cancel();
    });
    assert_eq!(end.unwrap(), RunEnd::Stopped { left: 2 });
    assert_eq!(house.outcomes(4), ["scored", "scored", "-", "-"]);
    assert_eq!(house.queue.tried(2), (0, 0, 0));
    let draining = |event: &RunEvent| matches!(event, RunEvent::Draining { in_flight: 2 });
    assert!(house.events().iter().any(draining));
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_now_puts_back_what_runs() {
    let house = House::of(3, 2);
    for row in 0..3 {
        house
            .executor
            .plays(row, Phase::Agent, [Play::UntilCancelled]);
    }
    let (end, ()) = tokio::join!(house.run(), async {
        house.executor.begun(2).await;
        house.stop.drain.cancel();
        house.stop.now.cancel();
    });
    assert_eq!(end.unwrap(), RunEnd::Stopped { left: 3 });
    assert_eq!(house.executor.cancelled(), 2);
    for row in 0..2 {
        let untouched = house.queue.completion(row).is_none();
        assert!(untouched && house.queue.tried(row) == (1, 0, 0), "{row}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_spent_drains_the_run() {
    let house = House::of(3, 1);
    let queue = std::sync::Arc::clone(&house.queue);
    let engine = house.engine.clone();
    let engine = engine.begins_while(move || queue.completion(1).is_none());
    let end = within(engine.run(&house.stop)).await.unwrap();
    assert_eq!(end, RunEnd::Stopped { left: 1 });
    assert_eq!(house.outcomes(3), ["scored", "scored", "-"]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_can_not_serve_the_run_ends_it_at_once_and_nothing_is_recorded() {
    let house = House::of(8, 4);
    for row in 0..4 {
        house
            .executor
            .plays(row, Phase::Agent, [Play::UntilCancelled]);
    }
    let (run, ()) = tokio::join!(house.run(), async {
        house.executor.begun(4).await;
        house
            .sessions
            .is_unusable("the chat template of `m` ignores `tools`: search");
    });
    let error = run.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the chat template of `m` ignores `tools`: search"
    );
    assert_eq!(error.kind(), EngineErrorKind::Unusable);
    assert_eq!(error.hint().as_deref(), Some("do something"));
    assert_eq!(house.outcomes(8), ["-"; 8]);
}

#[tokio::test(start_paused = true)]
async fn what_user_code_raises_names_the_users_endpoint_and_not_the_gateways_address() {
    let house = House::of(1, 1);
    house
        .executor
        .plays(0, Phase::Agent, [Play::RaisesTheAddress]);
    house.run().await.unwrap();
    let outcome = house.queue.completion(0).unwrap().outcome;
    let Outcome::AgentFailed { failure } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(
        failure.message,
        "Client error '400' for url 'https://models.example/v1/chat/completions'"
    );
    let traceback = failure.traceback.unwrap();
    assert!(
        traceback.ends_with("GET https://models.example/v1/models"),
        "{traceback}"
    );
}
