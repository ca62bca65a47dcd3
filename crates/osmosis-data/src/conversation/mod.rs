//! What was said in a sample, whatever dialect or framework said it: turns, tool calls and results,
//! reasoning, usage and times. Exports and transcripts are made from this.
//!
//! ```
//! use osmosis_data::conversation::{Conversation, Role};
//!
//! let messages = serde_json::json!([
//!     {"role": "user", "content": [{"text": "6 * 7?"}]},
//!     {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "42"}]},
//! ]);
//! let conversation = Conversation::of_messages(messages.as_array().unwrap());
//! assert_eq!(conversation.turns[1].role, Role::Assistant);
//! assert_eq!(conversation.turns[1].text(), "42");
//! ```

mod blocks;
mod chat;
mod items;
mod key;
mod reply;
mod request;
mod stream;
mod tree;

use serde_json::Value;

pub use self::reply::is_cut_at_limit;
pub use self::tree::ConversationTree;

/// One line of talk, from its first message to its last.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// What the last call offered, in the shape of Chat Completions.
    pub tools: Vec<Value>,
    pub turns: Vec<Turn>,
    /// Why the last call has no reply, when it has none.
    pub error: Option<String>,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Also a developer.
    System,
    User,
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The name in Chat Completions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// What one side said before the other side spoke.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub role: Role,
    pub content: Vec<Part>,
    /// What was said in token ids, by a call that has nothing else.
    pub token_ids: Option<Vec<u32>>,
    /// What the model thought, as far as it was told.
    pub reasoning: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    /// The id of the tool call that a tool's result answers.
    pub answers: Option<String>,
    /// The tool said that it failed.
    pub is_error: bool,
    /// When it was known here: milliseconds since 1970.
    pub at_ms: Option<i64>,
    /// The model call that made this turn; `None` for what was given to the model.
    pub call: Option<Box<CallFacts>>,
}

/// A piece of a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Text(String),
    /// An address, or the picture itself as a `data:` URL.
    Image(String),
    /// What has a shape of its own, as it was.
    Other(Value),
}

/// A tool that the model wants to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Empty when nobody gave it one.
    pub id: String,
    pub name: String,
    /// As the model wrote them: JSON, if the model was right.
    pub arguments: String,
}

/// What is known of the model call behind a turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallFacts {
    pub call_id: u64,
    /// The id that the reply gave itself.
    pub reply_id: Option<String>,
    pub model: String,
    pub usage: Usage,
    /// `stop`, `tool_calls`, `length`, … as the dialect says it.
    pub finish_reason: Option<String>,
    /// Milliseconds since 1970.
    pub queued_at_ms: i64,
    pub first_byte_at_ms: Option<i64>,
    pub done_at_ms: i64,
    /// In token ids, when the policy told them.
    pub tokens: Option<CallTokens>,
}

/// What a call used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// With the cached ones.
    pub prompt_tokens: Option<u64>,
    /// With the reasoning.
    pub completion_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
    /// In US dollars.
    pub cost: Option<f64>,
}

/// A call in token ids.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallTokens {
    /// The whole prompt.
    pub prompt: Vec<u32>,
    pub sampled: Vec<u32>,
    /// One for each sampled token.
    pub logprobs: Vec<f32>,
}

/// A model call as it was recorded.
#[derive(Debug, Clone, Copy)]
pub struct RecordedCall<'a> {
    pub call_id: u64,
    /// `chat_completions`, `responses`, `messages`, `completions` or `generate`.
    pub dialect: &'a str,
    pub model: &'a str,
    pub status: u16,
    pub error: Option<&'a str>,
    pub request: &'a [u8],
    pub response: &'a [u8],
    /// As they were counted; what only the reply says is read from there.
    pub usage: Usage,
    pub queued_at_ms: i64,
    pub first_byte_at_ms: Option<i64>,
    pub done_at_ms: i64,
    /// One for each choice.
    pub tokens: &'a [CallTokens],
}

impl Conversation {
    /// The conversation that a framework's own messages tell: of Chat Completions, Responses,
    /// Anthropic's Messages, Strands or rig. What has an unknown shape is kept as it is.
    pub fn of_messages(messages: &[Value]) -> Self {
        Self {
            turns: items::turns(messages),
            ..Self::default()
        }
    }

    /// The conversations of a sample: from its calls, which know the system prompt, the tools and the
    /// times, or else from its messages. Several when its calls do not continue one another.
    pub fn of_sample<'a>(
        calls: impl IntoIterator<Item = RecordedCall<'a>>,
        messages: &[Value],
    ) -> Vec<Self> {
        let mut tree = ConversationTree::default();
        for call in calls {
            tree.add(&call);
        }
        tree.conversations(messages)
    }

    /// The messages in the shape of Chat Completions.
    pub fn chat_messages(&self) -> Vec<Value> {
        self.turns.iter().map(Turn::chat_message).collect()
    }

    /// The model calls in it.
    pub fn calls(&self) -> impl Iterator<Item = &CallFacts> {
        self.turns.iter().filter_map(|turn| turn.call.as_deref())
    }
}

impl Turn {
    pub fn new(role: Role) -> Self {
        Self {
            role,
            content: Vec::new(),
            token_ids: None,
            reasoning: None,
            tool_calls: Vec::new(),
            answers: None,
            is_error: false,
            at_ms: None,
            call: None,
        }
    }

    pub fn said(role: Role, text: impl Into<String>) -> Self {
        let mut turn = Self::new(role);
        turn.push_text(text.into());
        turn
    }

    /// All that can be read, a line for each part; pictures are named, not shown.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for part in &self.content {
            if !text.is_empty() {
                text.push('\n');
            }
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Image(url) if url.starts_with("data:") => text.push_str("[image]"),
                Part::Image(url) => {
                    text.push_str("[image ");
                    text.push_str(url);
                    text.push(']');
                }
                Part::Other(value) => text.push_str(&value.to_string()),
            }
        }
        text
    }

    fn push_text(&mut self, text: String) {
        if !text.is_empty() {
            self.content.push(Part::Text(text));
        }
    }

    fn push_reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let reasoning = self.reasoning.get_or_insert_default();
        if !reasoning.is_empty() {
            reasoning.push('\n');
        }
        reasoning.push_str(text);
    }
}

impl CallFacts {
    /// Whether the reply ends where it does because it may have no more tokens.
    pub fn reached_token_limit(&self) -> bool {
        // In Chat Completions and Completions, in Messages, in Responses.
        matches!(
            self.finish_reason.as_deref(),
            Some("length" | "max_tokens" | "max_output_tokens")
        )
    }
}

impl Usage {
    /// What is known here, and what the other knows besides.
    fn or(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens.or(other.prompt_tokens),
            completion_tokens: self.completion_tokens.or(other.completion_tokens),
            cached_tokens: self.cached_tokens.or(other.cached_tokens),
            reasoning_tokens: self.reasoning_tokens.or(other.reasoning_tokens),
            cost: self.cost.or(other.cost),
        }
    }
}

impl ToolCall {
    /// The arguments as an object; what is no object goes under `arguments`.
    pub fn arguments_object(&self) -> serde_json::Map<String, Value> {
        let text = self.arguments.trim();
        if text.is_empty() {
            return serde_json::Map::new();
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(arguments)) => arguments,
            Ok(other) => [("arguments".to_owned(), other)].into_iter().collect(),
            Err(_) => [("arguments".to_owned(), Value::from(text))]
                .into_iter()
                .collect(),
        }
    }
}
