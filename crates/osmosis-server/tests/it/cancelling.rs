//! Cancelling by id, by prefix and altogether.

use osmosis_testkit::model_server::Gate;
use serde_json::json;

use crate::serving::{Serving, Setting};

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_and_what_waits_is_cancelled_and_told() {
    let gate = Gate::default();
    let mut setting = Setting::held(&gate);
    setting.server.max_in_flight = 1;
    let serving = setting.start().await;
    for id in ["a-runs", "a-waits", "b-waits", "a-waits-too"] {
        serving.accept(id, "answer").await;
    }
    serving.wait_for_status("a-runs", "running").await;
    let ids = json!({"ids": ["a-runs", "a-waits", "nobody", "no/id"]});
    let cancelled = serving.post("/rollout/cancel", &ids).await;
    assert_eq!(cancelled.status, 200);
    assert_eq!(
        cancelled.body["dispositions"],
        json!({
            "a-runs": "cancelled_running",
            "a-waits": "cancelled_queued",
            "nobody": "not_found",
            "no/id": "not_found",
        })
    );
    for id in ["a-runs", "a-waits"] {
        let (completion, grader) = serving.told(id).await;
        assert_eq!(completion["status"], "cancelled");
        assert_eq!(grader["status"], "failure");
        assert_eq!(grader["err_message"], "cancelled");
        assert_eq!(serving.status(id).await, "cancelled");
    }
    // Cancelling again changes nothing.
    let again = serving.post("/rollout/cancel", &ids).await;
    assert_eq!(again.body["dispositions"]["a-runs"], "not_found");
    // The others were put back as they were.
    gate.open();
    for id in ["b-waits", "a-waits-too"] {
        assert_eq!(serving.told(id).await.1["sample"]["reward"], 1.0);
    }
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_and_all_mean_what_has_no_result_yet() {
    let gate = Gate::default();
    let mut setting = Setting::held(&gate);
    setting.server.max_in_flight = 2;
    let serving = setting.start().await;
    for id in ["x-1", "y-1", "x-2", "y-2"] {
        serving.accept(id, "answer").await;
    }
    serving.wait_for_status("y-1", "running").await;
    let prefix = serving
        .post("/rollout/cancel", &json!({"prefix": "x-"}))
        .await;
    let dispositions = prefix.body["dispositions"].as_object().unwrap();
    let named: Vec<&String> = dispositions.keys().collect();
    assert_eq!(named, ["x-1", "x-2"]);
    serving.told("x-1").await;
    serving.told("x-2").await;
    let all = serving.post("/rollout/cancel", &json!({"all": true})).await;
    let dispositions = all.body["dispositions"].as_object().unwrap();
    let named: Vec<&String> = dispositions.keys().collect();
    assert_eq!(named, ["y-1", "y-2"]);
    serving.told("y-1").await;
    serving.told("y-2").await;
    let none = serving.post("/rollout/cancel", &json!({"all": true})).await;
    assert_eq!(none.body, json!({"dispositions": {}}));
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_one_choice_must_be_made() {
    let serving = Serving::start().await;
    for wrong in [
        json!({}),
        json!({"all": false}),
        json!({"ids": ["a"], "all": true}),
        json!({"ids": ["a"], "prefix": "a"}),
        json!({"ids": "a"}),
        json!([]),
    ] {
        let answer = serving.post("/rollout/cancel", &wrong).await;
        assert_eq!(answer.status, 422, "{wrong}");
    }
    serving.drain().await;
}
