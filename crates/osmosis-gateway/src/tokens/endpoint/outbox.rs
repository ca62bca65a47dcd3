//! What an engine has sampled and nobody has read yet.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use osmosis_core::generation::{GenerationError, SampledToken, StopReason, TokenSink};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The tokens of one generation on their way from the engine's thread to a connection. It holds no more than the
/// request allows to be sampled.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    content: Mutex<Content>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Content {
    tokens: Vec<SampledToken>,
    end: Option<Result<StopReason, GenerationError>>,
    /// Nobody wants more.
    closed: bool,
    /// Who waits to hear that.
    waiting: Option<Waker>,
}

impl Outbox {
    /// What came since the last time, and the end, if it has come.
    pub(super) fn take(&self) -> (Vec<SampledToken>, Option<Result<StopReason, GenerationError>>) {
        let mut content = self.content.lock();
        (std::mem::take(&mut content.tokens), content.end.take())
    }

    /// Returns when something may have come. For one reader.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Has the engine stop.
    pub(super) fn close(&self) {
        let mut content = self.content.lock();
        content.closed = true;
        if let Some(waiting) = content.waiting.take() {
            waiting.wake();
        }
    }
}

/// The engine's end of an outbox.
#[derive(Debug)]
pub(super) struct OutboxSink {
    outbox: Arc<Outbox>,
    ended: bool,
}

impl OutboxSink {
    pub(super) fn of(outbox: &Arc<Outbox>) -> Self {
        Self {
            outbox: Arc::clone(outbox),
            ended: false,
        }
    }

    fn ends(&mut self, end: Result<StopReason, GenerationError>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.outbox.content.lock().end = Some(end);
            self.outbox.news.notify_one();
        }
    }
}

impl TokenSink for OutboxSink {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        {
            let mut content = self.outbox.content.lock();
            if content.closed {
                return ControlFlow::Break(());
            }
            content.tokens.push(token);
        }
        self.outbox.news.notify_one();
        ControlFlow::Continue(())
    }

    fn end(mut self: Box<Self>, end: Result<StopReason, GenerationError>) {
        self.ends(end);
    }

    fn poll_unwanted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut content = self.outbox.content.lock();
        if content.closed {
            return Poll::Ready(());
        }
        match &mut content.waiting {
            Some(waiting) => waiting.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for OutboxSink {
    /// An engine that lets go without a word has broken down.
    fn drop(&mut self) {
        self.ends(Err(GenerationError::ShutDown));
    }
}
