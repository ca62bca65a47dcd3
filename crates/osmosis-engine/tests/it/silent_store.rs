//! A store that stops answering: with errors, or not at all.

use std::sync::Arc;
use std::time::Duration;

use osmosis_core::Phase;
use osmosis_engine::{EngineError, EngineErrorKind};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::fake_executor::Play;
use crate::house::{House, LEASE, within};
use crate::memory_queue::Operation;

/// Two rollouts run until they are cancelled, a third one for ten seconds.
fn house() -> House {
    let house = House::of(4, 3);
    for row in 0..2 {
        house
            .executor
            .plays(row, Phase::Agent, [Play::UntilCancelled]);
    }
    let work = Play::WorksAfter(Duration::from_secs(10));
    house.executor.plays(2, Phase::Agent, [work]);
    house
}

fn nothing_is_left_of(house: &House) {
    assert_eq!(house.executor.under_way(), 0, "user code is let go");
    assert_eq!(house.sessions.open_keys(), [""; 0], "no key opens anything");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_ends_the_run_and_lets_go_of_what_runs() {
    for operation in [Operation::Claim, Operation::Heartbeat, Operation::Complete] {
        let house = house();
        let (end, ()) = tokio::join!(house.run(), async {
            house.executor.begun(3).await;
            house.queue.fails(operation);
        });
        let error = end.unwrap_err();
        assert!(
            matches!(error, EngineError::Store(_)),
            "{operation:?}: {error}"
        );
        assert_eq!(error.kind(), EngineErrorKind::Resumable);
        nothing_is_left_of(&house);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_ends_the_run_after_a_lease() {
    for operation in [Operation::Claim, Operation::Heartbeat, Operation::Complete] {
        let house = house();
        let began = Instant::now();
        let (end, ()) = tokio::join!(house.run(), async {
            house.executor.begun(3).await;
            house.queue.hangs(operation);
        });
        let error = end.unwrap_err();
        assert!(
            matches!(error, EngineError::StoreSilent { waited } if waited == LEASE),
            "{operation:?}: {error}"
        );
        assert_eq!(error.kind(), EngineErrorKind::Resumable);
        // It stops to answer within a heartbeat, or when the third rollout is done.
        assert!(began.elapsed() <= LEASE + LEASE / 3, "{operation:?}");
        nothing_is_left_of(&house);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_while_the_store_is_silent_ends_too() {
    let house = house();
    let (end, ()) = tokio::join!(house.run(), async {
        house.executor.begun(3).await;
        house.queue.hangs(Operation::Release);
        house.stop.drain.cancel();
        house.stop.now.cancel();
    });
    assert!(matches!(end, Err(EngineError::StoreSilent { .. })));
    nothing_is_left_of(&house);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_serves_ends_with_its_store() {
    let house = House::serving(1, 1);
    house
        .executor
        .plays(0, Phase::Agent, [Play::UntilCancelled]);
    let wake = Arc::new(Notify::new());
    let (served, ()) = within(async {
        tokio::join!(house.engine.serve(&house.stop, &wake), async {
            house.executor.begun(1).await;
            house.queue.hangs(Operation::Heartbeat);
        })
    })
    .await;
    assert!(matches!(served, Err(EngineError::StoreSilent { .. })));
    nothing_is_left_of(&house);
}
