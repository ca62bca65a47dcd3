//! Writes a chat reply as a message of Anthropic: its events, and the message itself.

use bytes::Bytes;
use serde_json::{Value, json};

use super::RAW_ARGUMENTS;
use crate::chat::{CallPiece, ChatUsage, Chunk, Finish};
use crate::event_writer::EventWriter;
use crate::translation::ReplyStamp;

/// A message under way.
#[derive(Debug)]
pub(crate) struct ReplyWriter {
    events: EventWriter,
    stamp: ReplyStamp,
    model: String,
    /// Empty until the reply begins.
    id: String,
    blocks: Vec<Block>,
    /// The last block may still grow.
    open: bool,
    refused: bool,
    finish: Option<Finish>,
    stop_text: Option<String>,
    usage: Option<ChatUsage>,
}

#[derive(Debug)]
enum Block {
    Thinking(String),
    Text(String),
    ToolUse {
        /// Which call of the chat reply.
        index: u64,
        id: String,
        name: String,
        arguments: String,
    },
}

impl Block {
    fn value(&self) -> Value {
        match self {
            // Nothing here can be signed, and nobody here asks for the signature back.
            Self::Thinking(text) => json!({"type": "thinking", "thinking": text, "signature": ""}),
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::ToolUse {
                id,
                name,
                arguments,
                ..
            } => json!({"type": "tool_use", "id": id, "name": name, "input": input(arguments)}),
        }
    }
}

/// The arguments of a call as this dialect has them: an object.
fn input(arguments: &str) -> Value {
    if arguments.trim().is_empty() {
        return json!({});
    }
    match serde_json::from_str(arguments) {
        Ok(object @ Value::Object(_)) => object,
        Ok(_) | Err(_) => json!({RAW_ARGUMENTS: arguments}),
    }
}

impl ReplyWriter {
    pub(super) fn new(model: String, stamp: ReplyStamp) -> Self {
        Self {
            events: EventWriter::default(),
            stamp,
            model,
            id: String::new(),
            blocks: Vec::new(),
            open: false,
            refused: false,
            finish: None,
            stop_text: None,
            usage: None,
        }
    }

    pub(crate) fn written(&mut self) -> Bytes {
        self.events.take()
    }

    pub(crate) fn take(&mut self, chunk: Chunk) {
        self.begin(&chunk);
        if let Some(text) = chunk.reasoning {
            self.thinking(&text);
        }
        if let Some(text) = chunk.content {
            self.text(&text);
        }
        if let Some(text) = chunk.refusal {
            self.refused = true;
            self.text(&text);
        }
        for piece in chunk.tool_calls {
            self.tool_use(piece);
        }
        self.finish = chunk.finish.or(self.finish);
        self.stop_text = chunk.stop_text.or(self.stop_text.take());
        self.usage = chunk.usage.or(self.usage);
    }

    /// Says that it is over; returns the whole message.
    pub(crate) fn finish(&mut self) -> Value {
        self.begin(&Chunk::default());
        let answered = |block: &Block| !matches!(block, Block::Thinking(_));
        if !self.blocks.iter().any(answered) {
            // An answer without a word is still an answer; agents look for one.
            self.start(Block::Text(String::new()));
        }
        self.stop();
        let mut message = self.message();
        let (reason, sequence) = self.stop_reason();
        message["content"] = self.blocks.iter().map(Block::value).collect();
        message["stop_reason"] = json!(reason);
        message["stop_sequence"] = json!(sequence);
        message["usage"] = usage(self.usage);
        let ending = json!({
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": message["usage"],
        });
        self.events.event("message_delta", ending);
        self.events.event("message_stop", json!({}));
        message
    }

    fn stop_reason(&self) -> (&'static str, Option<&str>) {
        let called = |block: &Block| matches!(block, Block::ToolUse { .. });
        match self.finish {
            _ if self.refused => ("refusal", None),
            Some(Finish::ContentFilter) => ("refusal", None),
            Some(Finish::Length) => ("max_tokens", None),
            Some(Finish::ToolCalls) => ("tool_use", None),
            // Servers say `stop` after a forced call.
            Some(Finish::Stop) | None if self.blocks.iter().any(called) => ("tool_use", None),
            Some(Finish::Stop) | None => match &self.stop_text {
                Some(text) => ("stop_sequence", Some(text)),
                None => ("end_turn", None),
            },
        }
    }

    fn begin(&mut self, chunk: &Chunk) {
        if !self.id.is_empty() {
            return;
        }
        let id = chunk.id.as_deref().unwrap_or_default();
        let stem = id.strip_prefix("chatcmpl-").unwrap_or(id);
        self.id = if stem.is_empty() {
            format!("msg_{:032x}", self.stamp.id)
        } else {
            format!("msg_{stem}")
        };
        if let Some(model) = &chunk.model {
            self.model.clone_from(model);
        }
        let message = self.message();
        self.events
            .event("message_start", json!({"message": message}));
    }

    fn message(&self) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(None),
        })
    }

    fn thinking(&mut self, more: &str) {
        if !self.open || !matches!(self.blocks.last(), Some(Block::Thinking(_))) {
            self.start(Block::Thinking(String::new()));
        }
        if let Some(Block::Thinking(text)) = self.blocks.last_mut() {
            text.push_str(more);
        }
        let delta = json!({"type": "thinking_delta", "thinking": more});
        self.delta(self.blocks.len() - 1, &delta);
    }

    fn text(&mut self, more: &str) {
        if !self.open || !matches!(self.blocks.last(), Some(Block::Text(_))) {
            self.start(Block::Text(String::new()));
        }
        if let Some(Block::Text(text)) = self.blocks.last_mut() {
            text.push_str(more);
        }
        let delta = json!({"type": "text_delta", "text": more});
        self.delta(self.blocks.len() - 1, &delta);
    }

    fn tool_use(&mut self, piece: CallPiece) {
        let known = self.blocks.iter().position(
            |block| matches!(block, Block::ToolUse { index, .. } if *index == piece.index),
        );
        let position = known.unwrap_or_else(|| {
            let id = piece
                .id
                .unwrap_or_else(|| format!("toolu_{}_{}", self.id, self.blocks.len()));
            self.start(Block::ToolUse {
                index: piece.index,
                id,
                name: piece.name.unwrap_or_default(),
                arguments: String::new(),
            });
            self.blocks.len() - 1
        });
        if piece.arguments.is_empty() {
            return;
        }
        if let Some(Block::ToolUse { arguments, .. }) = self.blocks.get_mut(position) {
            arguments.push_str(&piece.arguments);
        }
        // When calls come mixed, this may be for a block that was taken for complete: the index says
        // which, and clients go by it.
        let delta = json!({"type": "input_json_delta", "partial_json": piece.arguments});
        self.delta(position, &delta);
    }

    /// A new block; the one before it is complete.
    fn start(&mut self, block: Block) {
        self.stop();
        let started = json!({"index": self.blocks.len(), "content_block": block.value()});
        self.blocks.push(block);
        self.open = true;
        self.events.event("content_block_start", started);
    }

    fn stop(&mut self) {
        if std::mem::take(&mut self.open) {
            let index = self.blocks.len() - 1;
            self.events
                .event("content_block_stop", json!({"index": index}));
        }
    }

    fn delta(&mut self, index: usize, delta: &Value) {
        let event = json!({"index": index, "delta": delta});
        self.events.event("content_block_delta", event);
    }
}

/// What was read from a cache is not counted as input here.
fn usage(usage: Option<ChatUsage>) -> Value {
    let (prompt, cached, completion) = usage.map_or((0, 0, 0), |usage| {
        (usage.prompt, usage.cached, usage.completion)
    });
    json!({
        "input_tokens": prompt.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached.min(prompt),
        "output_tokens": completion,
    })
}
