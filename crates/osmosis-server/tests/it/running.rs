//! From the request to the grade.

use std::time::Duration;

use osmosis_core::RolloutId;
use osmosis_gateway::Policy as _;
use osmosis_testkit::model_server::{Behaviour, Gate};
use serde_json::{Value, json};

use crate::serving::{CONTROLLER_KEY, LLM_KEY, Serving, Setting, everything_below};

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_run_graded_and_told_in_order() {
    let serving = Serving::start().await;
    serving.accept("one", "answer").await;
    let (completion, grader) = serving.told("one").await;
    assert_eq!(
        completion,
        json!({"rollout_id": "one", "status": "success"})
    );
    assert_eq!(grader["rollout_id"], "one");
    assert_eq!(grader["status"], "success");
    assert_eq!(grader["samples"]["main"]["reward"], 1.0);
    assert_eq!(grader["sample"], grader["samples"]["main"]);
    assert_eq!(grader["sample"]["label"], "42");
    let messages = grader["sample"]["messages"].as_array().unwrap();
    assert_eq!(messages[0]["content"], "What is 6 times 7?");
    assert_eq!(messages[1]["content"], "The answer is 42.");

    let received = serving.receiver.received();
    let paths: Vec<&str> = received.iter().map(|one| &*one.path).collect();
    assert_eq!(paths, ["/one/completion", "/one/grader"]);
    for one in &received {
        assert_eq!(
            one.headers["authorization"],
            format!("Bearer {CONTROLLER_KEY}")
        );
        assert_eq!(one.headers["content-type"], "application/json");
    }
    let status = serving.get("/rollout/one/status").await.body;
    assert_eq!(
        status,
        json!({"rollout_id": "one", "status": "success", "reward": 1.0, "err_message": null})
    );
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn model_calls_go_to_the_rollouts_own_server_with_its_own_key() {
    let serving = Serving::start().await;
    let mut own = serving.request("own", "answer");
    own["chat_completions_url"] = json!(format!("{}/chat/completions", serving.model.url()));
    let mut shared = serving.request("shared", "answer");
    shared["llm_api_key"] = Value::Null;
    let mut none = serving.request("none", "answer");
    none["llm_api_key"] = Value::Null;
    none["controller_api_key"] = Value::Null;
    for request in [&own, &shared, &none] {
        assert_eq!(serving.post("/rollout", request).await.status, 202);
    }
    for id in ["own", "shared", "none"] {
        assert_eq!(serving.told(id).await.1["status"], "success");
    }
    // What a rollout brought ends with it.
    let forgotten = serving.relay.for_rollout(&RolloutId::new("own").unwrap());
    assert!(forgotten.is_none());
    let calls = serving.model.requests();
    let key_of = |id: &str| {
        let call = calls.iter().find(|call| call.headers["x-rollout-id"] == id);
        let call = call.unwrap();
        assert_eq!(call.headers["x-sample-id"], "main");
        assert_eq!(call.body["model"], "osmosis-rollout");
        let key = call.headers.get("authorization");
        key.map(|key| key.to_str().unwrap().to_owned())
    };
    assert_eq!(key_of("own"), Some(format!("Bearer {LLM_KEY}")));
    assert_eq!(key_of("shared"), Some(format!("Bearer {CONTROLLER_KEY}")));
    assert_eq!(key_of("none"), None);
    let uncalled = serving.receiver.taken("/none/completion").await;
    assert_eq!(uncalled.headers.get("authorization"), None);
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_written_anywhere_even_when_the_model_server_quotes_it() {
    let serving = Setting {
        behaviour: Behaviour::Refuses { status: 401 },
        ..Setting::default()
    }
    .start()
    .await;
    serving.accept("quoted", "answer").await;
    let (completion, grader) = serving.told("quoted").await;
    assert_eq!(completion["status"], "failure");
    assert_eq!(completion["err_category"], "http_error");
    assert_eq!(grader["status"], "failure");
    assert_eq!(grader["samples"], json!({}));
    let told = format!("{completion}{grader}{}", serving.get("/health").await.body);
    assert!(
        !told.contains(LLM_KEY) && told.contains("[redacted]"),
        "{told}"
    );
    let (_, folder) = serving.drain().await;
    let written = String::from_utf8_lossy(&everything_below(folder.path())).into_owned();
    assert!(written.contains("What is 6 times 7?"));
    for key in [LLM_KEY, CONTROLLER_KEY, "osm-"] {
        assert!(!written.contains(key), "{key} was written down");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_failure_is_told_twice_with_its_category_and_without_a_reward() {
    let serving = Serving::start().await;
    for (id, doing, completion, category) in [
        ("raise", "raise", "failure", "agent_error"),
        (
            "invalid",
            "raise a validation error",
            "failure",
            "validation_error",
        ),
        ("reject", "reject", "failure", "agent_error"),
        ("ungraded", "raise in the grader", "success", "agent_error"),
    ] {
        serving.accept(id, doing).await;
        let (completed, graded) = serving.told(id).await;
        assert_eq!(completed["status"], completion, "{id}");
        assert_eq!(graded["status"], "failure", "{id}");
        assert_eq!(graded["err_category"], category, "{id}");
        assert!(graded["err_message"].as_str().unwrap().len() > 4, "{id}");
        if completion == "failure" {
            assert_eq!(completed["err_message"], graded["err_message"]);
            assert_eq!(graded["samples"], json!({}));
            assert_eq!(graded.get("sample"), None);
        } else {
            assert_eq!(completed.get("err_message"), None);
            assert_eq!(graded["sample"]["reward"], Value::Null);
        }
        assert_eq!(serving.status(id).await, "failure");
    }
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_samples_carry_no_reward_and_several_samples_are_told_by_id() {
    let serving = Serving::start().await;
    serving.accept("two", "two samples").await;
    serving.accept("removed", "remove").await;
    let (_, two) = serving.told("two").await;
    assert_eq!(two["status"], "success");
    assert_eq!(two["samples"]["planner"]["reward"], 0.25);
    assert_eq!(two["samples"]["executor"]["reward"], Value::Null);
    assert_eq!(two["samples"]["executor"]["remove_sample"], true);
    assert_eq!(two.get("sample"), None);
    let (_, removed) = serving.told("removed").await;
    assert_eq!(removed["status"], "success");
    assert_eq!(removed["sample"]["reward"], Value::Null);
    assert_eq!(removed["sample"]["remove_sample"], true);
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollouts_own_deadline_goes_before_the_servers() {
    let serving = Serving::start().await;
    let mut agent = serving.request("agent", "hang");
    agent["agent_timeout_sec"] = json!(0.05);
    let mut grader = serving.request("grader", "hang in the grader");
    grader["grader_timeout_sec"] = json!(0.05);
    for request in [agent, grader] {
        assert_eq!(serving.post("/rollout", &request).await.status, 202);
    }
    let (completed, graded) = serving.told("agent").await;
    assert_eq!(completed["status"], "failure");
    assert_eq!(completed["err_category"], "timeout");
    assert_eq!(graded["err_category"], "timeout");
    let (completed, graded) = serving.told("grader").await;
    assert_eq!(completed["status"], "success");
    assert_eq!(graded["status"], "failure");
    assert_eq!(graded["err_category"], "timeout");
    assert!(graded["err_message"].as_str().unwrap().contains("0.05 s"));
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_deadline_of_its_own_a_rollout_has_the_servers() {
    let serving = Setting {
        agent_limit: Duration::from_millis(50),
        ..Setting::default()
    }
    .start()
    .await;
    serving.accept("slow", "hang").await;
    assert_eq!(serving.told("slow").await.0["err_category"], "timeout");
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_follows_the_rollout() {
    let gate = Gate::default();
    let mut setting = Setting::held(&gate);
    setting.server.max_in_flight = 1;
    let serving = setting.start().await;
    assert_eq!(serving.status("nobody").await, "unknown");
    assert_eq!(serving.status("not%20an%20id").await, "unknown");
    serving.accept("first", "hang in the grader").await;
    serving.accept("second", "answer").await;
    serving.wait_for_status("first", "running").await;
    assert_eq!(serving.status("second").await, "queued");
    gate.open();
    serving.wait_for_status("first", "grading").await;
    // The workflow is over, so the controller knows, whatever the grader does.
    serving.receiver.taken("/first/completion").await;
    let health = serving.get("/health").await.body;
    assert_eq!(health["status"], "ok");
    assert_eq!(health["capacity"]["running"], 1);
    assert_eq!(health["capacity"]["queued"], 1);
    let ids = json!({"ids": ["first"]});
    serving.post("/rollout/cancel", &ids).await;
    serving.wait_for_status("first", "cancelled").await;
    serving.wait_for_status("second", "success").await;
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rollouts_at_once_are_each_told_once() {
    let serving = Serving::start().await;
    let ids: Vec<String> = (0..60).map(|n| format!("r-{n}")).collect();
    for id in &ids {
        serving.accept(id, "answer").await;
    }
    serving.receiver.wait_for(120).await;
    for id in &ids {
        assert_eq!(serving.status(id).await, "success");
    }
    let (served, _) = serving.drain().await;
    assert_eq!(served.undelivered, 0);
}
