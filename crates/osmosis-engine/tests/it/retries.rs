//! Attempts that come to nothing, and what follows.

use osmosis_core::execution::{Isolation, LossCause};
use osmosis_core::{OutcomeKind, Phase};
use osmosis_engine::{ModelFault, RunEnd, RunEvent};
use tokio::time::Instant;

use crate::fake_executor::Play;
use crate::house::{House, RETRY_WAIT};

fn fault(worth_retrying: bool) -> ModelFault {
    ModelFault {
        code: "upstream_unreachable",
        message: "upstream is down".to_owned(),
        worth_retrying,
    }
}

#[tokio::test(start_paused = true)]
async fn an_infrastructure_failure_is_retried_after_a_wait_that_doubles() {
    let mut house = House::of(1, 1);
    for _ in 0..2 {
        house.sessions.fails(0, fault(true));
    }
    let began = Instant::now();
    assert_eq!(house.run().await.unwrap(), RunEnd::Complete);
    assert_eq!(began.elapsed(), 3 * RETRY_WAIT, "once, then twice");
    assert_eq!(house.queue.tried(0), (3, 0, 2));
    assert_eq!(house.outcomes(1), ["scored"]);
    let waits: Vec<_> = house
        .events()
        .into_iter()
        .filter_map(|event| match event {
            RunEvent::Retrying { wait, .. } => Some(wait),
            _ => None,
        })
        .collect();
    assert_eq!(waits, [RETRY_WAIT, 2 * RETRY_WAIT]);
}

#[tokio::test(start_paused = true)]
async fn after_enough_infrastructure_failures_a_rollout_is_given_up_without_a_reward() {
    let house = House::of(2, 2);
    for _ in 0..3 {
        house.sessions.fails(0, fault(true));
    }
    house.sessions.fails(1, fault(false));
    assert_eq!(house.run().await.unwrap(), RunEnd::Complete);
    for (row, attempts) in [(0, 3), (1, 1)] {
        let done = house.queue.completion(row).unwrap();
        assert_eq!(done.outcome.kind(), OutcomeKind::InfrastructureFailed);
        assert_eq!(done.outcome.reward(), None);
        assert_eq!(house.queue.tried(row).0, attempts);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_loses_its_worker_runs_more_alone_each_time() {
    let house = House::of(1, 1);
    let lost = Play::LosesItsWorker(LossCause::Signalled);
    house
        .executor
        .plays(0, Phase::Agent, [lost.clone(), lost.clone()]);
    house.executor.plays(0, Phase::Grade, [lost]);
    assert_eq!(house.run().await.unwrap(), RunEnd::Complete);
    assert_eq!(house.outcomes(1), ["scored"]);
    let executed = house.executor.executed();
    let isolations: Vec<_> = executed
        .iter()
        .map(|one| (one.phase, one.isolation, one.attempt.0))
        .collect();
    assert_eq!(
        isolations,
        [
            (Phase::Agent, Isolation::Shared, 1),
            (Phase::Agent, Isolation::Alone, 2),
            (Phase::Agent, Isolation::Solo, 3),
            (Phase::Grade, Isolation::Shared, 3),
            (Phase::Grade, Isolation::Alone, 3),
        ],
        "what an agent did to its worker says nothing about its grader"
    );
}

#[tokio::test(start_paused = true)]
async fn user_code_that_raises_is_not_retried() {
    let house = House::of(2, 2);
    house.executor.plays(0, Phase::Agent, [Play::Raises]);
    house.executor.plays(1, Phase::Grade, [Play::Raises]);
    assert_eq!(house.run().await.unwrap(), RunEnd::Complete);
    assert_eq!(house.outcomes(2), ["agent_failed", "ungraded"]);
    assert_eq!(
        (house.queue.tried(0), house.queue.tried(1)),
        ((1, 0, 0), (1, 0, 0))
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_that_stops_now_does_not_sit_out_the_wait_before_a_retry() {
    let house = House::of(1, 1);
    house.sessions.fails(0, fault(true));
    let began = Instant::now();
    let (end, ()) = tokio::join!(house.run(), async {
        house.executor.begun(1).await;
        tokio::task::yield_now().await;
        house.stop.drain.cancel();
        house.stop.now.cancel();
    });
    assert_eq!(end.unwrap(), RunEnd::Stopped { left: 1 });
    assert_eq!(began.elapsed().as_millis(), 0);
    assert_eq!(house.queue.tried(0), (1, 0, 1), "it still counts");
}
