//! How a server ends.

use std::time::Duration;

use osmosis_testkit::model_server::Gate;
use serde_json::json;

use crate::serving::Setting;

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_refuses_the_new_and_finishes_the_old() {
    let gate = Gate::default();
    let mut setting = Setting::held(&gate);
    setting.server.max_in_flight = 1;
    let serving = setting.start().await;
    serving.accept("runs", "answer").await;
    serving.accept("waits", "answer").await;
    serving.model.wait_for_requests(1).await;
    serving.stop.drain.cancel();
    let late = serving.request("late", "answer");
    // The signal is on its way; until it has arrived, rollouts are let in.
    let refused = loop {
        let mut probe = late.clone();
        probe["rollout_id"] = json!(format!("late-{}", rand_text()));
        let answer = serving.post("/rollout", &probe).await;
        if answer.status != 202 {
            break answer;
        }
    };
    assert_eq!(refused.status, 503);
    let health = serving.get("/health").await.body;
    assert_eq!(health["status"], "draining");
    assert_eq!(health["lifecycle"]["accepting_rollouts"], false);
    gate.open();
    for id in ["runs", "waits"] {
        assert_eq!(serving.told(id).await.1["sample"]["reward"], 1.0);
    }
    let (served, _) = serving.ended().await;
    assert_eq!(served.undelivered, 0);
}

fn rand_text() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_outlasts_the_drain_is_cancelled_and_told() {
    let gate = Gate::default();
    let mut setting = Setting::held(&gate);
    setting.server.max_in_flight = 1;
    setting.server.drain_limit = Duration::from_millis(100);
    let serving = setting.start().await;
    serving.accept("runs", "answer").await;
    serving.accept("waits", "answer").await;
    serving.model.wait_for_requests(1).await;
    serving.stop.drain.cancel();
    for id in ["runs", "waits"] {
        let (completion, grader) = serving.told(id).await;
        assert_eq!(completion["status"], "cancelled");
        assert_eq!(grader["status"], "failure");
    }
    let (served, _) = serving.ended().await;
    assert_eq!(served.undelivered, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_to_stop_ends_it_now() {
    let gate = Gate::default();
    let serving = Setting::held(&gate).start().await;
    serving.accept("runs", "answer").await;
    serving.model.wait_for_requests(1).await;
    serving.stop.drain.cancel();
    serving.stop.now.cancel();
    let receiver = serving.receiver.received();
    serving.ended().await;
    assert!(receiver.is_empty());
}
