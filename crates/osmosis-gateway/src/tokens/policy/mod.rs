//! A policy that samples tokens with an engine, here or elsewhere, and knows each of them.
//!
//! The way of a call: `checked_request` checks what is wanted, the history plans the prompt (an earlier call's ids
//! verbatim where it goes on from one), the engine fills `running` from its own thread, `reading` turns
//! tokens into text and says what can be told already, `wire` writes it. When the call is recorded, the
//! gateway asks `running` for the token records, however the call ended.
//!
//! What a reply must be (a `tool_choice` that forces a call, a `response_format` with JSON) is a grammar that the engine
//! follows; where it can't, or the grammar is no good, the call is refused with 400, not ignored. Reasoning is given when its `</think>` has come: until then a text
//! may turn out to have none.

mod answering;
mod checked_request;
mod detokenizer;
mod draw;
mod generate;
mod live;
mod reading;
mod refused;
mod running;
mod structure;
mod wire;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use osmosis_core::clock::now_ms;
use osmosis_core::generation::{
    GenerationError, GenerationRequest, RemoteFault, StopReason, TokenEngine,
};
use osmosis_tokens::{ChatFormat, ToolSupport};
use serde_json::Value;

use self::checked_request::{CheckedRequest, Refusal};
use self::draw::Place;
use self::live::LiveReply;
use self::reading::{Reader, Reading, StopScan};
use self::refused::Refused;
use self::running::{ChoiceSink, End, Running};
use self::wire::{Head, Tokens, WholeChoice};
use crate::policy::weights::WeightLoader;
use crate::policy::{Fault, FaultKind, ModelCall, ModelReply, ReplyBody};
use crate::sessions::call_history::{Planned, SampleCalls};
use crate::tokens::engine::RemoteEngine;

/// A prompt beyond this is not read on a thread that others wait for.
const LARGE_BODY_BYTES: usize = 64 << 10;

/// How a token policy presents itself, and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPolicyOptions {
    /// What `/v1/models` lists.
    pub model: String,
    /// Where calls go; for records and messages.
    pub endpoint: String,
    /// The file of the chat template, where it is not the model's own.
    pub chat_template: Option<String>,
    /// Of the run: with the same seed, the same calls get the same answers.
    pub seed: u64,
    /// Longer prompts are refused. The engine's context limits too.
    pub max_prompt_tokens: Option<usize>,
    /// Longer answers are cut.
    pub max_response_tokens: Option<usize>,
}

/// Answers chat calls with tokens sampled by an engine.
#[derive(Debug)]
pub struct TokenPolicy(Arc<Inner>);

/// What streams outlive the call with.
#[derive(Debug)]
struct Inner {
    engine: Arc<dyn TokenEngine>,
    reading: Arc<Reading>,
    options: TokenPolicyOptions,
    /// `None` where weights are not exchanged from outside.
    loader: Option<Arc<dyn WeightLoader>>,
    /// The engine once more, where it is a server that can be exchanged for another.
    server: Option<Arc<RemoteEngine>>,
}

impl TokenPolicy {
    pub fn new(
        engine: Arc<dyn TokenEngine>,
        chat: Arc<ChatFormat>,
        options: TokenPolicyOptions,
    ) -> Self {
        Self(Arc::new(Inner {
            engine,
            reading: Arc::new(Reading::new(chat)),
            options,
            loader: None,
            server: None,
        }))
    }

    /// The same for an engine in this process whose weights are exchanged by `loader`.
    pub fn with_loader(
        engine: Arc<dyn TokenEngine>,
        chat: Arc<ChatFormat>,
        options: TokenPolicyOptions,
        loader: Arc<dyn WeightLoader>,
    ) -> Self {
        Self(Arc::new(Inner {
            engine,
            reading: Arc::new(Reading::new(chat)),
            options,
            loader: Some(loader),
            server: None,
        }))
    }

    /// The same for an engine behind a server, which can be exchanged for another server.
    pub fn at_server(
        server: Arc<RemoteEngine>,
        chat: Arc<ChatFormat>,
        options: TokenPolicyOptions,
    ) -> Self {
        Self(Arc::new(Inner {
            engine: Arc::clone(&server) as Arc<dyn TokenEngine>,
            reading: Arc::new(Reading::new(chat)),
            options,
            loader: None,
            server: Some(server),
        }))
    }
}

impl Inner {
    fn chat(&self) -> &ChatFormat {
        self.reading.chat()
    }

    /// Checks a call and plans its prompts.
    fn prepare(&self, call: &ModelCall) -> Result<Prepared, Refused> {
        let asked = CheckedRequest::parse(&call.body)?;
        if let Some(tools) = &asked.tools {
            self.check_tools(tools)?;
        }
        let calls = call.history.calls_of(&call.sample_id, asked.choices);
        let planned = calls.plan(
            self.reading.chat(),
            &asked.messages,
            asked.tools.as_deref(),
            &asked.extra,
            asked.choices,
        )?;
        // A call has at least one choice.
        let (prompt, number) = planned
            .first()
            .map(|planned| (planned.prompt.ids.len(), planned.number))
            .unwrap_or_default();
        self.check_length(prompt)?;
        let constraint = self.constraint(&asked)?;
        let place = Place {
            seed: self.options.seed,
            rollout: &call.rollout_id,
            sample: &call.sample_id,
            call: number,
        };
        let id = place.completion_id();
        let room = self.engine.context_length() - prompt;
        let max_tokens = [asked.max_tokens, self.options.max_response_tokens]
            .into_iter()
            .flatten()
            .fold(room, usize::min);
        let requests = (0..)
            .zip(&planned)
            .map(|(choice, Planned { prompt, number })| GenerationRequest {
                prompt: prompt.ids.clone(),
                max_tokens,
                temperature: asked.temperature,
                top_p: asked.top_p,
                top_k: asked.top_k,
                stop_ids: if asked.ignore_eos {
                    Vec::new()
                } else {
                    self.reading.chat().end_of_turn().to_vec()
                },
                alternatives: asked.logprobs.unwrap_or(0),
                key: match asked.seed {
                    Some(seed) => draw::callers_draw_key(seed, choice),
                    None => Place {
                        call: *number,
                        ..place
                    }
                    .draw_key(choice),
                },
                constraint: constraint.clone(),
            })
            .collect();
        Ok(Prepared {
            id,
            asked,
            calls,
            planned,
            requests,
        })
    }

    /// Tools that the model would not see are no wish to be passed over in silence.
    fn check_tools(&self, tools: &[Value]) -> Result<(), Refused> {
        let names: Vec<&str> = tools.iter().map(tool_name).collect();
        let names = names.join(", ");
        let template = match &self.options.chat_template {
            Some(file) => format!("the chat template `{file}`"),
            None => format!("the chat template of `{}`", self.options.model),
        };
        let message = match self.chat().tool_support() {
            ToolSupport::Rendered => return Ok(()),
            ToolSupport::Ignored => format!("{template} ignores `tools`: {names}"),
            ToolSupport::Refused { message } => {
                format!("{template} can't be rendered with `tools` ({names}): {message}")
            }
        };
        Err(Refused::Fault(Fault {
            kind: FaultKind::ToolsIgnored,
            status: 400,
            message,
        }))
    }

    fn check_length(&self, prompt: usize) -> Result<(), Refusal> {
        let context = self.engine.context_length();
        if prompt >= context {
            return Err(Refusal::too_long(format!(
                "the prompt has {prompt} tokens, and the maximum context length is {context} tokens, \
                 answer included"
            )));
        }
        match self.options.max_prompt_tokens {
            Some(limit) if prompt > limit => Err(Refusal::too_long(format!(
                "the prompt has {prompt} tokens, and this run allows {limit}"
            ))),
            _ => Ok(()),
        }
    }

    /// Lets the engine begin, and gives the record somebody to ask.
    fn begin(&self, call: &ModelCall, prepared: Prepared) -> Begun {
        let Prepared {
            id,
            asked,
            calls,
            planned,
            requests,
        } = prepared;
        let stops: Arc<[String]> = asked.stop.into();
        let prompts: Vec<_> = planned.into_iter().map(|planned| planned.prompt).collect();
        let prompt_token_ids = asked
            .return_token_ids
            .then(|| prompts.first().map(|prompt| prompt.ids.clone()))
            .flatten();
        let logprobs_of = requests
            .first()
            .map(|request| self.engine.logprobs_of(request))
            .unwrap_or_default();
        let constraint = requests.first().and_then(|first| first.constraint.clone());
        let running = Arc::new(Running::new(
            calls,
            prompts,
            (asked.temperature, logprobs_of),
            constraint,
            call.streamed,
            || StopScan::new(Arc::clone(&self.reading), Arc::clone(&stops)),
        ));
        call.tokens.fill(Arc::clone(&running) as _);
        let readers = requests
            .iter()
            .map(|_| {
                Reader::new(
                    Arc::clone(&self.reading),
                    asked.tools.is_some(),
                    Arc::clone(&stops),
                )
            })
            .collect();
        for (choice, request) in requests.into_iter().enumerate() {
            let running = Arc::clone(&running);
            let sink = ChoiceSink {
                running,
                choice,
                call_trace: call.call_trace.clone(),
            };
            self.engine.generate(request, Box::new(sink));
        }
        Begun {
            head: Head {
                id,
                model: self.options.model.clone(),
                created: u64::try_from(now_ms() / 1000).unwrap_or(0),
                prompt_token_ids,
            },
            running: Cancelling(running),
            readers,
            logprobs: asked.logprobs.is_some(),
            token_ids: asked.return_token_ids,
            include_usage: asked.include_usage,
        }
    }

    /// The whole answer, when all of it is there.
    async fn whole(&self, begun: Begun) -> Result<Bytes, Refused> {
        let Begun {
            head,
            running,
            readers,
            logprobs,
            token_ids,
            ..
        } = begun;
        let running = &running.0;
        let mut choices = Vec::with_capacity(readers.len());
        for (index, mut reader) in (0..).zip(readers) {
            let place = index as usize;
            let (tokens, end) = loop {
                match running.since(place, 0) {
                    (tokens, Some(end)) => break (tokens, end),
                    (_, None) => running.news().await,
                }
            };
            let reason = self.reason(&end)?;
            for token in &tokens {
                reader.push(token.id);
            }
            reader.finish(end.cut);
            let message = wire::message(reader.said(), &head.id, index);
            running.answered(place, &message);
            let chat = self.chat();
            choices.push(WholeChoice {
                message,
                finish_reason: finish_reason(reason, reader.said().tool_calls.len()),
                logprobs: logprobs.then(|| {
                    tokens
                        .iter()
                        .map(|t| wire::logprob_entry(chat, t))
                        .collect()
                }),
                token_ids: token_ids.then(|| tokens.iter().map(|token| token.id).collect()),
            });
        }
        let tokens = Tokens {
            prompt: running.prompt_tokens(),
            completion: running.completion_tokens(),
        };
        Ok(wire::completion(head, choices, tokens))
    }

    /// Why a choice ended, when it ended well.
    fn reason(&self, end: &End) -> Result<StopReason, Refused> {
        match &end.reason {
            // The engine gave up a choice that somebody still waits for.
            Ok(StopReason::Cancelled) => Err(self.failed(&GenerationError::ShutDown)),
            Ok(reason @ (StopReason::Stop | StopReason::Length)) => Ok(*reason),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: &GenerationError) -> Refused {
        let (kind, status) = match error {
            GenerationError::PromptTooLong { .. } => {
                return Refusal::too_long(error.to_string()).into();
            }
            GenerationError::PromptEmpty => {
                return Refusal::of("messages", error.to_string()).into();
            }
            GenerationError::Constraint { .. } => {
                return Refusal::of("response_format", error.to_string()).into();
            }
            GenerationError::UnknownToken { .. } | GenerationError::NotFinite => {
                (FaultKind::ServerError, 500)
            }
            GenerationError::ShutDown => (FaultKind::Unreachable, 503),
            GenerationError::Remote { kind, .. } => match kind {
                RemoteFault::Unreachable => (FaultKind::Unreachable, 502),
                RemoteFault::TimedOut => (FaultKind::TimedOut, 504),
                RemoteFault::Overloaded => (FaultKind::Overloaded, 429),
                RemoteFault::ServerError => (FaultKind::ServerError, 502),
                RemoteFault::Misconfigured => (FaultKind::Misconfigured, 502),
                RemoteFault::BadReply => (FaultKind::Garbage, 502),
                RemoteFault::CutShort => (FaultKind::CutShort, 502),
            },
        };
        Refused::Fault(self.fault(kind, status, &error.to_string()))
    }

    fn fault(&self, kind: FaultKind, status: u16, message: &str) -> Fault {
        Fault {
            kind,
            status,
            message: format!("{}: {message}", self.options.endpoint),
        }
    }

    async fn answer(self: &Arc<Self>, call: ModelCall) -> Result<ModelReply, Refused> {
        let takes_long = call.body.len() > LARGE_BODY_BYTES || structure::is_mentioned(&call.body);
        let prepared = if takes_long {
            let (policy, call) = (Arc::clone(self), call.clone());
            tokio::task::spawn_blocking(move || policy.prepare(&call))
                .await
                .map_err(|error| {
                    Refused::Fault(self.fault(FaultKind::ServerError, 500, &error.to_string()))
                })??
        } else {
            self.prepare(&call)?
        };
        let begun = self.begin(&call, prepared);
        if !call.streamed {
            return Ok(ModelReply {
                status: 200,
                content_type: "application/json".to_owned(),
                body: ReplyBody::Whole(self.whole(begun).await?),
            });
        }
        // What goes wrong before the first token gets a status of its own.
        while !begun.running.0.has_begun() {
            begun.running.0.news().await;
        }
        for choice in 0..begun.readers.len() {
            if let (tokens, Some(end)) = begun.running.0.since(choice, 0)
                && tokens.is_empty()
            {
                self.reason(&end)?;
            }
        }
        let live = LiveReply::new(Arc::clone(self), begun);
        let events = stream::unfold(live, |mut live| async move {
            live.next().await.map(|item| (item, live))
        });
        Ok(ModelReply {
            status: 200,
            content_type: "text/event-stream".to_owned(),
            body: ReplyBody::Stream(Box::pin(events)),
        })
    }
}

/// A call, checked and planned.
#[derive(Debug)]
struct Prepared {
    id: String,
    asked: CheckedRequest,
    calls: Arc<SampleCalls>,
    planned: Vec<Planned>,
    requests: Vec<GenerationRequest>,
}

/// A call that is being sampled.
#[derive(Debug)]
struct Begun {
    head: Head,
    running: Cancelling,
    readers: Vec<Reader>,
    logprobs: bool,
    token_ids: bool,
    include_usage: bool,
}

/// Ends the sampling when nobody waits for it any more.
#[derive(Debug)]
struct Cancelling(Arc<Running>);

impl Drop for Cancelling {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn tool_name(tool: &Value) -> &str {
    let name = tool["function"]["name"].as_str();
    name.or_else(|| tool["name"].as_str())
        .unwrap_or("a tool without a name")
}

fn finish_reason(reason: StopReason, tool_calls: usize) -> &'static str {
    match reason {
        StopReason::Length => "length",
        StopReason::Stop | StopReason::Cancelled if tool_calls > 0 => "tool_calls",
        StopReason::Stop | StopReason::Cancelled => "stop",
    }
}
