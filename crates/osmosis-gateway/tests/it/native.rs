//! Upstreams that speak a dialect themselves: its bytes pass untouched.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use osmosis_gateway::{Dialect, GatewayOptions, Sampling, Secret, UpstreamOptions, UpstreamPolicy};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::fixture::{API_KEY, Answer, House};
use crate::memory_store::MemoryStore;

const RESPONSE: &str = r#"{"id":"resp_1","object":"response","status":"completed","output":[{"type":"web_search_call","id":"ws_1"}],"novelty":[1],"usage":{"input_tokens":11,"input_tokens_details":{"cached_tokens":3},"output_tokens":4,"total_tokens":15}}"#;
const RESPONSE_STREAM: &str = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_1\",\"output\":[],\"usage\":null}}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"delta\":\"hi\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":2,\"response\":{\"id\":\"resp_1\",\"output\":[],\"usage\":{\"input_tokens\":11,\"output_tokens\":4}}}\n\n";
const MESSAGE: &str = r#"{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text","text":"hi","novelty":1}],"usage":{"input_tokens":8,"cache_read_input_tokens":3,"output_tokens":4}}"#;
const MESSAGE_STREAM: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"content\":[],\"usage\":{\"input_tokens\":8,\"cache_read_input_tokens\":3,\"output_tokens\":1}}}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":4}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
const TEXT: &str = r#"{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" there was","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":11,"completion_tokens":4}}"#;
const TEXT_STREAM: &str = "data: {\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"text\":\" there\",\"finish_reason\":\"length\"}]}\n\ndata: {\"id\":\"cmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":4}}\n\ndata: [DONE]\n\n";

#[derive(Debug, Default)]
struct Upstream {
    received: Mutex<Vec<(String, HeaderMap, Bytes)>>,
    /// What is left out of the end of every stream.
    cut: usize,
}

async fn serve(State(upstream): State<Arc<Upstream>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let asked: Value = serde_json::from_slice(&body).unwrap();
    let path = parts.uri.path().to_owned();
    upstream
        .received
        .lock()
        .push((path.clone(), parts.headers, body));
    let (whole, stream) = match path.as_str() {
        "/v1/responses" => (RESPONSE, RESPONSE_STREAM),
        "/v1/messages" => (MESSAGE, MESSAGE_STREAM),
        "/v1/completions" => (TEXT, TEXT_STREAM),
        other => unreachable!("nobody asks for {other}"),
    };
    let (kind, body) = if asked["stream"] == true {
        ("text/event-stream", &stream[..stream.len() - upstream.cut])
    } else {
        ("application/json", whole)
    };
    Response::builder()
        .header("content-type", kind)
        .body(Body::from(body))
        .unwrap()
}

async fn house(cut: usize) -> (House, Arc<Upstream>, JoinSet<()>) {
    let upstream = Arc::new(Upstream {
        cut,
        ..Upstream::default()
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let router = Router::new()
        .fallback(serve)
        .with_state(Arc::clone(&upstream));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    let mut options = UpstreamOptions::new(url, "real-model");
    options.endpoints[0].api_key = Some(Secret::new(API_KEY));
    options.dialects = Dialect::ALL.to_vec();
    let policy = UpstreamPolicy::new(options).unwrap();
    let options = GatewayOptions {
        sampling: Sampling {
            temperature: Some(0.5),
            top_p: None,
            overrides: false,
        },
        ..GatewayOptions::default()
    };
    let house = House::with(policy, options, MemoryStore::default()).await;
    (house, upstream, tasks)
}

async fn call(house: &House, path: &str, body: &str) -> Answer {
    let request = house
        .client
        .post(format!("{}/{path}", house.gateway.url()))
        .header("x-api-key", house.session.key())
        .header("anthropic-beta", "novelty-2026")
        .body(body.to_owned());
    Answer::of(request.send().await.unwrap()).await
}

#[tokio::test]
async fn what_the_upstream_speaks_itself_passes_byte_for_byte() {
    let (house, upstream, _tasks) = house(0).await;
    #[rustfmt::skip]
    let cases = [
        ("responses", r#"{"model":"real-model","input":"x","previous_response_id":"resp_0","tools":[{"type":"web_search"}],"temperature":1}"#, RESPONSE),
        ("responses", r#"{"model":"real-model","input":"x","novelty": 1.50,"stream":true,"temperature":1}"#, RESPONSE_STREAM),
        ("messages", r#"{"model":"real-model","messages":[],"novelty": 1.50,"temperature":1}"#, MESSAGE),
        ("messages", r#"{"model":"real-model","messages":[],"stream":true,"temperature":1}"#, MESSAGE_STREAM),
        ("completions", r#"{"model":"real-model","prompt":[1,2],"echo":true,"temperature":1}"#, TEXT),
        ("completions", r#"{"model":"real-model","prompt":[1,2],"stream":true,"stream_options":{"include_usage":true},"temperature":1}"#, TEXT_STREAM),
    ];
    for (index, (path, body, reply)) in cases.into_iter().enumerate() {
        let answer = call(&house, path, body).await;
        assert_eq!(
            (answer.status, answer.text.as_str()),
            (200, reply),
            "{path}"
        );
        let (to, headers, sent) = upstream.received.lock()[index].clone();
        assert_eq!(to, format!("/v1/{path}"));
        assert_eq!(sent, body.as_bytes());
        if path == "messages" {
            assert_eq!(headers["x-api-key"], API_KEY);
            assert_eq!(headers["anthropic-version"], "2023-06-01");
            assert_eq!(headers["anthropic-beta"], "novelty-2026");
            assert!(!headers.contains_key("authorization"));
        } else {
            assert_eq!(headers["authorization"], format!("Bearer {API_KEY}"));
            assert!(!headers.contains_key("anthropic-beta"));
        }
        let recorded = &house.store.calls()[index];
        assert_eq!(recorded.dialect, path);
        assert_eq!(
            (&recorded.request[..], &recorded.response.joined()[..]),
            (body.as_bytes(), reply.as_bytes())
        );
        assert_eq!(
            (recorded.prompt_tokens, recorded.completion_tokens),
            (Some(11), Some(4)),
            "{path}"
        );
        assert_eq!((recorded.status, &recorded.error), (200, &None));
    }
}

#[tokio::test]
async fn model_and_sampling_are_filled_in_where_the_upstream_speaks_the_dialect_too() {
    let (house, upstream, _tasks) = house(0).await;
    for (path, body, sent) in [
        (
            "responses",
            r#"{"input":"x"}"#,
            r#"{"input":"x","model":"real-model","temperature":0.5}"#,
        ),
        (
            "messages",
            r#"{"model":"claude","messages":[]}"#,
            r#"{"model":"real-model","messages":[],"temperature":0.5}"#,
        ),
    ] {
        assert_eq!(call(&house, path, body).await.status, 200);
        let received = upstream.received.lock().pop().unwrap();
        assert_eq!(received.2, sent.as_bytes());
    }
}

#[tokio::test]
async fn a_stream_of_any_dialect_that_ends_early_is_noticed() {
    for (path, body, cut) in [
        (
            "responses",
            r#"{"input":"x","stream":true}"#,
            RESPONSE_STREAM,
        ),
        (
            "messages",
            r#"{"messages":[],"stream":true}"#,
            MESSAGE_STREAM,
        ),
    ] {
        // Without the last event.
        let last = cut.rfind("event: ").unwrap();
        let (house, _upstream, _tasks) = house(cut.len() - last).await;
        let answer = call(&house, path, body).await;
        assert!(answer.aborted, "{path}");
        assert!(
            answer
                .text
                .contains("event: error\ndata: {\"type\":\"error\""),
            "{}",
            answer.text
        );
        let recorded = &house.store.calls()[0];
        assert!(
            recorded
                .error
                .as_deref()
                .unwrap()
                .starts_with("upstream_cut_short: ")
        );
    }
}
