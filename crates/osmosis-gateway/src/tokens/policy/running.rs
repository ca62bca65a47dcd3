//! A call while it is sampled: what each choice has so far, filled by the engine's thread, read by the
//! caller's connection, and told to the record in the end.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use osmosis_core::generation::{
    Constraint, GenerationError, LogprobsOf, SampledToken, StopReason, TokenSink,
};
use osmosis_tokens::{PlannedPrompt, RecordedConstraint};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

use super::reading::StopScan;
use crate::calls::call_trace::CallTrace;
use crate::policy::{TokenAccount, TokenLedger};
use crate::sessions::call_history::{Delivered, SampleCalls, Sampled};

/// The choices of one call.
#[derive(Debug)]
pub(super) struct Running {
    calls: Arc<SampleCalls>,
    choices: Vec<Mutex<Choice>>,
    prompt_tokens: u64,
    temperature: f32,
    logprobs_of: LogprobsOf,
    /// What every choice has to follow.
    constraint: Option<Constraint>,
    /// Every token is news; otherwise only the end of a choice is.
    every_token: bool,
    news: Notify,
}

#[derive(Debug)]
struct Choice {
    /// Taken when its record is made.
    prompt: Option<PlannedPrompt>,
    tokens: Vec<SampledToken>,
    end: Option<Result<StopReason, GenerationError>>,
    stop: Option<StopScan>,
    cut: Option<usize>,
    /// Nobody wants more.
    closed: bool,
    /// Who waits to hear that.
    waiting: Option<Waker>,
    first_token_at: Option<Instant>,
    record: Option<Bytes>,
}

/// How a choice ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) reason: Result<StopReason, GenerationError>,
    /// Where the text ends when a stop text ended it.
    pub(super) cut: Option<usize>,
}

impl Running {
    pub(super) fn new(
        calls: Arc<SampleCalls>,
        prompts: Vec<PlannedPrompt>,
        (temperature, logprobs_of): (f32, LogprobsOf),
        constraint: Option<Constraint>,
        every_token: bool,
        stop: impl Fn() -> Option<StopScan>,
    ) -> Self {
        let prompt_tokens = prompts.first().map_or(0, |prompt| prompt.ids.len() as u64);
        let choices = prompts
            .into_iter()
            .map(|prompt| {
                Mutex::new(Choice {
                    prompt: Some(prompt),
                    tokens: Vec::new(),
                    end: None,
                    stop: stop(),
                    cut: None,
                    closed: false,
                    waiting: None,
                    first_token_at: None,
                    record: None,
                })
            })
            .collect();
        Self {
            calls,
            choices,
            prompt_tokens,
            temperature,
            logprobs_of,
            constraint,
            every_token,
            news: Notify::new(),
        }
    }

    pub(super) fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    pub(super) fn completion_tokens(&self) -> u64 {
        let lengths = self.choices.iter().map(|choice| choice.lock().tokens.len());
        lengths.map(|length| length as u64).sum()
    }

    /// Returns when something may have changed since the last time. For one reader.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// The tokens of a choice from the one with this number on, and its end, if it has come.
    pub(super) fn since(&self, choice: usize, number: usize) -> (Vec<SampledToken>, Option<End>) {
        let choice = self.choices[choice].lock();
        let tokens = choice.tokens.get(number..).unwrap_or_default().to_vec();
        let end = choice.end.clone().map(|reason| End {
            reason,
            cut: choice.cut,
        });
        (tokens, end)
    }

    /// Whether a choice has something to tell.
    pub(super) fn has_begun(&self) -> bool {
        self.choices.iter().any(|choice| {
            let choice = choice.lock();
            choice.end.is_some() || !choice.tokens.is_empty()
        })
    }

    /// Takes up a choice that its caller gets whole, as this message.
    pub(super) fn answered(&self, choice: usize, message: &Value) {
        self.make_record(choice, Delivered::Message(message));
    }

    /// Takes up a choice that its caller gets whole, as ids.
    pub(super) fn answered_in_ids(&self, choice: usize) {
        self.make_record(choice, Delivered::Ids);
    }

    /// When the first token of a choice came.
    pub(super) fn first_token_at(&self, choice: usize) -> Option<Instant> {
        self.choices[choice].lock().first_token_at
    }

    /// Ends what is still sampled.
    pub(super) fn cancel(&self) {
        for choice in &self.choices {
            choice.lock().close();
        }
    }

    fn make_record(&self, choice: usize, told: Delivered<'_>) {
        let place = &self.choices[choice];
        let (prompt, sampled) = {
            let mut choice = place.lock();
            choice.close();
            let Some(prompt) = choice.prompt.take() else {
                return;
            };
            let sampled = Sampled {
                ids: choice.tokens.iter().map(|token| token.id).collect(),
                logprobs: choice.tokens.iter().map(|token| token.logprob).collect(),
                versions: choice.tokens.iter().map(|token| token.version).collect(),
                temperature: self.temperature,
                logprobs_of: self.logprobs_of,
                one_of_several: self.choices.len() > 1,
                constraint: self.constraint.clone().map(|constraint| {
                    // An engine that constrains says of every token how many were allowed. Without that, nobody trains
                    // on it: no place has 0.
                    let allowed = choice.tokens.iter();
                    let allowed = allowed.map(|token| token.allowed.unwrap_or(0)).collect();
                    RecordedConstraint {
                        constraint,
                        allowed,
                    }
                }),
            };
            (prompt, sampled)
        };
        // The engine's thread must not wait for the calls of the sample, so its lock is free by now.
        let record = self.calls.finished(prompt, sampled, told);
        place.lock().record = Some(Bytes::from(record.encode()));
    }
}

impl Choice {
    fn close(&mut self) {
        self.closed = true;
        if let Some(waiting) = self.waiting.take() {
            waiting.wake();
        }
    }
}

impl TokenLedger for Running {
    fn close(&self) -> TokenAccount {
        self.cancel();
        for choice in 0..self.choices.len() {
            self.make_record(choice, Delivered::Nothing);
        }
        TokenAccount {
            records: self
                .choices
                .iter()
                .filter_map(|choice| choice.lock().record.clone())
                .collect(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens(),
        }
    }
}

/// Where the engine puts the tokens of one choice.
#[derive(Debug)]
pub(super) struct ChoiceSink {
    pub(super) running: Arc<Running>,
    pub(super) choice: usize,
    pub(super) call_trace: CallTrace,
}

impl ChoiceSink {
    fn ends(&self, reason: Result<StopReason, GenerationError>) {
        {
            let mut choice = self.running.choices[self.choice].lock();
            if choice.end.is_some() {
                return;
            }
            if reason.is_ok() {
                choice.cut = choice.stop.as_mut().and_then(StopScan::finish);
            }
            choice.end = Some(reason);
        }
        self.running.news.notify_one();
    }
}

impl TokenSink for ChoiceSink {
    fn token(&mut self, token: SampledToken) -> ControlFlow<()> {
        let stopped = {
            let mut choice = self.running.choices[self.choice].lock();
            if choice.closed || choice.end.is_some() {
                return ControlFlow::Break(());
            }
            let id = token.id;
            if choice.first_token_at.is_none() {
                choice.first_token_at = Some(Instant::now());
                self.call_trace.heard(token.version);
            }
            choice.tokens.push(token);
            // Here and not by the reader: how far the engine gets meanwhile must not depend on chance.
            choice.cut = choice.stop.as_mut().and_then(|stop| stop.push(id));
            if choice.cut.is_some() {
                choice.end = Some(Ok(StopReason::Stop));
            }
            choice.cut.is_some()
        };
        if stopped || self.running.every_token {
            self.running.news.notify_one();
        }
        if stopped {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn end(self: Box<Self>, end: Result<StopReason, GenerationError>) {
        self.ends(end);
    }

    fn lost(&mut self, from: Instant, to: Instant) {
        self.call_trace.lost(from, to);
    }

    fn poll_unwanted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut choice = self.running.choices[self.choice].lock();
        if choice.closed || choice.end.is_some() {
            return Poll::Ready(());
        }
        match &mut choice.waiting {
            Some(waiting) => waiting.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for ChoiceSink {
    /// An engine that lets go without a word has broken down.
    fn drop(&mut self) {
        self.ends(Err(GenerationError::ShutDown));
    }
}
