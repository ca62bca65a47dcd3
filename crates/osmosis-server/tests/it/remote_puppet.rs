//! Rollout servers that speak as others do, and that go wrong.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use osmosis_core::OutcomeKind;
use osmosis_engine::RunEnd;
use osmosis_server::RemoteOptions;
use parking_lot::Mutex;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::remote::{Evaluation, options};
use crate::serving::LONG;

/// A server that answers as it is told.
struct Puppet {
    url: String,
    state: Arc<Strings>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Strings {
    /// Answers to `POST /rollout`, the last one for ever.
    posts: Mutex<VecDeque<(u16, Value)>>,
    /// Answers to whoever asks for a status or a result, the last one for ever; `None` is a 404.
    looks: Mutex<VecDeque<Option<Value>>>,
    health: Mutex<Value>,
    posted: watch::Sender<Vec<Value>>,
    cancelled: Mutex<Vec<Value>>,
    leases: Mutex<Vec<String>>,
    /// Nothing is answered any more but that it is down.
    down: AtomicBool,
}

fn next<T: Clone>(answers: &Mutex<VecDeque<T>>) -> T {
    let mut answers = answers.lock();
    if answers.len() > 1 {
        answers.pop_front().unwrap()
    } else {
        answers[0].clone()
    }
}

impl Puppet {
    async fn start(posts: &[(u16, Value)], looks: &[Option<Value>]) -> Self {
        let state = Arc::new(Strings::default());
        state.posts.lock().extend(posts.iter().cloned());
        state.looks.lock().extend(looks.iter().cloned());
        *state.health.lock() = json!({"status": "ok"});
        let router = Router::new()
            .route("/rollout", post(posted))
            .route("/rollout/cancel", post(cancelled))
            .route("/rollout/{id}/{question}", get(looked))
            .route("/health", get(health))
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            state,
            _tasks: tasks,
        }
    }

    /// The requests for rollouts, once there are `n`.
    async fn posted(&self, n: usize) -> Vec<Value> {
        let mut posted = self.state.posted.subscribe();
        let all = posted.wait_for(|all| all.len() >= n).await.unwrap();
        all.clone()
    }
}

async fn posted(State(state): State<Arc<Strings>>, body: String) -> Response {
    let body: Value = serde_json::from_str(&body).unwrap();
    state.posted.send_modify(|all| all.push(body));
    if state.down.load(Ordering::SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let (status, body) = next(&state.posts);
    let status = StatusCode::from_u16(status).unwrap();
    (status, [("retry-after", "0.01")], body.to_string()).into_response()
}

async fn cancelled(State(state): State<Arc<Strings>>, body: String) {
    let body = serde_json::from_str(&body).unwrap();
    state.cancelled.lock().push(body);
}

async fn looked(
    State(state): State<Arc<Strings>>,
    Path((id, question)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if id.starts_with("probe-") {
        return StatusCode::NOT_FOUND.into_response();
    }
    if let Some(lease) = headers.get("x-osmosis-rollout-lease") {
        assert_eq!(question, "result");
        state.leases.lock().push(lease.to_str().unwrap().to_owned());
    }
    if state.down.load(Ordering::SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    match next(&state.looks) {
        Some(mut value) => {
            value["rollout_id"] = json!(id);
            value.to_string().into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn health(State(state): State<Arc<Strings>>) -> String {
    state.health.lock().to_string()
}

fn accepted() -> (u16, Value) {
    (202, json!({"status": "queued"}))
}

fn leased() -> (u16, Value) {
    let body = json!({
        "status": "queued", "polling_lease_token": "lease-1",
        "result_wait_timeout_sec": 30.0, "polling_lease_timeout_sec": 120.0,
    });
    (202, body)
}

fn is(status: &str) -> Value {
    json!({ "status": status })
}

/// Calls back as a server does.
async fn call(request: &Value, which: &str, key: &str, body: &Value) -> u16 {
    let url = request[which].as_str().unwrap();
    let client = osmosis_gateway::HttpClients::new(LONG);
    let client: Client = client.for_url(&url.parse().unwrap()).unwrap();
    let request = client
        .post(url)
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .body(body.to_string());
    request.send().await.unwrap().status().as_u16()
}

/// Asks the run's gateway for its models.
async fn models_with(request: &Value, key: &str) -> u16 {
    let url = format!(
        "{}/models",
        request["chat_completions_url"].as_str().unwrap()
    );
    let client = osmosis_gateway::HttpClients::new(LONG);
    let client: Client = client.for_url(&url.parse().unwrap()).unwrap();
    let request = client.get(url).bearer_auth(key);
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_need_their_key_and_count_once() {
    let puppet = Puppet::start(&[(200, json!({}))], &[None]).await;
    let evaluation = Evaluation::start(options(&puppet.url), &["answer"]).await;
    let told = async {
        let request = puppet.posted(1).await.remove(0);
        let key = request["controller_api_key"].as_str().unwrap();
        let model_key = request["llm_api_key"].as_str().unwrap();
        assert_ne!(model_key, key);
        assert_eq!(request["label"], "42");
        assert_eq!(request["agent_timeout_sec"], LONG.as_secs_f64());
        assert_ne!(request["rollout_id"], "r0-0");
        let (done, graded) = ("completion_callback_url", "grader_callback_url");
        let success = json!({"status": "success"});
        let grade = |reward: f64| json!({"status": "success", "samples": {"main": {"messages": [], "reward": reward}}});
        assert_eq!(call(&request, graded, "guess", &grade(9.0)).await, 401);
        // The agent has the model's key, and must not grade itself.
        assert_eq!(call(&request, graded, model_key, &grade(9.0)).await, 401);
        for opens in [model_key, key] {
            let models = models_with(&request, opens).await;
            assert_eq!(models, 200, "older servers send the one key that they know");
        }
        assert_eq!(call(&request, done, "guess", &success).await, 401);
        assert_eq!(call(&request, done, key, &success).await, 200);
        assert_eq!(
            call(&request, done, key, &json!({"status": "failure"})).await,
            200
        );
        assert_eq!(call(&request, graded, key, &grade(0.5)).await, 200);
        assert_eq!(call(&request, graded, key, &grade(7.0)).await, 200);
        let mut nobody = request.clone();
        let url = evaluation
            .gateway
            .url()
            .replace("/v1", "/callbacks/x/grader");
        nobody[graded] = json!(url);
        assert_eq!(call(&nobody, graded, key, &grade(8.0)).await, 404);
        request
    };
    let (end, request) = tokio::join!(evaluation.run(), told);
    assert_eq!(end, RunEnd::Complete);
    let reward = evaluation.outcome(0).await.reward().unwrap().get();
    assert!((reward - 0.5).abs() < 1e-9, "{reward}");
    // Who did not see our thanks calls again, after the end.
    let key = request["controller_api_key"].as_str().unwrap();
    let late = json!({"status": "failure"});
    assert_eq!(call(&request, "grader_callback_url", key, &late).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_can_be_polled_for_with_a_lease() {
    let graded =
        json!({"status": "success", "sample": {"messages": [{"role": "user"}], "reward": 1.0}});
    let looks = [Some(is("running")), Some(is("grading")), Some(graded)];
    let puppet = Puppet::start(&[leased()], &looks).await;
    let evaluation = Evaluation::start(options(&puppet.url), &["answer"]).await;
    assert_eq!(evaluation.outcomes().await[0].0, OutcomeKind::Scored);
    assert_eq!(*puppet.state.leases.lock(), ["lease-1"; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_polled_failure_is_the_agents_or_the_graders() {
    let failed = |sample: Value| {
        Some(
            json!({"status": "failure", "err_message": "boom", "err_category": "agent_error", "sample": sample}),
        )
    };
    for (look, kind) in [
        (failed(Value::Null), OutcomeKind::AgentFailed),
        (failed(json!({"messages": []})), OutcomeKind::Ungraded),
        (Some(is("failure")), OutcomeKind::Ungraded),
    ] {
        let puppet = Puppet::start(&[leased()], &[Some(is("running")), look]).await;
        let evaluation = Evaluation::start(options(&puppet.url), &["answer"]).await;
        let outcomes = evaluation.outcomes().await;
        assert_eq!(outcomes[0].0, kind, "{outcomes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_forgot_runs_again_under_another_id_and_is_never_made_up() {
    for (admission, look) in [
        (accepted(), Some(is("unknown"))),
        (accepted(), Some(is("cancelled"))),
        (leased(), None),
    ] {
        let puppet = Puppet::start(&[admission], &[look]).await;
        let evaluation = Evaluation::start(options(&puppet.url), &["answer"]).await;
        let outcomes = evaluation.outcomes().await;
        assert_eq!(
            outcomes[0].0,
            OutcomeKind::InfrastructureFailed,
            "{outcomes:?}"
        );
        let posted = puppet.posted(3).await;
        let mut ids: Vec<&str> = posted
            .iter()
            .map(|request| request["rollout_id"].as_str().unwrap())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 3, "{ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_that_never_comes_is_an_infrastructure_failure_that_names_our_address() {
    let puppet = Puppet::start(
        &[accepted()],
        &[Some(json!({"status": "success", "reward": 1.0}))],
    )
    .await;
    let options = RemoteOptions {
        callback_grace: Duration::ZERO,
        ..options(&puppet.url)
    };
    let evaluation = Evaluation::start(options, &["answer"]).await;
    let outcomes = evaluation.outcomes().await;
    let (kind, told) = &outcomes[0];
    assert_eq!(*kind, OutcomeKind::InfrastructureFailed);
    let base = evaluation.gateway.url().strip_suffix("/v1").unwrap();
    assert!(told.as_ref().unwrap().contains(base), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_fails_for_a_while_is_waited_for_and_a_refusal_is_final() {
    let posts = [
        (503, json!({})),
        (429, json!({})),
        (500, json!({})),
        leased(),
    ];
    let graded = json!({"status": "success", "sample": {"reward": 0.0}});
    let puppet = Puppet::start(&posts, &[Some(graded)]).await;
    let evaluation = Evaluation::start(options(&puppet.url), &["answer"]).await;
    let outcomes = evaluation.outcomes().await;
    assert_eq!(outcomes[0].0, OutcomeKind::Scored, "{outcomes:?}");

    let puppet = Puppet::start(&[(422, json!({"detail": "no such thing"}))], &[None]).await;
    let evaluation = Evaluation::start(options(&puppet.url), &["answer"]).await;
    let outcomes = evaluation.outcomes().await;
    let (kind, told) = &outcomes[0];
    assert_eq!(*kind, OutcomeKind::InfrastructureFailed);
    assert!(told.as_ref().unwrap().contains("no such thing"), "{told:?}");
    assert_eq!(puppet.posted(1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_for_good_fails_what_it_had_and_what_is_left() {
    let puppet = Puppet::start(&[leased()], &[Some(is("running"))]).await;
    let options = RemoteOptions {
        patience: Duration::ZERO,
        ..options(&puppet.url)
    };
    let evaluation = Evaluation::start(options, &["answer", "answer"]).await;
    let gone = async {
        puppet.posted(2).await;
        puppet.state.down.store(true, Ordering::SeqCst);
    };
    let (outcomes, ()) = tokio::join!(evaluation.outcomes(), gone);
    for (kind, told) in &outcomes {
        assert_eq!(*kind, OutcomeKind::InfrastructureFailed);
        assert!(told.as_ref().unwrap().contains("is down"), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_no_more_than_it_says_it_runs_at_once_and_its_deadline_is_kept_here() {
    let puppet = Puppet::start(&[leased()], &[Some(is("running"))]).await;
    *puppet.state.health.lock() = json!({"status": "ok", "concurrency": {"max_concurrent": 1}});
    let options = RemoteOptions {
        slack: Duration::from_millis(50),
        ..options(&puppet.url)
    };
    let limit = Duration::from_millis(50);
    let evaluation = Evaluation::with_limits(options, &["answer", "answer"], limit).await;
    let watching = async {
        let first = puppet.posted(1).await.remove(0);
        let both = puppet.posted(2).await;
        // The second came when the first had been given up.
        let given_up = puppet.state.cancelled.lock()[0].clone();
        assert_eq!(given_up["ids"][0], first["rollout_id"]);
        assert_eq!(both.len(), 2);
    };
    let (outcomes, ()) = tokio::join!(evaluation.outcomes(), watching);
    for (kind, _) in &outcomes {
        assert_eq!(*kind, OutcomeKind::TimedOut, "{outcomes:?}");
    }
}
