//! Token in, token out: what is asked of an engine that samples tokens, and what it gives.
//!
//! An engine pushes tokens into a [`TokenSink`] from a thread of its own; nothing here awaits.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::PolicyVersion;

/// Where the random numbers of one generation come from. The same key gives the same draws,
/// whatever else is sampled at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DrawKey(pub [u8; 32]);

impl fmt::Debug for DrawKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DrawKey({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// A grammar that a generation has to follow: only tokens that it allows are sampled, and after its end only the
/// token that ends the turn.
///
/// The text is a Lark grammar in the variant of the crate `llguidance`. With the tokenizer it gives the allowed tokens
/// of every position, so records and the wire hold this text and no sets of tokens.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Constraint {
    pub grammar: Arc<str>,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Constraint({} bytes)", self.grammar.len())
    }
}

/// What to sample.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    pub prompt: Vec<u32>,
    /// At most this many tokens; the context length limits too.
    pub max_tokens: usize,
    /// 0 takes the likeliest token each time.
    pub temperature: f32,
    /// 1 keeps everything.
    pub top_p: f32,
    /// 0 keeps everything.
    pub top_k: usize,
    /// Sampling one of these ends the generation; it is the last token given.
    pub stop_ids: Vec<u32>,
    /// How many of the likeliest tokens to tell beside each sampled one.
    pub alternatives: usize,
    pub key: DrawKey,
    /// Only for engines of which [`TokenEngine::constrains`] is true.
    pub constraint: Option<Constraint>,
}

/// A token as it was sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledToken {
    pub id: u32,
    /// log-softmax(logits / temperature) before top-p and top-k; with temperature 0, of the logits. Under a constraint
    /// the softmax is over the allowed tokens alone: a token without an alternative has logprob 0.
    /// [`TokenEngine::logprobs_of`] tells of engines that give something else.
    pub logprob: f32,
    /// The weights that sampled it.
    pub version: PolicyVersion,
    /// The likeliest tokens at this place, likeliest first.
    pub alternatives: Vec<(u32, f32)>,
    /// How many tokens the constraint allowed here; `None` without a constraint.
    pub allowed: Option<u32>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// A stop id was sampled.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
    /// The sink wanted no more.
    Cancelled,
}

/// Why nothing could be sampled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerationError {
    #[error("the prompt has {prompt} tokens, and the model's context holds {context}")]
    PromptTooLong { prompt: usize, context: usize },
    #[error("the prompt is empty")]
    PromptEmpty,
    #[error("token id {id} is outside the model's vocabulary of {vocabulary}")]
    UnknownToken { id: u32, vocabulary: usize },
    #[error("the model gave a number that is not finite; its weights are damaged")]
    NotFinite,
    /// The constraint of the request can't be followed: its grammar is wrong, too large, or the engine has none.
    #[error("{message}")]
    Constraint { message: String },
    #[error("the engine has been shut down")]
    ShutDown,
    /// An engine on another machine, or in another process, gave no answer or a bad one.
    #[error("{message}")]
    Remote { kind: RemoteFault, message: String },
}

/// What went wrong between here and an engine elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteFault {
    /// Nobody answered there.
    Unreachable,
    /// It took too long.
    TimedOut,
    /// It has too much to do.
    Overloaded,
    /// It failed.
    ServerError,
    /// It does not let us in, or does not know the model.
    Misconfigured,
    /// Its reply is not what its protocol says.
    BadReply,
    /// Its reply ended before its end.
    CutShort,
}

/// What the logprobs of an answer are the logarithms of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum LogprobsOf {
    /// softmax(logits / temperature), before top-p and top-k: what ratios need.
    #[default]
    Tempered,
    /// softmax(logits): the temperature, which is not 1, was left out.
    Untempered,
    /// What top-p and top-k left over.
    Filtered,
    /// Nobody knows: there are none, or the engine does not say. The numbers mean nothing.
    Unknown,
}

/// Takes what is sampled, as it is sampled.
pub trait TokenSink: Send {
    /// `Break` when nobody wants more.
    fn token(&mut self, token: SampledToken) -> ControlFlow<()>;
    /// Called once, last.
    fn end(self: Box<Self>, end: Result<StopReason, GenerationError>);
    /// From then until then the engine waited for a server that failed. For engines that try again.
    fn lost(&mut self, _from: Instant, _to: Instant) {}
    /// Ready as soon as nobody wants more, for engines that wait between tokens.
    fn poll_unwanted(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// Samples tokens. Returns at once; the sink is served from elsewhere.
pub trait TokenEngine: Send + Sync + fmt::Debug {
    /// Tokens that prompt and answer may have together.
    fn context_length(&self) -> usize;
    /// The weights that would sample the next token.
    fn version(&self) -> PolicyVersion;
    fn generate(&self, request: GenerationRequest, sink: Box<dyn TokenSink>);
    /// Whether requests may have a [`Constraint`]. Others end them with [`GenerationError::Constraint`].
    fn constrains(&self) -> bool {
        false
    }
    /// Whether it samples outside of this process, where a server may fall silent.
    fn is_elsewhere(&self) -> bool {
        false
    }
    /// What the logprobs of an answer to this request are.
    fn logprobs_of(&self, _request: &GenerationRequest) -> LogprobsOf {
        LogprobsOf::Tempered
    }
}
