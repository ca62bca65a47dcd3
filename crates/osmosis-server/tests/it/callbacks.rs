//! Callbacks to receivers that are not always there.

use std::time::Duration;

use osmosis_testkit::model_server::Gate;
use serde_json::json;

use crate::receiver::Receiver;
use crate::serving::{LONG, Serving, Setting};

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_is_tried_again_with_the_same_body_until_it_is_taken() {
    let serving = Serving::start().await;
    serving.receiver.answer([503, 429, 500, 200, 502]);
    serving.accept("again", "answer").await;
    serving.told("again").await;
    let received = serving.receiver.received();
    let paths: Vec<(&str, u16)> = received
        .iter()
        .map(|one| (&*one.path, one.status))
        .collect();
    assert_eq!(
        paths,
        [
            ("/again/completion", 503),
            ("/again/completion", 429),
            ("/again/completion", 500),
            ("/again/completion", 200),
            ("/again/grader", 502),
            ("/again/grader", 200),
        ]
    );
    assert!(received[..4].iter().all(|one| one.text == received[0].text));
    assert_eq!(received[4].text, received[5].text);
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_does_not_want_a_callback_is_not_asked_again() {
    let serving = Serving::start().await;
    serving.receiver.answer([404, 302]);
    serving.accept("unwanted", "answer").await;
    serving.receiver.wait_for(2).await;
    let (served, _) = serving.drain().await;
    assert_eq!(served.undelivered, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_down_for_a_while_gets_everything_when_it_is_back() {
    let serving = Serving::start().await;
    let gone = Receiver::start().await;
    let address = gone.address;
    drop(gone);
    let mut request = serving.request("patient", "answer");
    request["completion_callback_url"] = json!(format!("http://{address}/completion"));
    request["grader_callback_url"] = json!(format!("http://{address}/grader"));
    assert_eq!(serving.post("/rollout", &request).await.status, 202);
    serving.wait_for_status("patient", "success").await;
    assert_eq!(serving.get("/health").await.body["callbacks"]["waiting"], 1);
    let back = Receiver::on(address).await;
    let told = async {
        back.taken("/completion").await;
        back.taken("/grader").await.json()
    };
    let told = tokio::time::timeout(LONG, told).await.unwrap();
    assert_eq!(told["sample"]["reward"], 1.0);
    assert_eq!(back.received().len(), 2);
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_stays_away_is_given_up_and_holds_up_nobody_else() {
    let mut setting = Setting::default();
    setting.server.callbacks.give_up_after = Duration::from_millis(200);
    let serving = setting.start().await;
    let gone = Receiver::start().await;
    let address = gone.address;
    drop(gone);
    let mut request = serving.request("alone", "answer");
    request["completion_callback_url"] = json!(format!("http://{address}/completion"));
    assert_eq!(serving.post("/rollout", &request).await.status, 202);
    serving.accept("other", "answer").await;
    serving.told("other").await;
    // Its grade has another address, and is told after the completion was given up.
    serving.receiver.taken("/alone/grader").await;
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_whose_grade_nobody_wants_is_told_once() {
    let serving = Serving::start().await;
    let mut request = serving.request("ungraded", "answer");
    request["grader_callback_url"] = json!(null);
    assert_eq!(serving.post("/rollout", &request).await.status, 202);
    serving.wait_for_status("ungraded", "success").await;
    let (served, _) = {
        let received = serving.receiver.wait_for(1).await;
        assert_eq!(received[0].path, "/ungraded/completion");
        serving.drain().await
    };
    assert_eq!(served.undelivered, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_completion_is_told_while_the_grader_still_works() {
    let gate = Gate::default();
    gate.open();
    let serving = Setting::held(&gate).start().await;
    serving.accept("early", "hang in the grader").await;
    let told = serving.receiver.taken("/early/completion");
    let told = tokio::time::timeout(LONG, told).await.unwrap();
    assert_eq!(told.json()["status"], "success");
    assert_eq!(serving.status("early").await, "grading");
    serving.post("/rollout/cancel", &json!({"all": true})).await;
    let (_, graded) = serving.told("early").await;
    assert_eq!(graded["status"], "failure");
    assert_eq!(graded["err_message"], "cancelled");
    serving.drain().await;
}
