//! An OpenAI-compatible model server that needs no model, with the faults of real ones.
//!
//! It speaks the documented wire format (plain and streamed, tool calls, usage) and holds one
//! conversation: asked `What is A times B` with tools it calls `multiply`, given a tool's result it
//! answers with it, and without tools it answers at once.

mod replies;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::replies::{DONE, completion, events_of};

/// What the server does with chat calls.
#[derive(Debug, Clone, Default)]
pub enum Behaviour {
    /// Answers, always.
    #[default]
    Answers,
    /// Nobody listens at its URL.
    Down,
    /// Says nothing for so long, then answers.
    SlowFirstByte(Duration),
    /// Says nothing until the gate is opened, then answers.
    Held(Gate),
    /// Streams the first event, then waits for the gate.
    HeldAfterFirstEvent(Gate),
    /// Refuses the first `times` calls with this status, then answers.
    RefusesFirst {
        times: usize,
        status: u16,
        retry_after: Option<&'static str>,
    },
    /// Refuses every call with this status; the complaint quotes the key it was sent, as real ones do.
    Refuses { status: u16 },
    /// Sends this with status 200, as `application/json`, or as `text/event-stream` to a streamed call.
    Garbage(&'static str),
    /// Breaks the connection in the middle of the reply.
    CutsShort,
    /// Ends a stream politely, but before its end.
    EndsEarly,
    /// Reports an error within the stream.
    ReportsWithinStream,
    /// Answers streamed calls with a whole completion.
    CannotStream,
    /// Streams like servers that leave out `[DONE]`.
    NeverSaysDone,
    /// Breaks the connection instead of a reply.
    Resets,
    /// Does one after the other, a call each, and begins anew after the last.
    InTurn(Vec<Behaviour>),
    /// Refuses `max_tokens`, as reasoning models do, and tells cached and reasoning tokens.
    Reasons,
}

/// Holds something back until a test lets it go.
#[derive(Debug, Clone)]
pub struct Gate(watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Gate {
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    async fn wait(&self) {
        // The sender is alive: it is `self`.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

/// A chat call as it arrived.
#[derive(Debug, Clone)]
pub struct ReceivedCall {
    pub headers: HeaderMap,
    pub raw: Bytes,
    /// `Null` when it was not JSON.
    pub body: Value,
}

/// A running server; it stops when dropped.
#[derive(Debug)]
pub struct ModelServer {
    url: String,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    behaviour: Behaviour,
    received: Mutex<Vec<ReceivedCall>>,
    refused: AtomicUsize,
    turns: AtomicUsize,
    arrivals: watch::Sender<usize>,
    hang_ups: watch::Sender<usize>,
}

impl ModelServer {
    pub async fn start(behaviour: Behaviour) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        let down = matches!(behaviour, Behaviour::Down);
        let shared = Arc::new(Shared {
            behaviour,
            received: Mutex::default(),
            refused: AtomicUsize::new(0),
            turns: AtomicUsize::new(0),
            arrivals: watch::Sender::new(0),
            hang_ups: watch::Sender::new(0),
        });
        let mut tasks = JoinSet::new();
        if !down {
            let router = Router::new()
                .fallback(serve)
                .with_state(Arc::clone(&shared));
            tasks.spawn(async move {
                // It never returns; dropping the set ends it.
                let _ = axum::serve(listener, router).await;
            });
        }
        Ok(Self {
            url,
            shared,
            _tasks: tasks,
        })
    }

    /// The base URL, for `OPENAI_BASE_URL`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The chat calls so far, also those that were refused.
    pub fn requests(&self) -> Vec<ReceivedCall> {
        match self.shared.received.lock() {
            Ok(received) => received.clone(),
            Err(poisoned) => poisoned.into_inner().clone(),
        }
    }

    /// Returns when `n` calls have arrived.
    pub async fn wait_for_requests(&self, n: usize) {
        // The sender is alive: it is ours.
        let _ = self
            .shared
            .arrivals
            .subscribe()
            .wait_for(|count| *count >= n)
            .await;
    }

    /// Returns when `n` callers have gone away before their reply was complete.
    pub async fn wait_for_hang_ups(&self, n: usize) {
        let _ = self
            .shared
            .hang_ups
            .subscribe()
            .wait_for(|count| *count >= n)
            .await;
    }
}

/// Counts as a hang-up when it is dropped before the reply is complete.
struct Reply {
    shared: Arc<Shared>,
    complete: bool,
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.complete {
            self.shared.hang_ups.send_modify(|count| *count += 1);
        }
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match (parts.method, parts.uri.path()) {
        (Method::POST, "/v1/chat/completions") => {}
        (Method::GET, "/v1/models") => {
            let list = json!({"object": "list", "data": [{"id": "fake", "object": "model", "created": 0, "owned_by": "testkit"}]});
            return whole(200, &list);
        }
        _ => return complaint(404, "no such endpoint"),
    }
    let Ok(raw) = to_bytes(body, usize::MAX).await else {
        return complaint(400, "the body broke off");
    };
    let call = ReceivedCall {
        body: serde_json::from_slice(&raw).unwrap_or_default(),
        headers: parts.headers,
        raw,
    };
    match shared.received.lock() {
        Ok(mut received) => received.push(call.clone()),
        Err(poisoned) => poisoned.into_inner().push(call.clone()),
    }
    let mut reply = Reply {
        shared: Arc::clone(&shared),
        complete: false,
    };
    shared.arrivals.send_modify(|count| *count += 1);
    let response = respond(&shared, &call).await;
    match response {
        Answer::Whole(response) => {
            reply.complete = true;
            response
        }
        Answer::Stream(script) => streamed(script, reply),
    }
}

enum Answer {
    Whole(Response),
    Stream(Vec<Step>),
}

/// A step of a stream.
enum Step {
    Send(Bytes),
    Wait(Gate),
    Break,
}

async fn respond(shared: &Shared, call: &ReceivedCall) -> Answer {
    let mut behaviour = &shared.behaviour;
    if let Behaviour::InTurn(all) = behaviour {
        let turn = shared.turns.fetch_add(1, Ordering::SeqCst);
        behaviour = all
            .get(turn % all.len().max(1))
            .unwrap_or(&Behaviour::Answers);
    }
    let streamed = call.body["stream"] == json!(true);
    let completion = completion(&call.body);
    let wants_usage = call.body["stream_options"]["include_usage"] == json!(true);
    let mut events = events_of(&completion, wants_usage);
    let answer = |events: Vec<Bytes>| {
        if streamed {
            Answer::Stream(events.into_iter().map(Step::Send).collect())
        } else {
            Answer::Whole(whole(200, &completion))
        }
    };
    match behaviour {
        Behaviour::Answers | Behaviour::Down | Behaviour::InTurn(_) => answer(events),
        // Ends the connection's task, without a word.
        Behaviour::Resets => std::panic::resume_unwind(Box::new("reset")),
        Behaviour::SlowFirstByte(wait) => {
            tokio::time::sleep(*wait).await;
            answer(events)
        }
        Behaviour::Held(gate) => {
            gate.wait().await;
            answer(events)
        }
        Behaviour::HeldAfterFirstEvent(gate) => {
            let mut steps: Vec<Step> = events.into_iter().map(Step::Send).collect();
            steps.insert(1, Step::Wait(gate.clone()));
            Answer::Stream(steps)
        }
        Behaviour::RefusesFirst {
            times,
            status,
            retry_after,
        } => {
            if shared.refused.fetch_add(1, Ordering::SeqCst) >= *times {
                return answer(events);
            }
            let mut response = complaint(*status, "not now");
            if let Some(text) = retry_after {
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, header::HeaderValue::from_static(text));
            }
            Answer::Whole(response)
        }
        Behaviour::Refuses { status } => {
            let key = call
                .headers
                .get(header::AUTHORIZATION)
                .and_then(|value| value.to_str().ok())
                .unwrap_or("no key");
            Answer::Whole(complaint(
                *status,
                &format!("refused, as always, with {key}"),
            ))
        }
        Behaviour::Garbage(text) => {
            let kind = if streamed {
                "text/event-stream"
            } else {
                "application/json"
            };
            Answer::Whole(response(200, kind, Body::from(*text)))
        }
        Behaviour::CutsShort if streamed => {
            let mut steps: Vec<Step> = events.into_iter().take(2).map(Step::Send).collect();
            steps.push(Step::Break);
            Answer::Stream(steps)
        }
        Behaviour::CutsShort => {
            let text = completion.to_string();
            let half = Bytes::from(text[..text.len() / 2].to_owned());
            let pieces = stream::unfold(Some(half), |half| async move {
                if let Some(half) = half {
                    return Some((Ok(half), None));
                }
                // What was sent goes out before the error, which would throw it away.
                tokio::task::yield_now().await;
                Some((Err(io::Error::other("cut")), None))
            });
            let mut response = response(200, "application/json", Body::from_stream(pieces));
            response
                .headers_mut()
                .insert(header::CONTENT_LENGTH, text.len().into());
            Answer::Whole(response)
        }
        Behaviour::EndsEarly => {
            events.truncate(2);
            answer(events)
        }
        Behaviour::ReportsWithinStream => {
            events.truncate(1);
            events.push(Bytes::from_static(
                b"data: {\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\"}}\n\n",
            ));
            events.push(Bytes::from_static(DONE));
            answer(events)
        }
        Behaviour::CannotStream => Answer::Whole(whole(200, &completion)),
        Behaviour::NeverSaysDone => {
            events.retain(|event| event != DONE);
            answer(events)
        }
        Behaviour::Reasons if call.body.get("max_tokens").is_some() => {
            let error = json!({"error": {"type": "invalid_request_error", "param": "max_tokens",
                "code": "unsupported_parameter", "message": "Unsupported parameter: 'max_tokens' is not \
                    supported with this model. Use 'max_completion_tokens' instead."}});
            Answer::Whole(whole(400, &error))
        }
        Behaviour::Reasons => {
            let mut completion = completion;
            completion["usage"]["prompt_tokens_details"] = json!({"cached_tokens": 2});
            completion["usage"]["completion_tokens_details"] = json!({"reasoning_tokens": 3});
            if streamed {
                let events = events_of(&completion, wants_usage);
                return Answer::Stream(events.into_iter().map(Step::Send).collect());
            }
            Answer::Whole(whole(200, &completion))
        }
    }
}

fn streamed(steps: Vec<Step>, reply: Reply) -> Response {
    let body = stream::unfold(
        (steps.into_iter(), reply),
        |(mut steps, mut reply)| async move {
            loop {
                match steps.next()? {
                    Step::Wait(gate) => gate.wait().await,
                    Step::Send(event) => {
                        // Whoever reads up to the last event has had it all.
                        reply.complete = steps.len() == 0;
                        return Some((Ok(event), (steps, reply)));
                    }
                    Step::Break => {
                        reply.complete = true;
                        // What was sent goes out before the error, which would throw it away.
                        tokio::task::yield_now().await;
                        return Some((Err(io::Error::other("cut")), (steps, reply)));
                    }
                }
            }
        },
    );
    response(200, "text/event-stream", Body::from_stream(body))
}

fn response(status: u16, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(content_type),
    );
    response
}

fn whole(status: u16, value: &Value) -> Response {
    response(status, "application/json", Body::from(value.to_string()))
}

fn complaint(status: u16, message: &str) -> Response {
    let error =
        json!({"error": {"message": message, "type": "fake_error", "param": null, "code": null}});
    whole(status, &error)
}
