//! What is let in, what is not, and what the same request again leads to.

use osmosis_gateway::Secret;
use osmosis_testkit::model_server::Gate;
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::serving::{LONG, Serving, Setting};

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_again_runs_nothing_twice() {
    let serving = Serving::start().await;
    let request = serving.request("same", "answer");
    let both = tokio::join!(
        serving.post("/rollout", &request),
        serving.post("/rollout", &request)
    );
    assert_eq!(
        (both.0.status, both.1.status),
        (202.try_into().unwrap(), 202.try_into().unwrap())
    );
    serving.told("same").await;
    let again = serving.post("/rollout", &request).await;
    assert_eq!(again.status, 202);
    assert_eq!(
        again.body,
        json!({"rollout_id": "same", "status": "success"})
    );
    let mut another = request.clone();
    another["label"] = json!("43");
    let refused = serving.post("/rollout", &another).await;
    assert_eq!(refused.status, 409);
    assert!(refused.body["detail"].as_str().unwrap().contains("`same`"));
    assert_eq!(serving.model.requests().len(), 1);
    assert_eq!(serving.receiver.received().len(), 2);
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_body_under_an_id_that_runs_is_a_conflict() {
    let gate = Gate::default();
    let serving = Setting::held(&gate).start().await;
    let mut request = serving.request("taken", "answer");
    assert_eq!(serving.post("/rollout", &request).await.status, 202);
    request["metadata"] = json!({});
    assert_eq!(serving.post("/rollout", &request).await.status, 409);
    gate.open();
    serving.told("taken").await;
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_an_id_gets_one() {
    let serving = Serving::start().await;
    let mut request = serving.request("anonymous", "answer");
    request.as_object_mut().unwrap().remove("rollout_id");
    let answer = serving.post("/rollout", &request).await;
    assert_eq!(answer.status, 202);
    let id = answer.body["rollout_id"].as_str().unwrap();
    let told = serving.receiver.taken("/anonymous/grader").await.json();
    assert_eq!(told["rollout_id"], id);
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_told_with_when_to_come_back() {
    let gate = Gate::default();
    let mut setting = Setting::held(&gate);
    setting.server.max_in_flight = 1;
    setting.server.max_queued = 1;
    let serving = setting.start().await;
    serving.accept("runs", "answer").await;
    serving.accept("waits", "answer").await;
    let request = serving.request("late", "answer");
    let refused = serving.post("/rollout", &request).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.retry_after.as_deref(), Some("5"));
    assert_eq!(serving.get("/health").await.body["capacity"]["free"], 0);
    // One that is there already is not late.
    serving.accept("waits", "answer").await;
    assert_eq!(serving.status("late").await, "unknown");
    gate.open();
    serving.told("waits").await;
    assert_eq!(serving.post("/rollout", &request).await.status, 202);
    serving.told("late").await;
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_request_is_told_all_that_is_wrong_with_it() {
    let serving = Serving::start().await;
    let wrong = json!({"rollout_id": "../x", "llm_api_key": "", "agent_timeout_sec": "soon"});
    let answer = serving.post("/rollout", &wrong).await;
    assert_eq!(answer.status, 422);
    let problems = answer.body["detail"].as_array().unwrap();
    let mut fields: Vec<&str> = problems
        .iter()
        .map(|problem| problem["loc"][1].as_str().unwrap())
        .collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "agent_timeout_sec",
            "chat_completions_url",
            "completion_callback_url",
            "initial_messages",
            "llm_api_key",
            "rollout_id",
        ]
    );
    let nan = r#"{"agent_timeout_sec": NaN}"#.to_owned();
    let answer = serving.send(Method::POST, "/rollout", Some(nan)).await;
    assert_eq!(answer.status, 422);
    assert_eq!(serving.get("/rollout").await.status, 405);
    assert_eq!(serving.get("/nothing/here").await.status, 404);
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_more_than_100_mb_is_refused_in_words_and_harms_nobody() {
    let serving = Serving::start().await;
    let mut request = serving.request("large", "answer");
    request["metadata"] = json!({"do": "answer", "ballast": "x".repeat(101 << 20)});
    let refused = serving.post("/rollout", &request).await;
    assert_eq!(refused.status, 413);
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("104857600 bytes"), "{detail}");
    // Between what a request and what a worker may hold.
    request["metadata"] = json!({"do": "answer", "ballast": "x".repeat(70 << 20)});
    assert_eq!(serving.post("/rollout", &request).await.status, 413);
    request["metadata"] = json!({"do": "answer", "ballast": "x".repeat(20 << 20)});
    assert_eq!(serving.post("/rollout", &request).await.status, 202);
    let (_, grader) = serving.told("large").await;
    assert_eq!(grader["status"], "success");
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_loses_nothing_and_half_a_body_is_no_request() {
    let gate = Gate::default();
    let serving = Setting::held(&gate).start().await;
    let address = serving.url.strip_prefix("http://").unwrap().to_owned();
    let head = |id: &str| {
        let body = serving.request(id, "answer").to_string();
        let length = body.len();
        (
            format!(
                "POST /rollout HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
            ),
            body,
        )
    };
    let (request, body) = head("half");
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
        .write_all(&body.as_bytes()[..body.len() / 2])
        .await
        .unwrap();
    drop(stream);

    let (request, body) = head("whole");
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 202");
    drop(stream);
    gate.open();
    assert_eq!(serving.told("whole").await.1["status"], "success");
    assert_eq!(serving.status("half").await, "unknown");
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_key_only_who_brings_it_is_heard_except_about_health() {
    let mut setting = Setting::default();
    setting.server.api_key = Some(Secret::new("the-servers-own-key"));
    let serving = setting.start().await;
    assert_eq!(serving.get("/health").await.status, 200);
    let request = serving.request("locked", "answer");
    assert_eq!(serving.post("/rollout", &request).await.status, 401);
    assert_eq!(serving.get("/rollout/locked/status").await.status, 401);
    assert_eq!(serving.get("/elsewhere").await.status, 401);
    let all = json!({"all": true});
    assert_eq!(serving.post("/rollout/cancel", &all).await.status, 401);
    for (key, status) in [("the-servers-own-kez", 401), ("the-servers-own-key", 202)] {
        let answer = serving
            .client
            .post(format!("{}/rollout", serving.url))
            .bearer_auth(key)
            .header("content-type", "application/json")
            .body(request.to_string())
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), status);
    }
    tokio::time::timeout(LONG, serving.receiver.taken("/locked/grader"))
        .await
        .unwrap();
    serving.drain().await;
}
