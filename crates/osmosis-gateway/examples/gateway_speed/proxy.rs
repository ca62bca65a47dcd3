//! The baseline: a proxy that passes everything on and keeps the raw bytes in memory, no more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use osmosis_gateway::measuring::PlainClient;

use crate::Outcome;
use crate::serving::Answers;

/// Older calls make room for newer ones beyond this.
const KEPT_BYTES: usize = 64 << 20;

pub(crate) struct Proxy {
    client: AnyClient,
    upstream: String,
    authority: HeaderValue,
    kept: Arc<Mutex<Kept>>,
}

/// What the proxy reaches the model server with.
enum AnyClient {
    /// What a proxy in Rust usually has.
    General(Box<Client<HttpConnector, Full<Bytes>>>),
    /// The gateway's own.
    Direct(PlainClient),
}

type ReplyBody = UnsyncBoxBody<Bytes, hyper::Error>;

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
    pub(crate) fn new(upstream: &str, client: &str) -> Outcome<Self> {
        let uri: Uri = upstream.parse()?;
        let client = match client {
            "general" => {
                let mut connector = HttpConnector::new();
                connector.set_nodelay(true);
                AnyClient::General(Box::new(
                    Client::builder(TokioExecutor::new()).build(connector),
                ))
            }
            "direct" => AnyClient::Direct(PlainClient::new(upstream).ok_or("not a plain address")?),
            other => return Err(format!("`{other}` is not `general` or `direct`").into()),
        };
        Ok(Self {
            client,
            upstream: upstream.trim_end_matches('/').to_owned(),
            authority: HeaderValue::from_str(uri.authority().ok_or("no host")?.as_str())?,
            kept: Arc::default(),
        })
    }

    async fn send(
        &self,
        path: &str,
        asked: Bytes,
        headers: &HeaderMap,
    ) -> Outcome<Response<ReplyBody>> {
        // It decides how the gateway's client reads.
        let streamed = memchr::memmem::find(&asked, br#""stream":true"#).is_some();
        let mut onward = Request::new(Full::new(asked));
        *onward.method_mut() = Method::POST;
        for name in [header::CONTENT_TYPE, header::AUTHORIZATION] {
            if let Some(value) = headers.get(&name) {
                onward.headers_mut().insert(name, value.clone());
            }
        }
        match &self.client {
            AnyClient::General(client) => {
                *onward.uri_mut() = format!("{}{path}", self.upstream).parse()?;
                let response = client.request(onward).await?;
                Ok(response.map(BodyExt::boxed_unsync))
            }
            AnyClient::Direct(client) => {
                *onward.uri_mut() = path.parse()?;
                let host = self.authority.clone();
                onward.headers_mut().insert(header::HOST, host);
                let response = client.send(onward, streamed).await?;
                Ok(response.map(BodyExt::boxed_unsync))
            }
        }
    }

    async fn pass(&self, request: Request<Incoming>) -> Outcome<Response<Body>> {
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let asked = body.collect().await?.to_bytes();
        let sent = self.send(path, asked.clone(), &head.headers).await?;
        let (head, body) = sent.into_parts();
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
