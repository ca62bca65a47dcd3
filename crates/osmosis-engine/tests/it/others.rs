//! A run that several processes work on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use osmosis_core::{Phase, RolloutId};
use osmosis_engine::{NodeEnd, NodeEnds, RunEnd, RunEvent};
use osmosis_store::{RunStatus, SharedRun as _, StopRequest};
use tokio::time::{Instant, sleep};

use crate::fake_executor::Play;
use crate::house::{House, LEASE, within};

/// The rollouts that were told as finished, in order.
fn finished(house: &mut House) -> Vec<String> {
    let events = house.events();
    let finished = events.iter().filter_map(|event| match event {
        RunEvent::Finished { id, .. } => Some(id.to_string()),
        _ => None,
    });
    finished.collect()
}

#[tokio::test(start_paused = true)]
async fn a_run_is_not_over_while_another_holds_a_lease_and_its_result_is_told_once() {
    let mut house = House::shared(3, 2);
    house.queue.claimed_by_another(0, 10 * LEASE);
    let (end, ()) = tokio::join!(house.run(), async {
        sleep(2 * LEASE).await;
        assert_eq!(house.outcomes(3), ["-", "scored", "scored"]);
        house.queue.finished_by_another(0);
        sleep(Duration::from_secs(1)).await;
    });
    assert_eq!(end.unwrap(), RunEnd::Complete);
    assert_eq!(finished(&mut house), ["r1-0", "r2-0", "r0-0"]);
}

#[tokio::test(start_paused = true)]
async fn what_one_who_vanished_held_is_claimed_when_its_lease_runs_out() {
    let house = House::shared(2, 2);
    house.queue.claimed_by_another(0, LEASE);
    house.queue.claimed_by_another(1, LEASE);
    let began = Instant::now();
    assert_eq!(house.run().await.unwrap(), RunEnd::Complete);
    assert_eq!(house.outcomes(2), ["scored", "scored"]);
    assert_eq!(house.queue.tried(0).0, 2);
    // A lease, and the wait until the next look.
    assert!(began.elapsed() >= LEASE && began.elapsed() <= LEASE + LEASE / 2);
}

#[tokio::test(start_paused = true)]
async fn what_others_finish_is_told_while_the_engine_is_busy() {
    let mut house = House::shared(2, 1);
    let work = Play::WorksAfter(Duration::from_mins(5));
    house.executor.plays(0, Phase::Agent, [work]);
    let engine = house.engine.clone();
    let stop = house.stop.clone();
    let running = within(engine.run(&stop));
    let (end, ()) = tokio::join!(running, async {
        house.executor.begun(1).await;
        house.queue.claimed_by_another(1, LEASE);
        house.queue.finished_by_another(1);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(finished(&mut house), ["r1-0"]);
    });
    assert_eq!(end.unwrap(), RunEnd::Complete);
    assert_eq!(finished(&mut house), ["r0-0"]);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_runs_nothing_itself_waits_for_the_others() {
    let mut house = House::shared(3, 0);
    let (end, ()) = tokio::join!(house.run(), async {
        sleep(LEASE).await;
        for row in 0..3 {
            house.queue.claimed_by_another(row, LEASE);
            sleep(Duration::from_secs(5)).await;
            house.queue.finished_by_another(row);
        }
    });
    assert_eq!(end.unwrap(), RunEnd::Complete);
    assert_eq!(finished(&mut house), ["r0-0", "r1-0", "r2-0"]);
    assert_eq!(house.executor.executed().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_engine_asks_seldom() {
    let house = House::shared(1, 4);
    house.queue.claimed_by_another(0, 100 * LEASE);
    let (end, ()) = tokio::join!(house.run(), async {
        sleep(20 * LEASE).await;
        house.queue.finished_by_another(0);
    });
    assert_eq!(end.unwrap(), RunEnd::Complete);
    assert_eq!(
        house.queue.claims(),
        1,
        "an empty queue is claimed from once"
    );
    let looks = house.company().looks.load(Ordering::SeqCst);
    assert!(looks < 20 * 3 * 4, "{looks} looks in 20 leases");
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_the_leases_of_the_living_and_not_for_the_dead() {
    for alive in [true, false] {
        let mut house = House::shared(3, 1);
        house.queue.claimed_by_another(0, 100 * LEASE);
        let work = Play::WorksAfter(Duration::from_secs(10));
        house.executor.plays(1, Phase::Agent, [work]);
        let began = Instant::now();
        let (end, ()) = tokio::join!(house.run(), async {
            house.executor.begun(1).await;
            house.company().alive.store(alive, Ordering::SeqCst);
            house.stop.drain.cancel();
            sleep(LEASE).await;
            house.queue.finished_by_another(0);
        });
        let (left, told) = if alive {
            (1, vec!["r1-0", "r0-0"])
        } else {
            (2, vec!["r1-0"])
        };
        assert_eq!(end.unwrap(), RunEnd::Stopped { left }, "alive: {alive}");
        assert_eq!(finished(&mut house), told);
        assert!(house.company().draining.load(Ordering::SeqCst));
        assert!(began.elapsed() >= LEASE);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_now_waits_for_nobody() {
    let house = House::shared(1, 1);
    house.queue.claimed_by_another(0, 100 * LEASE);
    let began = Instant::now();
    let (end, ()) = tokio::join!(house.run(), async {
        sleep(Duration::from_secs(1)).await;
        house.stop.drain.cancel();
        house.stop.now.cancel();
    });
    assert_eq!(end.unwrap(), RunEnd::Stopped { left: 1 });
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_node_of_an_evaluation_ends_when_nothing_is_left() {
    let mut house = House::shared(3, 2);
    house.queue.claimed_by_another(0, 10 * LEASE);
    let node = house
        .engine
        .run_as_node(&house.stop, NodeEnds::WhenNothingIsLeft);
    let (end, ()) = tokio::join!(within(node), async {
        sleep(LEASE).await;
        house.queue.finished_by_another(0);
    });
    assert_eq!(end.unwrap(), NodeEnd::NothingLeft);
    // What others finish is the controller's to tell.
    assert_eq!(finished(&mut house), ["r1-0", "r2-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_of_a_training_runs_what_is_queued_later_and_ends_with_the_run() {
    let house = House::shared(1, 2);
    let node = house.engine.run_as_node(&house.stop, NodeEnds::WithTheRun);
    let (end, ()) = tokio::join!(within(node), async {
        sleep(3 * LEASE).await;
        let began = Instant::now();
        house.queue.add(1);
        house.executor.begun(4).await;
        assert!(began.elapsed() < Duration::from_secs(1), "it was heard of");
        sleep(3 * LEASE).await;
        *house.company().status.lock() = RunStatus::Finished;
        house.queue.changed();
    });
    assert_eq!(end.unwrap(), NodeEnd::RunOver);
    assert_eq!(house.outcomes(2), ["scored", "scored"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_asked_to_stop_drains_its_nodes() {
    for (request, outcome, attempts) in [
        (StopRequest::Drain, "scored", 1),
        (StopRequest::Now, "-", 1),
    ] {
        let house = House::shared(2, 1);
        let work = Play::WorksAfter(Duration::from_secs(60));
        house.executor.plays(0, Phase::Agent, [work]);
        let node = house
            .engine
            .run_as_node(&house.stop, NodeEnds::WhenNothingIsLeft);
        let (end, ()) = tokio::join!(within(node), async {
            house.executor.begun(1).await;
            house.queue.ask_to_stop(Some(request)).await.unwrap();
        });
        assert_eq!(end.unwrap(), NodeEnd::RunOver);
        assert_eq!(house.outcomes(2), [outcome, "-"]);
        assert_eq!(house.queue.tried(0).0, attempts);
        assert_eq!(house.queue.tried(1).0, 0, "nothing new is begun");
        assert!(house.company().draining.load(Ordering::SeqCst));
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_asked_to_leave_finishes_what_it_has_and_waits_for_nobody() {
    let house = House::shared(3, 1);
    house.queue.claimed_by_another(2, 100 * LEASE);
    let work = Play::WorksAfter(Duration::from_secs(60));
    house.executor.plays(0, Phase::Agent, [work]);
    let began = Instant::now();
    let node = house
        .engine
        .run_as_node(&house.stop, NodeEnds::WhenNothingIsLeft);
    let (end, ()) = tokio::join!(within(node), async {
        house.executor.begun(1).await;
        house.stop.drain.cancel();
    });
    assert_eq!(end.unwrap(), NodeEnd::Stopped);
    assert_eq!(house.outcomes(3), ["scored", "-", "-"]);
    assert!(began.elapsed() < Duration::from_secs(70));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_late_lets_go_of_what_another_has() {
    let mut house = House::shared(1, 1);
    house
        .executor
        .plays(0, Phase::Agent, [Play::UntilCancelled]);
    let node = house
        .engine
        .run_as_node(&house.stop, NodeEnds::WhenNothingIsLeft);
    let (end, ()) = tokio::join!(within(node), async {
        house.executor.begun(1).await;
        // As after a pause that was longer than its lease.
        house.queue.claimed_by_another(0, 10 * LEASE);
        sleep(LEASE).await;
        assert_eq!(house.executor.cancelled(), 1);
        house.queue.finished_by_another(0);
    });
    assert_eq!(end.unwrap(), NodeEnd::NothingLeft);
    assert_eq!(finished(&mut house), [""; 0]);
    let id = RolloutId::of(0, 0);
    assert_eq!(house.engine.phase(&id), None);
    assert_eq!(
        house.outcomes(1),
        ["agent_failed"],
        "the other's result stands"
    );
}
