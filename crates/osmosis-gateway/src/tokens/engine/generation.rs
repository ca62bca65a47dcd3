//! One generation on a server: tried again while no token has come, ended when nobody wants it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    GenerationError, GenerationRequest, RemoteFault, SampledToken, StopReason, TokenSink,
};
use osmosis_dialect::sse::{EventBuffer, LARGE_BUFFERED_EVENT, data_of};
use serde::Deserialize;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::options::EngineKind;
use super::wanted::{NotWanted, while_wanted};
use super::wire::Heard;
use super::{Server, sglang, vllm};
use crate::policy::upstream::{error_chain, retry_after, said, wait_before};

/// As much of a reply as is read that is no stream.
const MAX_WHOLE_BYTES: usize = 4 << 20;

pub(super) struct Generation {
    pub(super) server: Arc<Server>,
    pub(super) stop: CancellationToken,
    pub(super) request: GenerationRequest,
    pub(super) sink: Box<dyn TokenSink>,
    /// Tokens that went to the sink.
    pub(super) given: usize,
}

/// Why a try ended early.
enum Left {
    /// Nobody wants it.
    Unwanted,
    ShutDown,
    /// Trying again is no use.
    Refused(GenerationError),
    Failed(FailedTry),
}

struct FailedTry {
    kind: RemoteFault,
    message: String,
    /// Another try may fare better, as long as no token has come.
    retry: bool,
    retry_after: Option<Duration>,
}

impl Generation {
    pub(super) async fn run(mut self) {
        let end = self.sample().await;
        self.sink.end(end);
    }

    async fn sample(&mut self) -> Result<StopReason, GenerationError> {
        let mut tries = 0;
        let began = std::time::Instant::now();
        loop {
            tries += 1;
            let failed = match self.try_once().await {
                Ok(reason) => return Ok(reason),
                Err(Left::Unwanted) => return Ok(StopReason::Cancelled),
                Err(Left::ShutDown) => return Err(GenerationError::ShutDown),
                Err(Left::Refused(error)) => return Err(error),
                Err(Left::Failed(failed)) => failed,
            };
            if self.given == 0 {
                self.sink.lost(began, std::time::Instant::now());
            }
            let options = &self.server.options;
            if self.given > 0 || !failed.retry || tries > options.retries {
                let tried = if tries > 1 {
                    format!(" (tried {tries} times)")
                } else {
                    String::new()
                };
                let message = format!("{}{tried}", failed.message);
                return Err(GenerationError::Remote {
                    kind: failed.kind,
                    message: match &options.api_key {
                        Some(key) => key.redact(&message),
                        None => message,
                    },
                });
            }
            let wait = wait_before(
                tries,
                failed.retry_after,
                options.first_retry_wait,
                options.longest_retry_wait,
                rand::random::<f64>(),
            );
            tracing::debug!(
                tries,
                wait_ms = wait.as_millis(),
                fault = failed.message,
                "a generation is tried again"
            );
            // Beforehand, so that no deadline passes while it waits.
            self.sink.lost(began, std::time::Instant::now() + wait);
            match self.while_wanted(tokio::time::sleep(wait)).await {
                Ok(()) => {}
                Err(Left::ShutDown) => return Err(GenerationError::ShutDown),
                Err(_) => return Ok(StopReason::Cancelled),
            }
        }
    }

    /// Waits for `work`, unless nobody wants what comes of it.
    async fn while_wanted<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Left> {
        let waited = while_wanted(&mut *self.sink, &self.stop, work).await;
        waited.map_err(|why| match why {
            NotWanted::Unwanted => Left::Unwanted,
            NotWanted::ShutDown => Left::ShutDown,
        })
    }

    async fn try_once(&mut self) -> Result<StopReason, Left> {
        let server = Arc::clone(&self.server);
        let context = self
            .while_wanted(server.context.get_or_try_init(|| server.ask_context()))
            .await?
            .copied()
            .map_err(Left::Failed)?;
        let prompt = self.request.prompt.len();
        if prompt == 0 {
            return Err(Left::Refused(GenerationError::PromptEmpty));
        }
        if prompt >= context {
            return Err(Left::Refused(GenerationError::PromptTooLong {
                prompt,
                context,
            }));
        }
        let max_tokens = self.request.max_tokens.min(context - prompt);
        let body = match server.options.kind {
            EngineKind::Vllm => vllm::body(&server.options.model, &self.request, max_tokens),
            EngineKind::Sglang => sglang::body(&self.request, max_tokens),
        };
        let deadline = Instant::now() + server.options.first_byte_limit;
        let sent = server
            .client
            .post(server.addresses.generate.clone())
            .headers(server.headers.clone())
            .body(body.to_string())
            .send();
        let response = self
            .while_wanted(timeout_at(deadline, sent))
            .await?
            .map_err(|_| server.too_slow())?
            .map_err(|error| server.no_reply(error))?;
        if !response.status().is_success() {
            return Err(Left::Failed(server.refused(response).await));
        }
        self.listen(&server, response, deadline).await
    }

    /// Passes tokens on as they come.
    async fn listen(
        &mut self,
        server: &Server,
        response: reqwest::Response,
        deadline: Instant,
    ) -> Result<StopReason, Left> {
        let mut chunks = response.bytes_stream();
        let mut events = EventBuffer::default();
        let mut end = None;
        let mut deadline = deadline;
        loop {
            let chunk = match self
                .while_wanted(timeout_at(deadline, chunks.next()))
                .await?
            {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(None) => break,
                Ok(Some(Err(_))) => return end.ok_or_else(|| server.cut_short()),
                Err(_) if self.given == 0 && end.is_none() => {
                    return Err(server.too_slow().into());
                }
                Err(_) => return end.ok_or_else(|| server.silent()),
            };
            deadline = Instant::now() + server.options.idle_limit;
            if events.push(&chunk).is_err() {
                return Err(server.bad_reply(LARGE_BUFFERED_EVENT));
            }
            while let Some(event) = events.next() {
                let Some(data) = data_of(&event) else {
                    continue;
                };
                if data == b"[DONE]" {
                    return end.ok_or_else(|| server.cut_short());
                }
                let heard = self.hear(server, data)?;
                end = heard.end.or(end);
                self.give(server, heard)?;
            }
        }
        if end.is_none() && self.given == 0 {
            let rest = events.rest();
            if !rest.trim_ascii().is_empty() {
                let what = format!("sent something that is no event stream: {}", said(&rest));
                return Err(server.bad_reply(&what));
            }
        }
        end.ok_or_else(|| server.cut_short())
    }

    fn hear(&self, server: &Server, data: &[u8]) -> Result<Heard, Left> {
        #[derive(Deserialize)]
        struct Reported {
            error: serde_json::Value,
        }
        if let Ok(reported) = serde_json::from_slice::<Reported>(data)
            && !reported.error.is_null()
        {
            let what = format!("reported an error within the stream: {}", said(data));
            return Err(server.fault(RemoteFault::ServerError, &what).into());
        }
        match server.options.kind {
            EngineKind::Vllm => vllm::hear(data, self.request.alternatives),
            EngineKind::Sglang => sglang::hear(data, self.given),
        }
        .map_err(|what| server.bad_reply(&what))
    }

    fn give(&mut self, server: &Server, heard: Heard) -> Result<(), Left> {
        if let Some(version) = heard.version {
            server.version.store(version, Ordering::Relaxed);
        }
        // Not what another generation heard meanwhile.
        let version = heard
            .version
            .map_or_else(|| server.version(), PolicyVersion);
        for drawn in heard.tokens {
            self.given += 1;
            let token = SampledToken {
                id: drawn.id,
                logprob: drawn.logprob,
                version,
                alternatives: drawn.alternatives,
                allowed: None,
            };
            if self.sink.token(token) == ControlFlow::Break(()) {
                // Dropping the connection ends it there too.
                return Err(Left::Unwanted);
            }
        }
        Ok(())
    }
}

impl Server {
    /// How many tokens prompt and answer may have together, from the list of models.
    async fn ask_context(&self) -> Result<usize, FailedTry> {
        let sent = self
            .client
            .get(self.addresses.models.clone())
            .headers(self.headers.clone())
            .send();
        let response = timeout(self.options.first_byte_limit, sent)
            .await
            .map_err(|_| self.too_slow())?
            .map_err(|error| self.no_reply(error))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let body = self.whole(response).await;
        context_in(&body, &self.options.model).ok_or_else(|| FailedTry {
            kind: RemoteFault::BadReply,
            message: self.says(&format!(
                "does not say the context length (`max_model_len`) of model `{}` at {}: {}",
                self.options.model,
                self.addresses.models.path(),
                said(&body)
            )),
            retry: false,
            retry_after: None,
        })
    }

    /// A short reply, or as much of it as came.
    async fn whole(&self, response: reqwest::Response) -> Vec<u8> {
        let mut chunks = response.bytes_stream();
        let mut body = Vec::new();
        while let Ok(Some(Ok(chunk))) = timeout(self.options.idle_limit, chunks.next()).await {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_WHOLE_BYTES {
                break;
            }
        }
        body
    }

    async fn refused(&self, response: reqwest::Response) -> FailedTry {
        let status = response.status().as_u16();
        let kind = match status {
            408 => RemoteFault::TimedOut,
            429 => RemoteFault::Overloaded,
            500.. => RemoteFault::ServerError,
            // The request is ours, not the agent's.
            _ => RemoteFault::Misconfigured,
        };
        let retry_after = retry_after(response.headers(), SystemTime::now());
        let body = self.whole(response).await;
        FailedTry {
            kind,
            message: self.says(&format!("answered with status {status}: {}", said(&body))),
            retry: !matches!(kind, RemoteFault::Misconfigured),
            retry_after,
        }
    }

    /// The endpoint is named by whoever passes the fault on.
    fn says(&self, what: &str) -> String {
        format!("{} {what}", self.options.kind.as_str())
    }

    fn fault(&self, kind: RemoteFault, what: &str) -> FailedTry {
        FailedTry {
            kind,
            message: self.says(what),
            retry: true,
            retry_after: None,
        }
    }

    fn no_reply(&self, error: reqwest::Error) -> FailedTry {
        let what = if error.is_connect() {
            "cannot be reached"
        } else {
            "broke the connection before it replied"
        };
        let what = format!("{what}: {}", error_chain(&error.without_url()));
        self.fault(RemoteFault::Unreachable, &what)
    }

    fn too_slow(&self) -> FailedTry {
        let what = format!("sent nothing for {:?}", self.options.first_byte_limit);
        FailedTry {
            // Waiting as long again would outlast the agent.
            retry: false,
            ..self.fault(RemoteFault::TimedOut, &what)
        }
    }

    fn silent(&self) -> Left {
        let limit = self.options.idle_limit;
        let what = format!("fell silent for {limit:?} in the middle of a stream");
        self.fault(RemoteFault::TimedOut, &what).into()
    }

    fn cut_short(&self) -> Left {
        self.fault(RemoteFault::CutShort, "cut the stream short")
            .into()
    }

    fn bad_reply(&self, what: &str) -> Left {
        Left::Failed(FailedTry {
            retry: false,
            ..self.fault(RemoteFault::BadReply, what)
        })
    }
}

impl From<FailedTry> for Left {
    fn from(failed: FailedTry) -> Self {
        Self::Failed(failed)
    }
}

/// The context length of a model in a list of models; of the only one when none has the name.
fn context_in(body: &[u8], model: &str) -> Option<usize> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
        max_model_len: Option<usize>,
    }
    let models: Models = serde_json::from_slice(body).ok()?;
    let named = models.data.iter().find(|listed| listed.id == model);
    let listed = match (named, models.data.as_slice()) {
        (Some(named), _) => named,
        (None, [only]) => only,
        (None, _) => return None,
    };
    listed.max_model_len.filter(|length| *length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_length_is_that_of_the_model() {
        let list = br#"{"object":"list","data":[{"id":"a","max_model_len":10},{"id":"b","max_model_len":20},{"id":"c"}]}"#;
        assert_eq!(context_in(list, "b"), Some(20));
        assert_eq!(context_in(list, "c"), None);
        assert_eq!(context_in(list, "d"), None);
        let only = br#"{"data":[{"id":"a","max_model_len":10}]}"#;
        assert_eq!(context_in(only, "anything"), Some(10));
        assert_eq!(context_in(b"<html>", "a"), None);
    }
}
