//! An engine whose server, or whose weights, are exchanged while it is asked.
//!
//! Each generation belongs to the one [`RemoteEngine`] that answered when it began, and that has one version: a token
//! never gets the version of other weights. Generations wait while none answers, and one that no token came of begins
//! again at the next.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{
    GenerationError, GenerationRequest, LogprobsOf, RemoteFault, SampledToken, StopReason,
    TokenEngine, TokenSink,
};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::options::RemoteEngineOptions;
use super::wanted::{NotWanted, while_wanted};
use super::{RemoteEngine, ServerLogprobs};
use crate::error::GatewayError;

/// Who waits for a server says so this often, for so long ahead: deadlines must not pass meanwhile.
const SAY_WAITING: Duration = Duration::from_secs(5);
const WAIT_AHEAD: Duration = Duration::from_secs(15);
/// A server that failed is noticed to be gone, or to be there, within this.
const NOTICE_LIMIT: Duration = Duration::from_secs(10);

/// A [`TokenEngine`] that asks whichever server was opened last.
pub struct ExchangingEngine {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

struct Shared {
    logprobs: ServerLogprobs,
    answering: watch::Sender<Answering>,
    /// Generations that have begun and not ended.
    running: watch::Sender<usize>,
    version: AtomicU64,
    context: AtomicU64,
    sampled: AtomicU64,
    stop: CancellationToken,
}

/// What answers now.
#[derive(Clone, Default)]
struct Answering {
    /// Grows with each change.
    number: u64,
    engine: Option<Arc<RemoteEngine>>,
}

impl ExchangingEngine {
    /// One that answers nobody yet.
    pub fn new(logprobs: ServerLogprobs) -> Self {
        Self {
            shared: Arc::new(Shared {
                logprobs,
                answering: watch::Sender::default(),
                running: watch::Sender::new(0),
                version: AtomicU64::new(0),
                context: AtomicU64::new(u64::MAX),
                sampled: AtomicU64::new(0),
                stop: CancellationToken::new(),
            }),
            tasks: TaskTracker::new(),
        }
    }

    /// Generations that begin from now on are answered there, with this version. Those under way go on where they
    /// began.
    pub fn open(&self, options: RemoteEngineOptions) -> Result<(), GatewayError> {
        let (version, context) = (options.version, options.context);
        let engine = Arc::new(RemoteEngine::new(RemoteEngineOptions {
            logprobs: self.shared.logprobs,
            ..options
        })?);
        self.shared.version.store(version.0, Ordering::SeqCst);
        if let Some(context) = context {
            let context = u64::try_from(context).unwrap_or(u64::MAX);
            self.shared.context.store(context, Ordering::SeqCst);
        }
        self.shared.change(Some(engine));
        Ok(())
    }

    /// Generations wait from now on, until something is opened.
    pub fn close(&self) {
        self.shared.change(None);
    }

    /// Waits until no generation is under way at a server.
    pub async fn drained(&self) {
        let mut running = self.shared.running.subscribe();
        // The sender lives as long as this does.
        let _ = running.wait_for(|count| *count == 0).await;
    }

    /// Tokens sampled so far.
    pub fn sampled_tokens(&self) -> u64 {
        self.shared.sampled.load(Ordering::Relaxed)
    }

    /// Ends all generations.
    pub fn shut_down(&self) {
        self.shared.stop.cancel();
        self.shared.change(None);
    }
}

impl Shared {
    fn change(&self, engine: Option<Arc<RemoteEngine>>) {
        self.answering.send_modify(|answering| {
            answering.number += 1;
            answering.engine = engine;
        });
    }

    /// What answers, when something does; counted as running from then on.
    fn begin(self: &Arc<Self>) -> Option<(u64, Arc<RemoteEngine>, Running)> {
        // Under the lock of the watch, so that who closes and then waits until all is drained misses nothing.
        let answering = self.answering.borrow();
        let engine = answering.engine.clone()?;
        let running = Running::of(self);
        Some((answering.number, engine, running))
    }

    async fn run(self: Arc<Self>, request: GenerationRequest, mut sink: Box<dyn TokenSink>) {
        loop {
            let (number, engine, running) = match self.wait_for_server(&mut *sink).await {
                Ok(begun) => begun,
                Err(NotWanted::Unwanted) => return sink.end(Ok(StopReason::Cancelled)),
                Err(NotWanted::ShutDown) => return sink.end(Err(GenerationError::ShutDown)),
            };
            let (reply, ended) = oneshot::channel();
            let relay = Relay {
                sink: Some(sink),
                shared: Arc::clone(&self),
                given: 0,
                reply: Some(reply),
            };
            engine.generate(request.clone(), Box::new(relay));
            let Ok(end) = ended.await else {
                return;
            };
            drop(running);
            drop(engine);
            sink = end.sink;
            let lost = end.given == 0 && end.result.as_ref().is_err_and(may_be_elsewhere);
            if !lost || !self.is_exchanged(number, &mut *sink).await {
                return sink.end(end.result);
            }
        }
    }

    async fn wait_for_server(
        self: &Arc<Self>,
        sink: &mut dyn TokenSink,
    ) -> Result<(u64, Arc<RemoteEngine>, Running), NotWanted> {
        let mut answering = self.answering.subscribe();
        let from = Instant::now();
        let mut waited = false;
        loop {
            answering.mark_unchanged();
            if let Some(begun) = self.begin() {
                if waited {
                    sink.lost(from, Instant::now());
                }
                return Ok(begun);
            }
            waited = true;
            sink.lost(from, Instant::now() + WAIT_AHEAD);
            let changed = tokio::time::timeout(SAY_WAITING, answering.changed());
            let _ = while_wanted(sink, &self.stop, changed).await?;
        }
    }

    /// Whether something else answers, or nothing, than when the generation began.
    async fn is_exchanged(&self, number: u64, sink: &mut dyn TokenSink) -> bool {
        let mut answering = self.answering.subscribe();
        let exchanged = answering.wait_for(|answering| answering.number != number);
        let exchanged = tokio::time::timeout(NOTICE_LIMIT, exchanged);
        matches!(
            while_wanted(sink, &self.stop, exchanged).await,
            Ok(Ok(Ok(_)))
        )
    }
}

/// Whether the server may be gone, rather than unwilling.
fn may_be_elsewhere(error: &GenerationError) -> bool {
    match error {
        GenerationError::Remote { kind, .. } => match kind {
            RemoteFault::Unreachable
            | RemoteFault::ServerError
            | RemoteFault::CutShort
            | RemoteFault::TimedOut => true,
            RemoteFault::Overloaded | RemoteFault::Misconfigured | RemoteFault::BadReply => false,
        },
        GenerationError::PromptTooLong { .. }
        | GenerationError::PromptEmpty
        | GenerationError::UnknownToken { .. }
        | GenerationError::NotFinite
        | GenerationError::Constraint { .. }
        | GenerationError::ShutDown => false,
    }
}

/// Counts a generation while it lives.
struct Running(Arc<Shared>);

impl Running {
    fn of(shared: &Arc<Shared>) -> Self {
        shared.running.send_modify(|count| *count += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.send_modify(|count| *count -= 1);
    }
}

/// How a try ended, with the sink that it had.
struct End {
    sink: Box<dyn TokenSink>,
    given: usize,
    result: Result<StopReason, GenerationError>,
}

/// Passes tokens on, and gives the sink back at the end.
struct Relay {
    /// There until the end.
    sink: Option<Box<dyn TokenSink>>,
    shared: Arc<Shared>,
    given: usize,
    reply: Option<oneshot::Sender<End>>,
}

impl TokenSink for Relay {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        self.given += 1;
        self.shared.sampled.fetch_add(1, Ordering::Relaxed);
        match &mut self.sink {
            Some(sink) => sink.token(token),
            None => ControlFlow::Break(()),
        }
    }

    fn end(mut self: Box<Self>, result: Result<StopReason, GenerationError>) {
        if let (Some(sink), Some(reply)) = (self.sink.take(), self.reply.take()) {
            let given = self.given;
            // Whoever waits is there until this has come.
            let _ = reply.send(End {
                sink,
                given,
                result,
            });
        }
    }

    fn lost(&mut self, from: Instant, to: Instant) {
        if let Some(sink) = &mut self.sink {
            sink.lost(from, to);
        }
    }

    fn poll_unwanted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.sink {
            Some(sink) => sink.poll_unwanted(context),
            None => Poll::Pending,
        }
    }
}

impl TokenEngine for ExchangingEngine {
    fn context_length(&self) -> usize {
        let context = self.shared.context.load(Ordering::SeqCst);
        usize::try_from(context).unwrap_or(usize::MAX)
    }

    fn version(&self) -> PolicyVersion {
        PolicyVersion(self.shared.version.load(Ordering::SeqCst))
    }

    fn generate(&self, request: GenerationRequest, sink: Box<dyn TokenSink>) {
        let Ok(runtime) = Handle::try_current() else {
            return sink.end(Err(GenerationError::ShutDown));
        };
        let run = Arc::clone(&self.shared).run(request, sink);
        self.tasks.spawn_on(run, &runtime);
    }

    fn is_elsewhere(&self) -> bool {
        true
    }

    fn logprobs_of(&self, request: &GenerationRequest) -> LogprobsOf {
        self.shared.logprobs.of_request(request)
    }
}

impl Drop for ExchangingEngine {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl fmt::Debug for ExchangingEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangingEngine")
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}
