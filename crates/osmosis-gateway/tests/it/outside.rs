//! What can be seen from outside: metrics and spans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use osmosis_gateway::{GatewayOptions, TelemetryOptions};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fixture::{streamed, user};
use crate::fleet::{Fleet, Mode, Peer, options_for};

/// A page of Prometheus' text format as values by name and labels; every line has to be in the format.
fn parsed(page: &str) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert_eq!(
                kinds.insert(name.to_owned(), kind.to_owned()),
                None,
                "{line}"
            );
            continue;
        }
        if line.starts_with("# HELP ") || line == "# EOF" {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = series.split('{').next().unwrap();
        let base = ["_bucket", "_sum", "_count", "_total"]
            .iter()
            .find_map(|end| {
                name.strip_suffix(end)
                    .filter(|base| kinds.contains_key(*base))
            })
            .unwrap_or(name);
        assert!(kinds.contains_key(base), "{line} has no type");
        assert!(series == name || series.ends_with("\"}"), "{line}");
        values.insert(series.to_owned(), value.parse().unwrap());
    }
    values
}

#[tokio::test]
async fn metrics_tell_of_calls_by_upstream_and_never_of_rollouts() {
    let (a, b) = (Peer::start("a").await, Peer::start("b").await);
    a.set(Mode::Refuses(500));
    let fleet = Fleet::start(options_for(&[&a, &b])).await;
    let session = fleet.session(77);
    fleet.who_answers(&session).await;
    let sent = fleet.post(&session, &streamed("hi")).send().await.unwrap();
    sent.bytes().await.unwrap();
    fleet.store.wait_for(2).await;
    b.set(Mode::Held);
    let mut waiting = Box::pin(fleet.ask(&session));
    tokio::select! {
        _ = &mut waiting => panic!("it was answered"),
        () = b.wait_for_arrivals(3) => {}
    }
    let key = fleet.gateway.control_key().expose();
    let page = fleet.control("/metrics", None, key).send().await.unwrap();
    assert!(
        page.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    let page = page.text().await.unwrap();
    assert!(
        !page.contains("r77") && !page.contains(session.key()),
        "{page}"
    );
    let values = parsed(&page);
    let of = |series: &str| {
        let series = format!("osmosis_gateway_{series}")
            .replace("$a", &a.url)
            .replace("$b", &b.url)
            .replace("$d", "dialect=\"chat_completions\"");
        *values
            .get(&series)
            .unwrap_or_else(|| panic!("{series}\n{page}"))
    };
    let checks = [
        ("requests_total{$d,upstream=\"$b\",outcome=\"ok\"}", 2.0),
        ("tokens_total{$d,upstream=\"$b\",kind=\"input\"}", 14.0),
        ("tokens_total{$d,upstream=\"$b\",kind=\"output\"}", 6.0),
        ("retries_total{$d,upstream=\"$b\"}", 1.0),
        ("request_duration_seconds_count{$d,upstream=\"$b\"}", 2.0),
        (
            "request_duration_seconds_bucket{le=\"+Inf\",$d,upstream=\"$b\"}",
            2.0,
        ),
        ("time_to_first_token_seconds_count{$d,upstream=\"$b\"}", 2.0),
        ("queue_wait_seconds_count{$d,upstream=\"$b\"}", 2.0),
        ("in_flight{policy=\"\"}", 1.0),
        ("queue_length{policy=\"\"}", 0.0),
        ("policy_version{policy=\"\"}", 0.0),
        ("upstream_in_flight{policy=\"\",upstream=\"$b\"}", 1.0),
        ("upstream_up{policy=\"\",upstream=\"$a\"}", 1.0),
    ];
    for (series, expected) in checks {
        let value = of(series);
        assert!((value - expected).abs() < 1e-9, "{series} is {value}");
    }
    drop(waiting);
    fleet.store.wait_for(3).await;
    let page = fleet.control("/metrics", None, key).send().await.unwrap();
    let page = page.text().await.unwrap();
    assert!(page.contains("outcome=\"caller_hung_up\"} 1"), "{page}");
}

/// What a collector was sent.
#[derive(Debug, Default)]
struct Received {
    requests: Vec<(HeaderMap, Value)>,
}

type Inbox = Arc<watch::Sender<Received>>;

async fn collector() -> (String, Inbox, JoinSet<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let inbox = Inbox::default();
    let router = Router::new()
        .route(
            "/v1/traces",
            axum::routing::post(
                |State(inbox): State<Inbox>, headers: HeaderMap, body: String| async move {
                    let body = serde_json::from_str(&body).unwrap();
                    inbox.send_modify(|received| received.requests.push((headers, body)));
                    "{}"
                },
            ),
        )
        .with_state(inbox.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ = axum::serve(listener, router).await;
    });
    (url, inbox, tasks)
}

fn spans(received: &Received) -> Vec<Value> {
    received
        .requests
        .iter()
        .flat_map(|(_, body)| {
            body["resourceSpans"][0]["scopeSpans"][0]["spans"]
                .as_array()
                .unwrap()
                .clone()
        })
        .collect()
}

fn attributes(span: &Value) -> BTreeMap<String, Value> {
    let all = span["attributes"].as_array().unwrap();
    all.iter()
        .map(|attribute| {
            let value = attribute["value"].as_object().unwrap();
            assert_eq!(value.len(), 1);
            let key = attribute["key"].as_str().unwrap().to_owned();
            (key, value.values().next().unwrap().clone())
        })
        .collect()
}

#[tokio::test]
async fn calls_are_exported_as_spans_with_the_genai_names() {
    let (url, inbox, _tasks) = collector().await;
    let telemetry = TelemetryOptions::from_variables(|name| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(url.clone()),
        "OTEL_EXPORTER_OTLP_HEADERS" => Some("x-collector-key=secret".to_owned()),
        "OTEL_BSP_SCHEDULE_DELAY" => Some("1".to_owned()),
        _ => None,
    });
    let options = GatewayOptions {
        telemetry: telemetry.unwrap(),
        ..GatewayOptions::default()
    };
    let a = Peer::start("a").await;
    let mut upstream = options_for(&[&a]);
    upstream.retries = 0;
    let fleet = Fleet::start_with(upstream, options).await;
    let session = fleet.session(3);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let call = fleet
        .post(&session, &user("the prompt"))
        .header("traceparent", &parent);
    assert_eq!(call.send().await.unwrap().status(), 200);
    // A trace that its caller does not keep is not ours to keep.
    let unsampled = parent.replace("-01", "-00");
    let call = fleet
        .post(&session, &user("hi"))
        .header("traceparent", unsampled);
    assert_eq!(call.send().await.unwrap().status(), 200);
    a.set(Mode::Refuses(503));
    assert_eq!(fleet.ask(&session).await.status, 503);
    let mut received = inbox.subscribe();
    let limit = Duration::from_secs(20);
    let both = received.wait_for(|received| spans(received).len() >= 2);
    drop(tokio::time::timeout(limit, both).await.unwrap().unwrap());
    assert!(fleet.gateway.shut_down(Duration::from_secs(5)).await);
    let received = inbox.borrow();
    let (headers, body) = &received.requests[0];
    assert_eq!(headers["x-collector-key"], "secret");
    assert_eq!(headers["content-type"], "application/json");
    let resource = &body["resourceSpans"][0]["resource"]["attributes"];
    assert_eq!(
        resource[0],
        json!({"key": "service.name", "value": {"stringValue": "osmosis"}})
    );
    let spans = spans(&received);
    assert_eq!(spans.len(), 2);

    let fine = &spans[0];
    assert_eq!(fine["name"], "chat real-model");
    assert_eq!(fine["kind"], 3);
    assert_eq!(
        (&fine["traceId"], &fine["parentSpanId"]),
        (&json!(trace), &json!("00f067aa0ba902b7"))
    );
    assert_eq!(fine["spanId"].as_str().unwrap().len(), 16);
    assert_eq!(fine.get("status"), None);
    let nanoseconds = |key: &str| fine[key].as_str().unwrap().parse::<u128>().unwrap();
    assert!(nanoseconds("endTimeUnixNano") >= nanoseconds("startTimeUnixNano"));
    assert!(nanoseconds("startTimeUnixNano") > 1_700_000_000_000_000_000);
    let said = attributes(fine);
    for (key, value) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.provider.name", json!("openai")),
        ("gen_ai.request.model", json!("real-model")),
        ("gen_ai.usage.input_tokens", json!("7")),
        ("gen_ai.usage.output_tokens", json!("3")),
        ("server.address", json!("127.0.0.1")),
        ("http.response.status_code", json!("200")),
        ("osmosis.rollout.id", json!("r3-0")),
        ("osmosis.sample.id", json!("main")),
    ] {
        assert_eq!(said.get(key), Some(&value), "{key}");
    }
    assert!(!fine.to_string().contains("the prompt"));

    let failed = &spans[1];
    assert_ne!(failed["traceId"], fine["traceId"]);
    assert_eq!(failed["status"]["code"], 2);
    assert_eq!(attributes(failed)["error.type"], "upstream_server_error");
}

#[tokio::test]
async fn a_collector_that_is_gone_costs_spans_and_nothing_else() {
    let telemetry = TelemetryOptions::from_variables(|name| {
        (name == "OTEL_EXPORTER_OTLP_ENDPOINT").then(|| "http://127.0.0.1:1".to_owned())
    });
    let options = GatewayOptions {
        telemetry: telemetry.unwrap(),
        ..GatewayOptions::default()
    };
    let a = Peer::start("a").await;
    let fleet = Fleet::start_with(options_for(&[&a]), options).await;
    assert_eq!(fleet.who_answers(&fleet.session(0)).await, "a");
    assert!(fleet.gateway.shut_down(Duration::from_secs(5)).await);
}
