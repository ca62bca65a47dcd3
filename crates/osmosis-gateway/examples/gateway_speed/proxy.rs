//! The baseline: a proxy that passes everything on and keeps the raw bytes in memory, no more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::{Request, Response, Uri, header};
use http_body_util::{BodyExt, BodyStream, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::Outcome;
use crate::serving::Answers;

/// Older calls make room for newer ones beyond this.
const KEPT_BYTES: usize = 64 << 20;

pub(crate) struct Proxy {
    client: Client<HttpConnector, Full<Bytes>>,
    upstream: String,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    calls: VecDeque<(Bytes, Bytes)>,
    bytes: usize,
}

impl Kept {
    fn keep(&mut self, asked: Bytes, answered: Bytes) {
        self.bytes += asked.len() + answered.len();
        self.calls.push_back((asked, answered));
        while self.bytes > KEPT_BYTES
            && let Some((asked, answered)) = self.calls.pop_front()
        {
            self.bytes -= asked.len() + answered.len();
        }
    }
}

impl Proxy {
    pub(crate) fn new(upstream: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            upstream: upstream.trim_end_matches('/').to_owned(),
            kept: Arc::default(),
        }
    }

    async fn pass(&self, request: Request<Incoming>) -> Outcome<Response<Body>> {
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri: Uri = format!("{}{path}", self.upstream).parse()?;
        let asked = body.collect().await?.to_bytes();
        let mut onward = Request::post(uri).body(Full::new(asked.clone()))?;
        for name in [header::CONTENT_TYPE, header::AUTHORIZATION] {
            if let Some(value) = head.headers.get(&name) {
                onward.headers_mut().insert(name, value.clone());
            }
        }
        let (head, body) = self.client.request(onward).await?.into_parts();
        let kept = Arc::clone(&self.kept);
        let mut response = if head.headers.contains_key(header::CONTENT_LENGTH) {
            let answered = body.collect().await?.to_bytes();
            keep(&kept, asked, answered.clone());
            Response::new(Body::from(answered))
        } else {
            let passing = (BodyStream::new(body), BytesMut::new(), Some(asked));
            Response::new(Body::from_stream(stream::unfold(
                passing,
                move |(mut body, mut seen, mut asked)| {
                    let kept = Arc::clone(&kept);
                    async move {
                        match body.next().await {
                            Some(Ok(frame)) => {
                                let data = frame.into_data().unwrap_or_default();
                                seen.extend_from_slice(&data);
                                Some((Ok(data), (body, seen, asked)))
                            }
                            Some(Err(error)) => Some((Err(error), (body, seen, asked))),
                            None => {
                                if let Some(asked) = asked.take() {
                                    keep(&kept, asked, seen.freeze());
                                }
                                None
                            }
                        }
                    }
                },
            )))
        };
        *response.status_mut() = head.status;
        if let Some(kind) = head.headers.get(header::CONTENT_TYPE) {
            let kind = kind.clone();
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
        }
        Ok(response)
    }
}

fn keep(kept: &Mutex<Kept>, asked: Bytes, answered: Bytes) {
    if let Ok(mut kept) = kept.lock() {
        kept.keep(asked, answered);
    }
}

impl Answers for Proxy {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        match self.pass(request).await {
            Ok(response) => response,
            Err(error) => {
                let mut response = Response::new(Body::from(error.to_string()));
                *response.status_mut() = http::StatusCode::BAD_GATEWAY;
                response
            }
        }
    }
}
