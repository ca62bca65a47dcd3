//! One generation at a token endpoint: tried again while no token has come, ended when nobody wants it.

use std::ops::ControlFlow;
use std::sync::Arc;

use futures_util::StreamExt;
use osmosis_core::generation::{
    GenerationError, GenerationRequest, RemoteFault, SampledToken, StopReason, TokenSink,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::client::{Again, Endpoint, FailedTry, Patience, bad_reply};
use super::lines::LineBuffer;
use super::wire::{Event, Failure, Route, WireRequest};
use crate::tokens::engine::{NotWanted, while_wanted};

pub(super) struct Generation {
    endpoint: Arc<Endpoint>,
    stop: CancellationToken,
    body: Vec<u8>,
    sink: Box<dyn TokenSink>,
    /// Tokens that went to the sink.
    given: usize,
}

/// Why a try ended early.
enum Left {
    NotWanted(NotWanted),
    /// The engine itself could not.
    Engine(GenerationError),
    Failed(FailedTry),
}

impl From<NotWanted> for Left {
    fn from(why: NotWanted) -> Self {
        Self::NotWanted(why)
    }
}

impl From<FailedTry> for Left {
    fn from(failed: FailedTry) -> Self {
        Self::Failed(failed)
    }
}

impl Generation {
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        stop: CancellationToken,
        request: &GenerationRequest,
        sink: Box<dyn TokenSink>,
    ) -> Self {
        Self {
            endpoint,
            stop,
            // It holds nothing that JSON has no word for.
            body: serde_json::to_vec(&WireRequest::from(request)).unwrap_or_default(),
            sink,
            given: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let end = self.sample().await;
        self.sink.end(end);
    }

    async fn sample(&mut self) -> Result<StopReason, GenerationError> {
        let endpoint = Arc::clone(&self.endpoint);
        let mut patience = Patience::new(&endpoint.options);
        let began = std::time::Instant::now();
        loop {
            let failed = match self.try_once().await {
                Ok(reason) => return Ok(reason),
                Err(Left::NotWanted(why)) => return not_wanted(why),
                Err(Left::Engine(error)) => return Err(error),
                Err(Left::Failed(failed)) => failed,
            };
            if self.given > 0 {
                return Err(endpoint.given_up(&failed, &patience));
            }
            let wait = self.while_wanted(patience.after(&endpoint, &failed)).await;
            // Until now, whatever comes of it.
            self.sink.lost(began, std::time::Instant::now());
            let wait = match wait {
                Ok(Some(wait)) => wait,
                Ok(None) => return Err(endpoint.given_up(&failed, &patience)),
                Err(why) => return not_wanted(why),
            };
            tracing::debug!(
                tries = patience.tries,
                wait_ms = wait.as_millis(),
                fault = failed.message,
                "the token endpoint is asked again"
            );
            // Beforehand, so that no deadline passes while it waits.
            self.sink.lost(began, std::time::Instant::now() + wait);
            if let Err(why) = self.while_wanted(tokio::time::sleep(wait)).await {
                return not_wanted(why);
            }
        }
    }

    async fn while_wanted<T>(&mut self, work: impl Future<Output = T>) -> Result<T, NotWanted> {
        while_wanted(&mut *self.sink, &self.stop, work).await
    }

    async fn try_once(&mut self) -> Result<StopReason, Left> {
        let endpoint = Arc::clone(&self.endpoint);
        let body = self.body.clone();
        let response = self
            .while_wanted(endpoint.send(Route::Generate, body))
            .await??;
        let mut chunks = response.bytes_stream();
        let mut lines = LineBuffer::default();
        loop {
            let next = timeout(endpoint.options.idle_limit, chunks.next());
            let chunk = match self.while_wanted(next).await? {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(None | Some(Err(_))) => return Err(cut_short().into()),
                Err(_) => return Err(endpoint.silent().into()),
            };
            lines.push(&chunk);
            while let Some(event) = lines.next().map_err(|what| bad_reply(&what))? {
                if let Some(end) = self.hear(event)? {
                    return Ok(end);
                }
            }
        }
    }

    /// Takes an event up; the end of the answer when it is that.
    fn hear(&mut self, event: Event) -> Result<Option<StopReason>, Left> {
        match event {
            Event::Alive => Ok(None),
            Event::Begun { version } => {
                self.endpoint.heard_version(version);
                Ok(None)
            }
            Event::Token(line) => {
                let token = SampledToken::from(line);
                self.endpoint.heard_version(token.version.0);
                self.given += 1;
                match self.sink.token(token) {
                    ControlFlow::Continue(()) => Ok(None),
                    // Dropping the connection ends it there too.
                    ControlFlow::Break(()) => Err(NotWanted::Unwanted.into()),
                }
            }
            Event::End(reason) => Ok(Some(reason)),
            // The controller ends; it may be resumed.
            Event::Failed(Failure::ShutDown) if self.given == 0 => Err(FailedTry {
                kind: RemoteFault::Unreachable,
                message: "is shutting down".to_owned(),
                again: Again::Later(None),
            }
            .into()),
            Event::Failed(failure) => Err(Left::Engine(failure.into())),
        }
    }
}

fn not_wanted(why: NotWanted) -> Result<StopReason, GenerationError> {
    match why {
        NotWanted::Unwanted => Ok(StopReason::Cancelled),
        NotWanted::ShutDown => Err(GenerationError::ShutDown),
    }
}

fn cut_short() -> FailedTry {
    FailedTry {
        kind: RemoteFault::CutShort,
        message: "cut its answer short".to_owned(),
        again: Again::Later(None),
    }
}
