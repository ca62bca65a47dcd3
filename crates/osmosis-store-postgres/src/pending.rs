//! What waits for the writer: writes, results and model calls, and the batches that are committed together.

use futures_util::future::BoxFuture;
use osmosis_store::{Completion, CompletionReceipt, NewCall, StoreError};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::error::DbError;
use crate::transaction::{Transaction, Work};

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

pub(crate) enum Message {
    Write(Box<dyn PendingWrite>),
    Complete(Box<PendingCompletion>),
    Call(Box<QueuedCall>),
    Close(Answer<()>),
}

/// A model call on its way.
pub(crate) struct QueuedCall {
    pub(crate) call: NewCall,
    /// Kept over failed commits, so that none is recorded twice.
    pub(crate) call_id: Option<i64>,
    /// Its share of the memory that waiting calls may take.
    pub(crate) room: Option<OwnedSemaphorePermit>,
    /// Somebody who waits for the commit. Without one, the call is tried again after a failed commit.
    pub(crate) answer: Option<Answer<()>>,
}

pub(crate) struct PendingCompletion {
    pub(crate) completion: Completion,
    pub(crate) answer: Answer<CompletionReceipt>,
}

/// A write that waits for its commit, and can be done again when the first try came to nothing.
pub(crate) trait PendingWrite: Work {
    /// Tells the caller what became of it.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
    fn as_work(&mut self) -> &mut dyn Work;
}

struct Job<D, T, F> {
    data: D,
    work: F,
    result: Option<T>,
    answer: Answer<T>,
}

/// A write out of a function and what it needs, and where its answer will come.
pub(crate) fn job<D, T, F>(data: D, work: F) -> (Message, oneshot::Receiver<Result<T, StoreError>>)
where
    D: Send + Sync + 'static,
    T: Send + Sync + 'static,
    F: for<'a> Fn(&'a Transaction<'_>, &'a D) -> BoxFuture<'a, Result<T, DbError>>
        + Send
        + Sync
        + 'static,
{
    let (answer, answered) = oneshot::channel();
    let job = Job {
        data,
        work,
        result: None,
        answer,
    };
    (Message::Write(Box::new(job)), answered)
}

impl<D, T, F> Work for Job<D, T, F>
where
    D: Send + Sync,
    T: Send + Sync,
    F: for<'a> Fn(&'a Transaction<'_>, &'a D) -> BoxFuture<'a, Result<T, DbError>> + Send + Sync,
{
    fn run<'a>(
        &'a mut self,
        transaction: &'a Transaction<'_>,
    ) -> BoxFuture<'a, Result<(), DbError>> {
        Box::pin(async move {
            self.result = Some((self.work)(transaction, &self.data).await?);
            Ok(())
        })
    }
}

impl<D, T, F> PendingWrite for Job<D, T, F>
where
    D: Send + Sync,
    T: Send + Sync,
    F: for<'a> Fn(&'a Transaction<'_>, &'a D) -> BoxFuture<'a, Result<T, DbError>> + Send + Sync,
{
    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        // A caller that went away does not undo the write.
        let _ = self.answer.send(match committed {
            Ok(()) => self.result.ok_or(StoreError::Closed),
            Err(error) => Err(error),
        });
    }

    fn as_work(&mut self) -> &mut dyn Work {
        self
    }
}

/// What is committed together.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) calls: Vec<QueuedCall>,
    pub(crate) completions: Vec<PendingCompletion>,
    pub(crate) writes: Vec<Box<dyn PendingWrite>>,
}

impl Batch {
    pub(crate) fn len(&self) -> usize {
        self.calls.len() + self.completions.len() + self.writes.len()
    }

    /// Each part alone, in the order in which they are done.
    pub(crate) fn one_by_one(self) -> Vec<Self> {
        let calls = self.calls.into_iter().map(|call| Self {
            calls: vec![call],
            ..Self::default()
        });
        let completions = self.completions.into_iter().map(|completion| Self {
            completions: vec![completion],
            ..Self::default()
        });
        let writes = self.writes.into_iter().map(|write| Self {
            writes: vec![write],
            ..Self::default()
        });
        calls.chain(completions).chain(writes).collect()
    }
}

pub(crate) fn bytes_of(message: &Message) -> usize {
    match message {
        Message::Call(call) => call_bytes(&call.call),
        Message::Complete(pending) => {
            let samples = pending.completion.samples.iter();
            samples.map(|sample| sample.messages.as_str().len()).sum()
        }
        Message::Write(_) | Message::Close(_) => 0,
    }
}

pub(crate) fn call_bytes(call: &NewCall) -> usize {
    let tokens: usize = call.tokens.iter().map(bytes::Bytes::len).sum();
    call.request.len() + call.response.len() + tokens
}

pub(crate) fn closes(message: &Message) -> bool {
    matches!(message, Message::Close(_))
}

/// Whether somebody waits for its commit.
pub(crate) fn is_awaited(message: &Message) -> bool {
    match message {
        Message::Write(_) | Message::Complete(_) | Message::Close(_) => true,
        Message::Call(call) => call.answer.is_some(),
    }
}
