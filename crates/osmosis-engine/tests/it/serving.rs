//! A queue that never ends.

use std::sync::Arc;
use std::time::Duration;

use osmosis_core::{OutcomeKind, Phase, RolloutId};
use osmosis_engine::{Cancellation, EngineError};
use tokio::sync::Notify;

use crate::fake_executor::Play;
use crate::house::{House, within};

/// Serves while `during` goes on, then drains.
async fn serve(
    house: &House,
    wake: &Arc<Notify>,
    during: impl Future<Output = ()>,
) -> Result<(), EngineError> {
    let serving = house.engine.serve(&house.stop, wake);
    let during = async {
        during.await;
        house.stop.drain.cancel();
    };
    let (served, ()) = within(async { tokio::join!(serving, during) }).await;
    served
}

fn kind(house: &House, row: u64) -> Option<OutcomeKind> {
    house.queue.completion(row).map(|done| done.outcome.kind())
}

#[tokio::test(start_paused = true)]
async fn what_is_added_later_is_run_once_the_engine_is_woken() {
    let house = House::serving(0, 2);
    let wake = Arc::new(Notify::new());
    let during = async {
        tokio::time::sleep(Duration::from_hours(1)).await;
        house.queue.add(0);
        wake.notify_one();
        house.executor.begun(2).await;
    };
    serve(&house, &wake, during).await.unwrap();
    assert_eq!(kind(&house, 0), Some(OutcomeKind::Scored));
}

#[tokio::test(start_paused = true)]
async fn a_running_rollout_that_is_cancelled_ends_as_cancelled_and_the_others_go_on() {
    for phase in [Phase::Agent, Phase::Grade] {
        let house = House::serving(2, 2);
        house.executor.plays(0, phase, [Play::UntilCancelled]);
        let wake = Arc::new(Notify::new());
        let during = async {
            house.executor.begun(3).await;
            let id = RolloutId::of(0, 0);
            assert_eq!(house.engine.phase(&id), Some(phase));
            let cancelled = house.engine.cancel(&id).await.unwrap();
            assert_eq!(cancelled, Cancellation::Running);
        };
        serve(&house, &wake, during).await.unwrap();
        assert_eq!(kind(&house, 0), Some(OutcomeKind::Cancelled), "{phase}");
        assert_eq!(kind(&house, 1), Some(OutcomeKind::Scored));
        assert_eq!(house.sessions.open_keys(), [""; 0]);
        assert_eq!(house.engine.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_rollout_that_is_cancelled_is_never_run() {
    let house = House::serving(3, 1);
    let work = Play::WorksAfter(Duration::from_secs(10));
    house.executor.plays(0, Phase::Agent, [work]);
    let wake = Arc::new(Notify::new());
    let during = async {
        house.executor.begun(1).await;
        let cancelled = house.engine.cancel(&RolloutId::of(1, 0)).await.unwrap();
        assert_eq!(cancelled, Cancellation::Queued);
        wake.notify_one();
        // The graders of the other two are the last to begin.
        house.executor.begun(4).await;
    };
    serve(&house, &wake, during).await.unwrap();
    assert_eq!(kind(&house, 1), Some(OutcomeKind::Cancelled));
    let executed = house.executor.executed();
    assert!(executed.iter().all(|one| one.rollout.as_str() != "r1-0"));
    assert_eq!(kind(&house, 2), Some(OutcomeKind::Scored));
}

#[tokio::test(start_paused = true)]
async fn what_has_a_result_or_was_never_there_can_not_be_cancelled() {
    let house = House::serving(1, 1);
    let wake = Arc::new(Notify::new());
    let during = async {
        house.executor.begun(2).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        for row in [0, 9] {
            let cancelled = house.engine.cancel(&RolloutId::of(row, 0)).await.unwrap();
            assert_eq!(cancelled, Cancellation::NotFound, "{row}");
        }
    };
    serve(&house, &wake, during).await.unwrap();
    assert_eq!(kind(&house, 0), Some(OutcomeKind::Scored));
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_an_idle_engine_at_once() {
    let house = House::serving(0, 1);
    serve(&house, &Arc::default(), async {}).await.unwrap();
}
