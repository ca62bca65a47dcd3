//! Writes a chat reply as a response: its events, and the response itself.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::item::{Item, Kind, Part, reasoning_part};
use crate::chat::{CallPiece, ChatUsage, Chunk, Finish};
use crate::event_writer::EventWriter;
use crate::translation::ReplyStamp;

/// A response under way.
#[derive(Debug)]
pub(crate) struct ReplyWriter {
    events: EventWriter,
    stamp: ReplyStamp,
    /// What the response says of its request.
    repeated: Map<String, Value>,
    model: String,
    /// Makes the ids of the response and of its items; empty until the reply begins.
    stem: String,
    created: u64,
    items: Vec<Item>,
    finish: Option<Finish>,
    usage: Option<ChatUsage>,
}

impl ReplyWriter {
    pub(super) fn new(model: String, repeated: Map<String, Value>, stamp: ReplyStamp) -> Self {
        Self {
            events: EventWriter::numbered(),
            stamp,
            repeated,
            model,
            stem: String::new(),
            created: 0,
            items: Vec::new(),
            finish: None,
            usage: None,
        }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.events.sequence()
    }

    pub(crate) fn written(&mut self) -> Bytes {
        self.events.take()
    }

    pub(crate) fn take(&mut self, chunk: Chunk) {
        self.begin(&chunk);
        if let Some(text) = chunk.reasoning {
            self.reasoning(&text);
        }
        match chunk.content {
            Some(text) => self.text(&text, chunk.logprobs),
            None => self.late_logprobs(chunk.logprobs),
        }
        if let Some(text) = chunk.refusal {
            self.refusal(&text);
        }
        for piece in chunk.tool_calls {
            self.call(piece);
        }
        self.finish = chunk.finish.or(self.finish);
        self.usage = chunk.usage.or(self.usage);
    }

    /// Says that it is over; returns the whole response.
    pub(crate) fn finish(&mut self) -> Value {
        self.begin(&Chunk::default());
        let answered = |item: &Item| matches!(item.kind, Kind::Message(_) | Kind::Call { .. });
        if !self.items.iter().any(answered) {
            // An answer without a word is still an answer; agents wait for one.
            self.add_part(Part::Text {
                text: String::new(),
                logprobs: Vec::new(),
            });
        }
        let incomplete = match self.finish {
            Some(Finish::Length) => Some("max_output_tokens"),
            Some(Finish::ContentFilter) => Some("content_filter"),
            Some(Finish::Stop | Finish::ToolCalls) | None => None,
        };
        let last = self.items.len() - 1;
        for index in 0..self.items.len() {
            let cut = incomplete.is_some() && index == last;
            self.close(index, if cut { "incomplete" } else { "completed" });
        }
        let (status, name) = match incomplete {
            Some(_) => ("incomplete", "response.incomplete"),
            None => ("completed", "response.completed"),
        };
        let mut response = self.response(status);
        response["incomplete_details"] = match incomplete {
            Some(reason) => json!({"reason": reason}),
            None => Value::Null,
        };
        response["output"] = self.items.iter().map(Item::value).collect();
        response["usage"] = self.usage.map_or(Value::Null, usage);
        self.events.event(name, json!({"response": response}));
        response
    }

    /// With the first chunk, whatever it says, the response has been created.
    fn begin(&mut self, chunk: &Chunk) {
        if !self.stem.is_empty() {
            return;
        }
        let id = chunk.id.as_deref().unwrap_or_default();
        let stem = id.strip_prefix("chatcmpl-").unwrap_or(id);
        self.stem = if stem.is_empty() {
            format!("{:032x}", self.stamp.id)
        } else {
            stem.to_owned()
        };
        self.created = chunk.created.unwrap_or(self.stamp.created);
        if let Some(model) = &chunk.model {
            self.model.clone_from(model);
        }
        for name in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress");
            self.events.event(name, json!({"response": response}));
        }
    }

    fn response(&self, status: &str) -> Value {
        let mut response = json!({
            "id": format!("resp_{}", self.stem),
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": [],
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
            "usage": null,
        });
        if let Some(fields) = response.as_object_mut() {
            fields.extend(self.repeated.clone());
        }
        response
    }

    fn reasoning(&mut self, more: &str) {
        let grows = self
            .items
            .last()
            .is_some_and(|item| item.status.is_none() && matches!(item.kind, Kind::Reasoning(_)));
        if !grows {
            let index = self.add("rs", Kind::Reasoning(String::new()));
            let part = reasoning_part("");
            self.part_event(
                "response.content_part.added",
                index,
                0,
                json!({"part": part}),
            );
        }
        let index = self.items.len() - 1;
        if let Some(Kind::Reasoning(text)) = self.items.last_mut().map(|item| &mut item.kind) {
            text.push_str(more);
        }
        self.part_event(
            "response.reasoning_text.delta",
            index,
            0,
            json!({"delta": more}),
        );
    }

    fn text(&mut self, more: &str, entries: Vec<Value>) {
        let (index, part) = self.open_part(
            |part| matches!(part, Part::Text { .. }),
            || Part::Text {
                text: String::new(),
                logprobs: Vec::new(),
            },
        );
        let delta = json!({"delta": more, "logprobs": entries});
        if let Some(Part::Text { text, logprobs }) = self.last_part() {
            text.push_str(more);
            logprobs.extend(entries);
        }
        self.part_event("response.output_text.delta", index, part, delta);
    }

    /// Some servers tell the logprobs after the text; they are in its end then.
    fn late_logprobs(&mut self, entries: Vec<Value>) {
        if let Some(Part::Text { logprobs, .. }) = self.last_part() {
            logprobs.extend(entries);
        }
    }

    fn refusal(&mut self, more: &str) {
        let (index, part) = self.open_part(
            |part| matches!(part, Part::Refusal(_)),
            || Part::Refusal(String::new()),
        );
        if let Some(Part::Refusal(text)) = self.last_part() {
            text.push_str(more);
        }
        self.part_event(
            "response.refusal.delta",
            index,
            part,
            json!({"delta": more}),
        );
    }

    fn call(&mut self, piece: CallPiece) {
        let known = self.items.iter().position(
            |item| matches!(&item.kind, Kind::Call { index, .. } if *index == piece.index),
        );
        let position = known.unwrap_or_else(|| {
            let id = piece
                .id
                .unwrap_or_else(|| format!("call_{}_{}", self.stem, self.items.len()));
            self.add(
                "fc",
                Kind::Call {
                    index: piece.index,
                    id,
                    name: piece.name.unwrap_or_default(),
                    arguments: String::new(),
                },
            )
        });
        if piece.arguments.is_empty() {
            return;
        }
        if let Some(Kind::Call { arguments, .. }) =
            self.items.get_mut(position).map(|item| &mut item.kind)
        {
            arguments.push_str(&piece.arguments);
        }
        self.item_event(
            "response.function_call_arguments.delta",
            position,
            json!({"delta": piece.arguments}),
        );
    }

    /// The last message's last part, if the message may still grow.
    fn last_part(&mut self) -> Option<&mut Part> {
        match self.items.last_mut() {
            Some(Item {
                status: None,
                kind: Kind::Message(parts),
                ..
            }) => parts.last_mut(),
            _ => None,
        }
    }

    /// The place of a part that fits, the last one or a new one.
    fn open_part(
        &mut self,
        fits: impl Fn(&Part) -> bool,
        new: impl Fn() -> Part,
    ) -> (usize, usize) {
        if !self.last_part().is_some_and(|part| fits(part)) {
            self.add_part(new());
        }
        let part = match self.items.last().map(|item| &item.kind) {
            Some(Kind::Message(parts)) => parts.len().saturating_sub(1),
            _ => 0,
        };
        (self.items.len() - 1, part)
    }

    /// A new part of the open message, or of a new one.
    fn add_part(&mut self, part: Part) {
        if self.last_part().is_none() {
            self.add("msg", Kind::Message(Vec::new()));
        } else {
            self.end_part(self.items.len() - 1);
        }
        let announced = part.empty();
        let index = self.items.len() - 1;
        let mut position = 0;
        if let Some(Kind::Message(parts)) = self.items.last_mut().map(|item| &mut item.kind) {
            position = parts.len();
            parts.push(part);
        }
        let added = json!({"part": announced});
        self.part_event("response.content_part.added", index, position, added);
    }

    /// A new item; what was said or thought before it is complete. Calls stay open: the pieces of
    /// several may come mixed.
    fn add(&mut self, prefix: &str, kind: Kind) -> usize {
        let index = self.items.len();
        if let Some(before) = index.checked_sub(1)
            && !matches!(self.items[before].kind, Kind::Call { .. })
        {
            self.close(before, "completed");
        }
        let item = Item {
            id: format!("{prefix}_{}_{index}", self.stem),
            kind,
            status: None,
        };
        let added = json!({"output_index": index, "item": item.announced()});
        self.items.push(item);
        self.events.event("response.output_item.added", added);
        index
    }

    fn close(&mut self, index: usize, status: &'static str) {
        let Some(item) = self.items.get_mut(index) else {
            return;
        };
        if item.status.is_some() {
            return;
        }
        item.status = Some(status);
        match &item.kind {
            Kind::Reasoning(text) => {
                let (text, part) = (json!({"text": text}), reasoning_part(text));
                self.part_event("response.reasoning_text.done", index, 0, text);
                self.part_event(
                    "response.content_part.done",
                    index,
                    0,
                    json!({"part": part}),
                );
            }
            Kind::Message(_) => self.end_part(index),
            Kind::Call {
                name, arguments, ..
            } => {
                let done = json!({"name": name, "arguments": arguments});
                self.item_event("response.function_call_arguments.done", index, done);
            }
        }
        let done = json!({"output_index": index, "item": self.items[index].value()});
        self.events.event("response.output_item.done", done);
    }

    /// The last part of a message has been said.
    fn end_part(&mut self, index: usize) {
        let Some(Kind::Message(parts)) = self.items.get(index).map(|item| &item.kind) else {
            return;
        };
        let Some(part) = parts.last() else { return };
        let (name, done) = match part {
            Part::Text { text, logprobs } => (
                "response.output_text.done",
                json!({"text": text, "logprobs": logprobs}),
            ),
            Part::Refusal(text) => ("response.refusal.done", json!({"refusal": text})),
        };
        let (position, part) = (parts.len() - 1, part.value());
        self.part_event(name, index, position, done);
        self.part_event(
            "response.content_part.done",
            index,
            position,
            json!({"part": part}),
        );
    }

    fn item_event(&mut self, name: &str, index: usize, mut fields: Value) {
        fields["item_id"] = json!(self.items[index].id);
        fields["output_index"] = json!(index);
        self.events.event(name, fields);
    }

    fn part_event(&mut self, name: &str, index: usize, part: usize, mut fields: Value) {
        fields["content_index"] = json!(part);
        self.item_event(name, index, fields);
    }
}

fn usage(usage: ChatUsage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt.saturating_add(usage.completion),
    })
}
