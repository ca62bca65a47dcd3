//! Accepted means: run and called back, over restarts.

use std::collections::BTreeSet;
use std::time::Duration;

use camino::Utf8Path;
use osmosis_core::RolloutId;
use osmosis_server::StateKey;
use osmosis_store::{RequestNote, Store as _};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use osmosis_testkit::model_server::Gate;
use serde_json::json;

use crate::serving::{CONTROLLER_KEY, LLM_KEY, LONG, Setting, everything_below};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_goes_on_after_a_restart_and_is_called_back() {
    let gate = Gate::default();
    let mut setting = Setting::held(&gate);
    setting.server.max_in_flight = 2;
    let serving = setting.start().await;
    let ids = ["runs", "runs-too", "waits", "waits-too"];
    for id in ids {
        serving.accept(id, "answer").await;
    }
    serving.model.wait_for_requests(2).await;
    let left = serving.interrupted().await;
    assert_eq!(left.served.unfinished, 4);
    assert!(left.receiver.received().is_empty());
    let written = String::from_utf8_lossy(&everything_below(left.folder.path())).into_owned();
    for key in [LLM_KEY, CONTROLLER_KEY] {
        assert!(!written.contains(key), "{key} was written down");
    }

    gate.open();
    let serving = Setting::default().start_again(left).await;
    for id in ids {
        // The same request again changes nothing, wherever it stands.
        serving.accept(id, "answer").await;
        let (completion, grader) = serving.told(id).await;
        assert_eq!(completion["status"], "success");
        assert_eq!(grader["sample"]["reward"], 1.0);
        assert_eq!(serving.status(id).await, "success");
    }
    for call in serving.model.requests() {
        assert_eq!(call.headers["authorization"], format!("Bearer {LLM_KEY}"));
    }
    for one in serving.receiver.received() {
        let expected = format!("Bearer {CONTROLLER_KEY}");
        assert_eq!(one.headers["authorization"], expected);
    }
    let (served, folder) = serving.drain().await;
    assert_eq!((served.undelivered, served.unfinished), (0, 0));

    // Nothing is left to do, and nobody is called again.
    let serving = Setting::default().start_in(folder).await;
    assert_eq!(serving.status("runs").await, "success");
    assert_eq!(serving.get("/health").await.body["callbacks"]["waiting"], 0);
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_that_nobody_took_is_sent_after_a_restart_with_the_same_body() {
    let serving = Setting::default().start().await;
    serving.receiver.answer(std::iter::repeat_n(503, 10_000));
    serving.accept("scored", "answer").await;
    serving.accept("failed", "raise").await;
    for (id, status) in [("scored", "success"), ("failed", "failure")] {
        serving.wait_for_status(id, status).await;
    }
    serving.receiver.wait_for(2).await;
    let left = serving.interrupted().await;
    assert_eq!((left.served.undelivered, left.served.unfinished), (2, 0));
    left.receiver.forget_answers();
    let serving = Setting::default().start_again(left).await;
    let (_, grader) = serving.told("scored").await;
    assert_eq!(grader["sample"]["reward"], 1.0);
    let (completion, _) = serving.told("failed").await;
    assert_eq!(completion["status"], "failure");
    for path in ["/scored/completion", "/failed/completion", "/failed/grader"] {
        let received = serving.receiver.received();
        let bodies = received.iter().filter(|one| one.path == path);
        let bodies: BTreeSet<&str> = bodies.map(|one| &*one.text).collect();
        assert_eq!(bodies.len(), 1, "{path}: {bodies:?}");
    }
    assert_eq!(serving.model.requests().len(), 1, "nothing ran again");
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_was_told_stays_true_whatever_the_next_attempt_does() {
    let serving = Setting::default().start().await;
    // One is told of its completion, the other never answers.
    serving.accept("told", "hang in the grader").await;
    let told = serving.receiver.taken("/told/completion");
    tokio::time::timeout(LONG, told).await.unwrap();
    serving.receiver.answer(std::iter::repeat_n(503, 10_000));
    serving.accept("untold", "hang in the grader").await;
    serving.wait_for_status("untold", "grading").await;
    serving.receiver.wait_for(2).await;
    let left = serving.interrupted().await;
    left.receiver.forget_answers();
    // The model is gone: no workflow succeeds any more.
    let crate::serving::Left {
        served,
        folder,
        model,
        receiver,
    } = left;
    assert_eq!(served.unfinished, 2);
    drop(model);
    let mut serving = Setting::default().start_in(folder).await;
    serving.receiver = receiver;
    for id in ["told", "untold"] {
        let (completion, grader) = serving.told(id).await;
        assert_eq!(completion["status"], "success", "{id}");
        assert_eq!(grader["status"], "failure", "{id}");
    }
    let received = serving.receiver.received();
    let of_told = received.iter().filter(|one| one.path == "/told/completion");
    assert_eq!(
        of_told.count(),
        1,
        "what was acknowledged is not said again"
    );
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_state_key_rollouts_wait_until_the_same_request_brings_their_keys() {
    let gate = Gate::default();
    let serving = Setting::held(&gate).start().await;
    for id in ["waits", "never-sent", "unwanted"] {
        serving.accept(id, "answer").await;
    }
    serving.model.wait_for_requests(3).await;
    let left = serving.interrupted().await;
    gate.open();
    let calls = left.model.requests().len();

    let other_key = || Setting {
        state_key: StateKey::from_text("somebody else's"),
        ..Setting::default()
    };
    let serving = other_key().start_again(left).await;
    for id in ["waits", "never-sent", "unwanted"] {
        assert_eq!(serving.status(id).await, "queued");
    }
    assert_eq!(serving.get("/health").await.body["waiting_for_keys"], 3);
    // Others are not held up.
    serving.accept("new", "answer").await;
    serving.told("new").await;
    let mut another = serving.request("waits", "answer");
    another["label"] = json!("43");
    assert_eq!(serving.post("/rollout", &another).await.status, 409);
    assert_eq!(serving.status("waits").await, "queued");

    let request = serving.request("waits", "answer");
    let again = serving.post("/rollout", &request).await;
    assert_eq!(again.status, 202);
    assert_eq!(again.body["status"], "queued");
    assert_eq!(serving.told("waits").await.1["sample"]["reward"], 1.0);
    let unwanted = json!({"prefix": "unwanted"});
    let cancelled = serving.post("/rollout/cancel", &unwanted).await;
    let dispositions = json!({"unwanted": "cancelled_queued"});
    assert_eq!(cancelled.body["dispositions"], dispositions);
    serving.wait_for_status("unwanted", "cancelled").await;
    assert_eq!(serving.model.requests().len(), calls + 2);
    // Who asked for it is told when it brings the keys.
    let told = serving.receiver.received();
    assert!(!told.iter().any(|one| one.path.starts_with("/unwanted")));
    let request = serving.request("unwanted", "answer");
    let again = serving.post("/rollout", &request).await;
    assert_eq!(
        (again.status.as_u16(), &again.body["status"]),
        (202, &json!("cancelled"))
    );
    assert_eq!(serving.told("unwanted").await.0["status"], "cancelled");

    // What came again is sealed with the new key; the one that did not come still waits.
    let left = serving.interrupted().await;
    assert_eq!(left.served.unfinished, 1);
    let serving = Setting::default().start_again(left).await;
    assert_eq!(serving.told("never-sent").await.1["status"], "success");
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_again_after_a_lost_key_survives_the_next_restart_too() {
    let gate = Gate::default();
    let serving = Setting::held(&gate).start().await;
    serving.accept("twice", "answer").await;
    serving.model.wait_for_requests(1).await;
    let left = serving.interrupted().await;
    let new_key = || Setting {
        state_key: StateKey::from_text("the new one"),
        ..Setting::default()
    };
    let serving = new_key().start_again(left).await;
    serving.accept("twice", "answer").await;
    serving.model.wait_for_requests(2).await;
    let left = serving.interrupted().await;
    gate.open();
    let serving = new_key().start_again(left).await;
    assert_eq!(serving.told("twice").await.1["sample"]["reward"], 1.0);
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_cancelled_stays_cancelled_and_is_told_after_a_restart() {
    let gate = Gate::default();
    let mut setting = Setting::held(&gate);
    setting.server.max_in_flight = 1;
    let serving = setting.start().await;
    for id in ["runs", "cancelled", "cancelled-too", "cut-short"] {
        serving.accept(id, "answer").await;
    }
    serving.model.wait_for_requests(1).await;
    serving.receiver.answer(std::iter::repeat_n(503, 10_000));
    let ids = json!({"ids": ["cancelled", "cancelled-too"]});
    let answer = serving.post("/rollout/cancel", &ids).await;
    assert_eq!(answer.body["dispositions"]["cancelled"], "cancelled_queued");
    // It is on the disk before it is said.
    let id = RolloutId::new("cancelled").unwrap();
    let kept = serving.store.request(&id).await.unwrap();
    assert!(kept.unwrap().cancel_asked);
    let left = serving.interrupted().await;
    left.receiver.forget_answers();
    // And this is all that a crash right after the answer leaves.
    let folder = left.folder.path().join("run");
    let folder = Utf8Path::from_path(&folder).unwrap();
    let store = SqliteStore::open(folder, SqliteOptions::default()).unwrap();
    let cut_short = RolloutId::new("cut-short").unwrap();
    let asked = RequestNote::CancelAsked;
    store.note_request(&cut_short, asked).await.unwrap();
    store.close().await.unwrap();
    gate.open();
    let serving = Setting::default().start_again(left).await;
    for id in ["cancelled", "cancelled-too", "cut-short"] {
        let (completion, grader) = serving.told(id).await;
        assert_eq!(completion["status"], "cancelled");
        assert_eq!(grader["err_message"], "cancelled");
        assert_eq!(serving.status(id).await, "cancelled");
    }
    assert_eq!(serving.told("runs").await.1["sample"]["reward"], 1.0);
    assert_eq!(serving.model.requests().len(), 2, "only `runs`, twice");
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_that_was_given_up_is_tried_again_when_its_request_comes_again() {
    let mut setting = Setting::default();
    setting.server.callbacks.give_up_after = Duration::from_millis(50);
    let serving = setting.start().await;
    serving.receiver.answer(std::iter::repeat_n(503, 10_000));
    serving.accept("patient", "answer").await;
    serving.wait_for_status("patient", "success").await;
    // Both callbacks are given up; then nobody follows the rollout any more.
    let health = async {
        while serving.get("/health").await.body["callbacks"]["waiting"] != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, health).await.unwrap();
    serving.receiver.forget_answers();
    serving.accept("patient", "answer").await;
    let (_, grader) = serving.told("patient").await;
    assert_eq!(grader["sample"]["reward"], 1.0);
    assert_eq!(serving.model.requests().len(), 1);
    let (served, _) = serving.drain().await;
    assert_eq!(served.undelivered, 0);
}
