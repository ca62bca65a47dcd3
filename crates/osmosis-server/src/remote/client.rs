//! The HTTP requests to a rollout server, and what its answers mean.

use std::fmt;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode, header};
use osmosis_gateway::{HttpClients, Secret};
use parking_lot::Mutex;
use reqwest::{RequestBuilder, Url};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::RemoteOptions;
use super::wire::{Admission, RolloutNotice, detail_of};
use crate::callback::{chain, retry_after};
use crate::request::shown;

/// How long a server may take to answer what it answers from memory.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The same when we are leaving.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Who shows this may have the result.
const LEASE_HEADER: &str = "x-osmosis-rollout-lease";

/// A rollout server, as far as it can be asked.
pub(super) struct Client {
    base: Url,
    http: reqwest::Client,
    authorization: Option<HeaderValue>,
    /// Since when it does not answer, over all requests.
    down_since: Mutex<Option<Instant>>,
}

/// What became of a request for a rollout.
#[derive(Debug)]
pub(super) enum Posted {
    Accepted(Admission),
    /// There is no room; come back then.
    Full(Duration),
    Refused {
        detail: String,
        /// Its id is taken, so another may do.
        conflict: bool,
    },
    Down(Down),
}

/// An answer to a question.
#[derive(Debug)]
pub(super) enum Answer {
    RolloutNotice(Box<RolloutNotice>),
    /// It has no such question, or knows nothing about what was asked for.
    NotFound,
    Refused(String),
    Down(Down),
}

/// The server can't be reached, or is in no state to answer.
#[derive(Debug)]
pub(super) struct Down {
    pub(super) detail: String,
    /// Since when, over all requests.
    pub(super) since: Instant,
    pub(super) retry_after: Option<Duration>,
}

/// A response that was read to its end.
struct Response {
    status: StatusCode,
    retry_after: Option<Duration>,
    body: Vec<u8>,
}

impl Client {
    pub(super) fn new(options: &RemoteOptions) -> Result<Self, String> {
        let mut base = options.server.clone();
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let authorization = options.key.as_ref().map(bearer).transpose()?;
        let http = HttpClients::new(CONNECT_LIMIT).for_url(&base);
        Ok(Self {
            http: http.map_err(|error| error.to_string())?,
            base,
            authorization,
            down_since: Mutex::default(),
        })
    }

    /// For people.
    pub(super) fn shown(&self) -> String {
        shown(&self.base).trim_end_matches('/').to_owned()
    }

    pub(super) async fn post(&self, body: &str) -> Posted {
        let request = self.http.post(self.url("rollout"));
        let request = request
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_owned());
        let response = match self.send(request, ANSWER_LIMIT).await {
            Ok(response) => response,
            Err(down) => return Posted::Down(down),
        };
        match response.status {
            status if status.is_success() => Posted::Accepted(Admission::read(&response.body)),
            StatusCode::TOO_MANY_REQUESTS => {
                Posted::Full(response.retry_after.unwrap_or(Duration::from_secs(1)))
            }
            status => Posted::Refused {
                detail: self.no(&response),
                conflict: status == StatusCode::CONFLICT,
            },
        }
    }

    pub(super) async fn status(&self, id: &str) -> Answer {
        let request = self.http.get(self.url(&format!("rollout/{id}/status")));
        self.ask(request, ANSWER_LIMIT).await
    }

    /// Waits at the server for the next thing that happens to a rollout.
    pub(super) async fn result(&self, id: &str, lease: &str, wait: Duration) -> Answer {
        let request = self.http.get(self.url(&format!("rollout/{id}/result")));
        let request = request.header(LEASE_HEADER, lease);
        self.ask(request, wait + ANSWER_LIMIT).await
    }

    /// Whether the server answers at all; what it is asked, every server knows nothing about.
    pub(super) async fn is_there(&self) -> Answer {
        match self
            .send(self.http.get(self.url("health")), ANSWER_LIMIT)
            .await
        {
            Ok(_) => Answer::NotFound,
            Err(down) => Answer::Down(down),
        }
    }

    /// What the server says about itself.
    pub(super) async fn health(&self) -> Result<Value, String> {
        let request = self.http.get(self.url("health"));
        let response = self.send(request, ANSWER_LIMIT).await;
        let response = response.map_err(|down| down.detail)?;
        if !response.status.is_success() {
            return Err(self.no(&response));
        }
        serde_json::from_slice(&response.body)
            .map_err(|error| format!("{} answers no JSON at /health: {error}", self.shown()))
    }

    /// Asks the server to let go of rollouts. It may have ended them already, or know no such request.
    pub(super) async fn cancel(&self, ids: &[&str]) {
        let request = self.http.post(self.url("rollout/cancel"));
        let request = request
            .header(CONTENT_TYPE, "application/json")
            .body(json!({ "ids": ids }).to_string());
        match self.send(request, CANCEL_LIMIT).await {
            Ok(response) if response.status.is_success() => {}
            Ok(response) => {
                tracing::debug!(why = self.no(&response), "rollouts were not cancelled");
            }
            Err(down) => tracing::info!(why = down.detail, "rollouts were not cancelled"),
        }
    }

    async fn ask(&self, request: RequestBuilder, limit: Duration) -> Answer {
        let response = match self.send(request, limit).await {
            Ok(response) => response,
            Err(down) => return Answer::Down(down),
        };
        match response.status {
            StatusCode::OK => match serde_json::from_slice(&response.body) {
                Ok(told) => Answer::RolloutNotice(Box::new(told)),
                Err(error) => Answer::Refused(format!("its answer can't be read: {error}")),
            },
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Answer::NotFound,
            _ => Answer::Refused(self.no(&response)),
        }
    }

    /// Sends a request. A server that fails at it is as good as none.
    async fn send(&self, request: RequestBuilder, limit: Duration) -> Result<Response, Down> {
        let request = match &self.authorization {
            Some(authorization) => request.header(header::AUTHORIZATION, authorization),
            None => request,
        };
        let answered = async {
            let response = request.send().await?;
            let (status, retry_after) = (response.status(), retry_after(response.headers()));
            let body = response.bytes().await?.to_vec();
            Ok::<_, reqwest::Error>(Response {
                status,
                retry_after,
                body,
            })
        };
        let failed = match tokio::time::timeout(limit, answered).await {
            Err(_) => (format!("no answer within {} s", limit.as_secs()), None),
            Ok(Err(error)) => (chain(&error.without_url()), None),
            Ok(Ok(response)) if response.status.is_server_error() => {
                (self.no(&response), response.retry_after)
            }
            Ok(Ok(response)) => {
                *self.down_since.lock() = None;
                return Ok(response);
            }
        };
        let since = *self.down_since.lock().get_or_insert_with(Instant::now);
        let (why, retry_after) = failed;
        Err(Down {
            detail: format!("the rollout server {} is down: {why}", self.shown()),
            since,
            retry_after,
        })
    }

    fn no(&self, response: &Response) -> String {
        let status = response.status.as_u16();
        let detail = detail_of(&response.body);
        format!("{} answered with status {status}: {detail}", self.shown())
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path()));
        url
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.shown())
            .finish_non_exhaustive()
    }
}

fn bearer(key: &Secret) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose()))
        .map_err(|_| "the server's key holds what no header can carry".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}
