//! A run that grades the samples of another.

use std::sync::Arc;
use std::time::Duration;

use osmosis_core::{Phase, RolloutId};
use osmosis_engine::{RunEnd, RunEvent};
use osmosis_store::Records as _;

use crate::fake_executor::Play;
use crate::house::House;
use crate::memory_queue::MemoryQueue;

/// Nobody reads the events while an engine runs here, and they must find room.
const ROLLOUTS: u64 = 240;

/// A finished run.
async fn recorded() -> Arc<MemoryQueue> {
    let house = House::of(ROLLOUTS, 64);
    assert_eq!(house.run().await.unwrap(), RunEnd::Complete);
    house.queue
}

/// The rows in the order in which they are claimed.
fn in_order() -> Vec<u64> {
    let mut rows: Vec<u64> = (0..ROLLOUTS).collect();
    rows.sort_by_key(|row| RolloutId::of(*row, 0));
    rows
}

#[tokio::test(start_paused = true)]
async fn quick_graders_do_not_wait_for_one_claim_each_and_no_more_run_than_may() {
    let recorded = recorded().await;
    let house = House::regrading(&recorded, ROLLOUTS, 4);
    for row in 0..ROLLOUTS {
        let work = Play::WorksAfter(Duration::from_millis(1));
        house.executor.plays(row, Phase::Grade, [work]);
    }
    assert_eq!(house.run().await.unwrap(), RunEnd::Complete);
    assert_eq!(house.outcomes(ROLLOUTS), ["scored"; 240]);
    let executed = house.executor.executed();
    assert_eq!(executed.len(), 240);
    assert!(executed.iter().all(|one| one.phase == Phase::Grade));
    assert_eq!(house.executor.most_under_way(), 4);
    let claims = house.queue.claims();
    assert!(claims < 60, "{claims} claims of 240 rollouts");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_turn_goes_back_when_the_run_is_asked_to_stop() {
    let recorded = recorded().await;
    let mut house = House::regrading(&recorded, ROLLOUTS, 4);
    for (place, row) in in_order().into_iter().enumerate() {
        let time = if place < 100 {
            Duration::from_millis(1)
        } else {
            Duration::from_secs(10)
        };
        let work = Play::WorksAfter(time);
        house.executor.plays(row, Phase::Grade, [work]);
    }
    let began = tokio::time::Instant::now();
    let (end, held) = tokio::join!(house.run(), async {
        house.executor.begun(104).await;
        let held = house.queue.counts().await.unwrap().leased;
        house.stop.drain.cancel();
        held
    });
    assert!(held > 4, "{held} were claimed: some wait for their turn");
    assert_eq!(end.unwrap(), RunEnd::Stopped { left: 136 });
    assert_eq!(
        began.elapsed().as_secs(),
        10,
        "those that were with a grader"
    );
    assert_eq!(house.queue.counts().await.unwrap().leased, 0);
    let told = house.events().into_iter().find_map(|event| match event {
        RunEvent::Draining { in_flight } => Some(in_flight),
        _ => None,
    });
    assert_eq!(told, Some(4));
}

#[tokio::test(start_paused = true)]
async fn a_grader_that_takes_its_time_has_nothing_claimed_ahead() {
    let recorded = recorded().await;
    let house = House::regrading(&recorded, ROLLOUTS, 2);
    for row in 0..ROLLOUTS {
        let work = Play::WorksAfter(Duration::from_secs(5));
        house.executor.plays(row, Phase::Grade, [work]);
    }
    let (end, held) = tokio::join!(house.run(), async {
        house.executor.begun(8).await;
        let held = house.queue.counts().await.unwrap().leased;
        house.stop.now.cancel();
        house.stop.drain.cancel();
        held
    });
    assert!(held <= 4, "{held} were claimed for two graders");
    assert!(matches!(end.unwrap(), RunEnd::Stopped { .. }));
}
