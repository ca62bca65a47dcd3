//! Servers that speak as vLLM and SGLang document it, and say what the test decided before.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, Uri};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::toy::{IM_END, chat_format, ids_of, logprob_of};

pub(crate) const CONTEXT: usize = 2000;

/// What the server does with a generation.
#[derive(Debug, Clone)]
pub(crate) enum Says {
    /// This text and an end of turn.
    Text(&'static str),
    /// These ids, then the connection breaks.
    BreaksAfter(&'static str),
    /// Nothing, ever.
    Silence,
    Status(u16, Option<&'static str>),
    /// Text, and not a word about tokens.
    WithoutIds(&'static str),
    /// An error within the stream.
    Error,
    /// Something else altogether.
    Html,
}

#[derive(Debug)]
pub(crate) struct EngineServer {
    /// Without `/v1`.
    pub(crate) root: String,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    says: Mutex<VecDeque<Says>>,
    received: Mutex<Vec<(String, Value)>>,
    /// SGLang: events tell the new tokens alone.
    incremental: bool,
    hang_ups: watch::Sender<usize>,
    arrivals: watch::Sender<usize>,
}

impl EngineServer {
    pub(crate) async fn start(says: impl IntoIterator<Item = Says>) -> Self {
        Self::start_with(says, false).await
    }

    pub(crate) async fn start_with(
        says: impl IntoIterator<Item = Says>,
        incremental: bool,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let root = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            says: Mutex::new(says.into_iter().collect()),
            received: Mutex::default(),
            incremental,
            hang_ups: watch::Sender::new(0),
            arrivals: watch::Sender::new(0),
        });
        let router = Router::new()
            .fallback(serve)
            .with_state(Arc::clone(&shared));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self {
            root,
            shared,
            _tasks: tasks,
        }
    }

    pub(crate) fn v1(&self) -> String {
        format!("{}/v1", self.root)
    }

    /// The generations that were asked for.
    pub(crate) fn asked(&self) -> Vec<Value> {
        let received = self.shared.received.lock();
        received.iter().map(|(_, body)| body.clone()).collect()
    }

    pub(crate) async fn wait_for_arrival(&self) {
        let mut arrivals = self.shared.arrivals.subscribe();
        arrivals.wait_for(|count| *count > 0).await.unwrap();
    }

    pub(crate) async fn wait_for_hang_up(&self) {
        let mut hang_ups = self.shared.hang_ups.subscribe();
        hang_ups.wait_for(|count| *count > 0).await.unwrap();
    }
}

/// Counts a caller that went away while nothing was said.
struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.hang_ups.send_modify(|count| *count += 1);
    }
}

async fn serve(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    if method == Method::GET {
        assert_eq!(uri.path(), "/v1/models");
        let card = json!({"id": "real-model", "object": "model", "max_model_len": CONTEXT});
        return json_reply(&json!({"object": "list", "data": [card]}));
    }
    let asked: Value = serde_json::from_slice(&body).unwrap();
    shared
        .received
        .lock()
        .push((uri.path().to_owned(), asked.clone()));
    shared.arrivals.send_modify(|count| *count += 1);
    let says = shared.says.lock().pop_front().unwrap();
    let (text, breaks) = match says {
        Says::Status(status, retry_after) => {
            let mut response = json_reply(&json!({"error": {"message": "not now"}}));
            *response.status_mut() = status.try_into().unwrap();
            if let Some(seconds) = retry_after {
                let value = seconds.parse().unwrap();
                response.headers_mut().insert("retry-after", value);
            }
            return response;
        }
        Says::Silence => {
            let held = Held(Arc::clone(&shared));
            let silence = stream::once(async move {
                let _held = held;
                std::future::pending::<Result<Bytes, Infallible>>().await
            });
            return event_stream(Body::from_stream(silence));
        }
        Says::Html => return Response::new(Body::from("<html>hello</html>")),
        Says::Error => {
            let error = json!({"error": {"message": "out of memory", "code": 500}});
            return event_stream(Body::from(format!("data: {error}\n\ndata: [DONE]\n\n")));
        }
        Says::WithoutIds(text) => {
            return without_ids(uri.path(), &asked, text);
        }
        Says::Text(text) => (text, false),
        Says::BreaksAfter(text) => (text, true),
    };
    let ids = [ids_of(text), vec![IM_END]].concat();
    match uri.path() {
        "/v1/completions" => events(&completions(&asked, &ids), breaks),
        "/generate" => events(&generate(&asked, &ids, shared.incremental), breaks),
        "/v1/chat/completions" if asked["stream"] == true => {
            events(&chat_chunks(&asked, &ids), breaks)
        }
        path => {
            assert_eq!(path, "/v1/chat/completions");
            json_reply(&chat_whole(&asked, &ids))
        }
    }
}

fn json_reply(value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    let json = "application/json".parse().unwrap();
    response.headers_mut().insert("content-type", json);
    response
}

fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let events = "text/event-stream".parse().unwrap();
    response.headers_mut().insert("content-type", events);
    response
}

/// Events, then `[DONE]` or the end of the connection.
fn events(told: &[Value], breaks: bool) -> Response {
    // What breaks does so before it says why it ends.
    let is_end = |event: &Value| {
        !event["choices"][0]["finish_reason"].is_null()
            || !event["meta_info"]["finish_reason"].is_null()
            || !event["usage"].is_null()
    };
    let mut pieces: Vec<Result<String, io::Error>> = told
        .iter()
        .filter(|event| !breaks || !is_end(event))
        .map(|event| Ok(format!("data: {event}\n\n")))
        .collect();
    if breaks {
        pieces.push(Err(io::Error::other("the server was killed")));
    } else {
        pieces.push(Ok("data: [DONE]\n\n".to_owned()));
    }
    // What is ready at once is written at once, and an error would take it back.
    let paced = stream::iter(pieces).then(|piece| async move {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        piece
    });
    event_stream(Body::from_stream(paced))
}

/// The ids up to a stop id or the limit, and why they end.
fn ended<'a>(ids: &'a [u32], stop_ids: &Value, limit: &Value) -> (&'a [u32], &'static str) {
    let limit = usize::try_from(limit.as_u64().unwrap_or(1000)).unwrap();
    let stops: Vec<u32> = serde_json::from_value(stop_ids.clone()).unwrap_or_default();
    match ids.iter().position(|id| stops.contains(id)) {
        Some(place) if place < limit => (&ids[..=place], "stop"),
        _ if ids.len() > limit => (&ids[..limit], "length"),
        _ => (ids, "length"),
    }
}

fn completions(asked: &Value, ids: &[u32]) -> Vec<Value> {
    assert_eq!(asked["model"], "real-model");
    assert_eq!(asked["stream"], true);
    assert_eq!(asked["return_token_ids"], true);
    assert_eq!(asked["skip_special_tokens"], false);
    let (ids, reason) = ended(ids, &asked["stop_token_ids"], &asked["max_tokens"]);
    let last = ids.len() - 1;
    ids.iter()
        .enumerate()
        .map(|(place, id)| {
            let name = format!("token_id:{id}");
            let mut choice = json!({
                "index": 0,
                "text": chat_format().decode(&[*id], false).unwrap(),
                "logprobs": {"text_offset": [place], "token_logprobs": [logprob_of(*id)],
                    "tokens": [name.clone()], "top_logprobs": [{name: logprob_of(*id)}]},
                "finish_reason": (place == last).then_some(reason),
                "stop_reason": null,
                "token_ids": [id],
            });
            if place == 0 {
                choice["prompt_token_ids"] = asked["prompt"].clone();
            }
            json!({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "real-model",
                "choices": [choice]})
        })
        .collect()
}

fn generate(asked: &Value, ids: &[u32], incremental: bool) -> Vec<Value> {
    assert_eq!(asked["stream"], true);
    assert_eq!(asked["return_logprob"], true);
    let params = &asked["sampling_params"];
    let (ids, reason) = ended(ids, &params["stop_token_ids"], &params["max_new_tokens"]);
    (1..=ids.len())
        .map(|count| {
            let told = if incremental {
                &ids[count - 1..count]
            } else {
                &ids[..count]
            };
            let entries: Vec<Value> = told
                .iter()
                .map(|id| json!([logprob_of(*id), id, null]))
                .collect();
            let finish = match reason {
                _ if count < ids.len() => Value::Null,
                "stop" => json!({"type": "stop", "matched": ids[count - 1]}),
                _ => json!({"type": "length", "length": count}),
            };
            json!({
                "text": chat_format().decode(told, false).unwrap(),
                "output_ids": told,
                "meta_info": {"id": "r1", "finish_reason": finish, "weight_version": "7",
                    "prompt_tokens": asked["input_ids"].as_array().unwrap().len(),
                    "completion_tokens": count, "output_token_logprobs": entries},
            })
        })
        .collect()
}

fn prompt_of(asked: &Value) -> Vec<u32> {
    let format = chat_format();
    let messages = asked["messages"].as_array().unwrap();
    let tools = asked["tools"].as_array().map(Vec::as_slice);
    let text = format.render(messages, tools, true, &Map::new()).unwrap();
    format.encode(&text).unwrap()
}

fn chat_logprobs(asked: &Value, ids: &[u32]) -> Value {
    if asked["logprobs"] != true {
        return Value::Null;
    }
    let entries: Vec<Value> = ids
        .iter()
        .map(|id| json!({"token": "?", "logprob": logprob_of(*id), "bytes": [63], "top_logprobs": []}))
        .collect();
    json!({"content": entries})
}

fn chat_whole(asked: &Value, ids: &[u32]) -> Value {
    let prompt = prompt_of(asked);
    let text = chat_format().decode(ids, true).unwrap();
    let mut choice = json!({"index": 0, "message": {"role": "assistant", "content": text},
        "logprobs": chat_logprobs(asked, ids), "finish_reason": "stop", "stop_reason": null});
    let mut reply = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1,
        "model": "real-model", "usage": {"prompt_tokens": prompt.len(),
        "total_tokens": prompt.len() + ids.len(), "completion_tokens": ids.len()}});
    if asked["return_token_ids"] == true {
        choice["token_ids"] = json!(ids);
        reply["prompt_token_ids"] = json!(prompt);
    }
    reply["choices"] = json!([choice]);
    reply
}

fn chat_chunks(asked: &Value, ids: &[u32]) -> Vec<Value> {
    let prompt = prompt_of(asked);
    let wants_ids = asked["return_token_ids"] == true;
    let chunk = |choices: Value| {
        json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
            "model": "real-model", "choices": choices})
    };
    let mut opening = chunk(
        json!([{"index": 0, "delta": {"role": "assistant", "content": ""},
        "logprobs": null, "finish_reason": null}]),
    );
    if wants_ids {
        opening["prompt_token_ids"] = json!(prompt);
    }
    let mut chunks = vec![opening];
    for (place, id) in ids.iter().enumerate() {
        let is_last = place + 1 == ids.len();
        let mut choice = json!({"index": 0,
            "delta": {"content": chat_format().decode(&[*id], true).unwrap()},
            "logprobs": chat_logprobs(asked, &[*id]),
            "finish_reason": (is_last && *id == IM_END).then_some("stop")});
        if wants_ids {
            choice["token_ids"] = json!([id]);
        }
        chunks.push(chunk(json!([choice])));
    }
    if asked["stream_options"]["include_usage"] == true {
        let mut usage = chunk(json!([]));
        usage["usage"] = json!({"prompt_tokens": prompt.len(), "completion_tokens": ids.len()});
        chunks.push(usage);
    }
    chunks
}

/// What servers send that do not know of token ids.
fn without_ids(path: &str, asked: &Value, text: &str) -> Response {
    match path {
        "/v1/completions" => {
            let choice =
                json!({"index": 0, "text": text, "logprobs": null, "finish_reason": "stop"});
            events(&[json!({"id": "c", "choices": [choice]})], false)
        }
        "/generate" => {
            let meta = json!({"id": "r", "finish_reason": null, "completion_tokens": 2});
            events(&[json!({"text": text, "meta_info": meta})], false)
        }
        _ => {
            let choice = json!({"index": 0, "message": {"role": "assistant", "content": text},
                "finish_reason": "stop"});
            assert!(asked["messages"].is_array());
            json_reply(&json!({"id": "c", "choices": [choice],
                "usage": {"prompt_tokens": 9, "completion_tokens": 3}}))
        }
    }
}
