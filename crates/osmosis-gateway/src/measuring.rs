//! For `examples/gateway_speed` alone: our client of model servers, without anything around it, so that a
//! bare proxy can be measured that differs from the gateway in nothing but the gateway.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use reqwest::Url;

use crate::policy::upstream::{DirectClients, HttpClients};

/// The client that the gateway has for a plain server on this machine.
#[derive(Debug)]
pub struct PlainClient(Arc<DirectClients>);

impl PlainClient {
    /// `None` for an address that the gateway itself would reach by a general client.
    pub fn new(server: &str) -> Option<Self> {
        let clients = HttpClients::new(Duration::from_secs(10));
        clients.direct_for(&Url::parse(server).ok()?).map(Self)
    }

    /// Sends a request, whose URI is a path and which has its `host`.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
        streamed: bool,
    ) -> Result<
        Response<impl Body<Data = Bytes, Error = hyper::Error> + Send + Unpin + use<>>,
        Box<dyn Error + Send + Sync>,
    > {
        let sent = self.0.one_for(streamed).send(request).await;
        sent.map_err(|unsent| unsent.message.into())
    }
}
