//! An answer that is told while it is sampled.

use std::sync::Arc;

use bytes::Bytes;

use super::reading::{Reader, Said};
use super::running::End;
use super::wire::{self, ChunkWriter, TokenNews, Tokens};
use super::{Begun, Cancelling, Inner, Refused, finish_reason};
use crate::policy::{Fault, FaultKind};

/// The chunks of a stream, as they come.
#[derive(Debug)]
pub(super) struct LiveReply {
    policy: Arc<Inner>,
    running: Cancelling,
    choices: Vec<LiveChoice>,
    writer: ChunkWriter,
    logprobs: bool,
    include_usage: bool,
    state: State,
}

#[derive(Debug, PartialEq)]
enum State {
    Telling,
    /// What was written goes out first.
    Broken(Fault),
    Done,
}

#[derive(Debug)]
struct LiveChoice {
    reader: Reader,
    /// Tokens read so far.
    seen: usize,
    news: TokenNews,
    begun: bool,
    tool_calls: usize,
    ended: bool,
}

impl LiveReply {
    pub(super) fn new(policy: Arc<Inner>, begun: Begun) -> Self {
        let choices = begun.readers.into_iter().map(|reader| LiveChoice {
            reader,
            seen: 0,
            news: TokenNews {
                logprobs: begun.logprobs.then(Vec::new),
                token_ids: begun.token_ids.then(Vec::new),
            },
            begun: false,
            tool_calls: 0,
            ended: false,
        });
        Self {
            policy,
            choices: choices.collect(),
            running: begun.running,
            writer: ChunkWriter::new(begun.head),
            logprobs: begun.logprobs,
            include_usage: begun.include_usage,
            state: State::Telling,
        }
    }

    /// The next chunks. The last ones come together, so that the call is recorded before its caller
    /// knows that it is over.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Fault>> {
        loop {
            match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return None,
                State::Broken(fault) => return Some(Err(fault)),
                State::Telling => self.state = self.tell(),
            }
            let written = self.writer.take();
            if !written.is_empty() {
                return Some(Ok(written));
            }
            if self.state == State::Telling {
                self.running.0.news().await;
            }
        }
    }

    /// Writes what can be told by now.
    fn tell(&mut self) -> State {
        for index in 0..self.choices.len() {
            if self.choices[index].ended {
                continue;
            }
            if let Err(fault) = self.tell_choice(index) {
                return State::Broken(fault);
            }
        }
        if self.choices.iter().any(|choice| !choice.ended) {
            return State::Telling;
        }
        let tokens = Tokens {
            prompt: self.running.0.prompt_tokens(),
            completion: self.running.0.completion_tokens(),
        };
        self.writer.done(tokens, self.include_usage);
        State::Done
    }

    fn tell_choice(&mut self, index: usize) -> Result<(), Fault> {
        let choice = &mut self.choices[index];
        let (tokens, end) = self.running.0.since(index, choice.seen);
        choice.seen += tokens.len();
        for token in &tokens {
            choice.reader.push(token.id);
            if let Some(ids) = &mut choice.news.token_ids {
                ids.push(token.id);
            }
            if self.logprobs
                && let Some(entries) = &mut choice.news.logprobs
            {
                entries.push(wire::logprob_entry(self.policy.chat(), token));
            }
        }
        let Some(end) = end else {
            let said = choice.reader.news();
            self.say(index, &said);
            return Ok(());
        };
        self.end_choice(index, &end)
    }

    fn end_choice(&mut self, index: usize, end: &End) -> Result<(), Fault> {
        let reason = self.policy.reason(end).map_err(|refused| match refused {
            Refused::Fault(fault) => fault,
            // The prompt was found good before the stream began.
            Refused::Refusal(refusal) => {
                self.policy
                    .fault(FaultKind::ServerError, 500, &refusal.message)
            }
        })?;
        let said = self.choices[index].reader.finish(end.cut);
        self.say(index, &said);
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let choice = &mut self.choices[index];
        let reply = choice.reader.said();
        if !choice.begun {
            self.writer.begin(number, true);
        } else if reply.content.is_none() && reply.tool_calls.is_empty() {
            // Nothing but reasoning: what a whole reply says with an empty text.
            let nothing = Said::Content(String::new());
            self.writer.say(number, &nothing, 0, &mut choice.news);
        }
        let message = wire::message(reply, &self.writer.head().id, number);
        // Before the caller can know that this choice is over, and go on from it.
        self.running.0.answered(index, &message);
        let reason = finish_reason(reason, reply.tool_calls.len());
        self.writer.end(number, reason, &mut choice.news);
        choice.ended = true;
        Ok(())
    }

    fn say(&mut self, index: usize, said: &[Said]) {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let choice = &mut self.choices[index];
        for said in said {
            if !choice.begun {
                self.writer.begin(number, matches!(said, Said::Content(_)));
                choice.begun = true;
            }
            self.writer
                .say(number, said, choice.tool_calls, &mut choice.news);
            if let Said::ToolCall(_) = said {
                choice.tool_calls += 1;
            }
        }
    }
}
