//! The events of a rollout as Inspect's transcript shows them: model calls, tools, scores.

use serde_json::{Map, Value, json};

use super::super::ExportRecord;
use super::super::line::rfc_3339;
use super::super::talk::SampleTalk;
use super::sample::{stop_reason, usage};
use crate::conversation::{CallFacts, Conversation, Part, Role, ToolCall, Turn};

/// Events in the order of their conversations. Messages are kept once, in a pool that events refer to.
pub(super) struct Transcript {
    events: Vec<Value>,
    pool: Vec<Value>,
    began_at_ms: i64,
    /// Each conversation stands in a span of its own.
    in_spans: bool,
}

impl Transcript {
    pub(super) fn new(record: &ExportRecord, main: &Conversation, several: bool) -> Self {
        let first = main.turns.iter().find_map(|turn| turn.at_ms);
        Self {
            events: Vec::new(),
            pool: Vec::new(),
            began_at_ms: record.started_at_ms.or(first).unwrap_or(0),
            in_spans: several,
        }
    }

    pub(super) fn conversation(
        &mut self,
        sample: &SampleTalk,
        number: usize,
        conversation: &Conversation,
    ) {
        let in_span = self.in_spans || sample.conversations.len() > 1;
        let span = format!("{}/{number}", sample.id);
        let first = conversation.turns.iter().find_map(|turn| turn.at_ms);
        let last = conversation.turns.iter().rev().find_map(|turn| turn.at_ms);
        if in_span {
            self.push(
                first,
                "span_begin",
                None,
                json!({"id": span, "name": span, "type": "agent"}),
            );
        }
        let within = in_span.then_some(span.as_str());
        let pool_begins = self.pool.len();
        let messages = conversation.turns.iter().enumerate();
        let messages =
            messages.map(|(place, turn)| message(turn, &format!("{span}/{place}"), conversation));
        self.pool.extend(messages);
        let tools: Vec<Value> = conversation.tools.iter().filter_map(tool_info).collect();
        for (place, turn) in conversation.turns.iter().enumerate() {
            if let Some(call) = turn.call.as_deref() {
                let reply = self.pool[pool_begins + place].clone();
                let seen = [pool_begins, pool_begins + place];
                self.push(
                    Some(call.queued_at_ms),
                    "model",
                    within,
                    model_event(call, &reply, seen, &tools),
                );
            }
            if turn.role == Role::Tool {
                self.tool(within, turn, &conversation.turns[..place]);
            }
        }
        if in_span {
            self.push(last, "span_end", None, json!({"id": span}));
        }
    }

    /// A tool ran between the reply that called it and the request that has its result.
    fn tool(&mut self, span: Option<&str>, result: &Turn, before: &[Turn]) {
        let Some((asked_at, call)) = called_by(result, before) else {
            return;
        };
        let began = asked_at.or(result.at_ms);
        let mut event = json!({
            "id": call.id, "function": call.name, "arguments": call.arguments_object(),
            "result": result.text(), "events": [],
        });
        if let Some(at) = result.at_ms.and_then(rfc_3339) {
            event["completed"] = json!(at);
        }
        if result.is_error {
            event["error"] = json!({"type": "unknown", "message": result.text()});
        }
        self.push(began, "tool", span, event);
    }

    pub(super) fn scores(&mut self, record: &ExportRecord, scores: &Value) {
        for (scorer, score) in scores.as_object().into_iter().flatten() {
            let event = json!({"score": score, "scorer": scorer, "intermediate": false,
                "target": record.label.as_deref().unwrap_or_default()});
            self.push(record.finished_at_ms, "score", None, event);
        }
    }

    /// The events, and the messages they refer to.
    pub(super) fn finish(self) -> (Vec<Value>, Vec<Value>) {
        (self.events, self.pool)
    }

    fn push(&mut self, at_ms: Option<i64>, kind: &str, span: Option<&str>, fields: Value) {
        let at_ms = at_ms.unwrap_or(self.began_at_ms);
        let mut event = Map::new();
        event.insert("uuid".to_owned(), json!(format!("e{}", self.events.len())));
        if let Some(span) = span {
            event.insert("span_id".to_owned(), json!(span));
        }
        event.insert(
            "timestamp".to_owned(),
            json!(rfc_3339(at_ms).unwrap_or_default()),
        );
        let since = (at_ms - self.began_at_ms).max(0) as f64 / 1000.0;
        event.insert("working_start".to_owned(), json!(since));
        event.insert("event".to_owned(), json!(kind));
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        self.events.push(Value::Object(event));
    }
}

fn model_event(call: &CallFacts, reply: &Value, seen: [usize; 2], tools: &[Value]) -> Value {
    let seconds = (call.done_at_ms - call.queued_at_ms) as f64 / 1000.0;
    let output = json!({
        "model": call.model,
        "choices": [{"message": reply, "stop_reason": stop_reason(Some(call))}],
        "usage": usage(call),
        "time": seconds,
    });
    json!({
        "model": call.model, "input": [], "input_refs": [seen], "tools": tools,
        "tool_choice": "auto", "config": {}, "output": output,
        "completed": rfc_3339(call.done_at_ms), "working_time": seconds,
    })
}

/// The call that a result answers, and when the model made it.
fn called_by<'a>(result: &Turn, before: &'a [Turn]) -> Option<(Option<i64>, &'a ToolCall)> {
    let id = result.answers.as_deref().unwrap_or_default();
    before.iter().rev().find_map(|turn| {
        let call = turn.tool_calls.iter().find(|call| call.id == id)?;
        Some((turn.at_ms, call))
    })
}

/// A turn as a message of Inspect.
pub(super) fn message(turn: &Turn, id: &str, conversation: &Conversation) -> Value {
    let mut message = json!({"id": id, "role": turn.role.as_str(), "content": content(turn)});
    match turn.role {
        Role::Assistant => {
            if !turn.tool_calls.is_empty() {
                let calls = turn.tool_calls.iter().map(|call| {
                    json!({"id": call.id, "function": call.name, "type": "function",
                        "arguments": call.arguments_object()})
                });
                message["tool_calls"] = calls.collect();
            }
            if let Some(call) = &turn.call {
                message["model"] = json!(call.model);
                message["source"] = json!("generate");
            }
        }
        Role::Tool => {
            message["tool_call_id"] = json!(turn.answers);
            if let Some((_, call)) = called_by(turn, &conversation.turns) {
                message["function"] = json!(call.name);
            }
            if turn.is_error {
                message["error"] = json!({"type": "unknown", "message": turn.text()});
            }
        }
        Role::System | Role::User => {}
    }
    message
}

fn content(turn: &Turn) -> Value {
    let plain = turn.reasoning.is_none()
        && turn
            .content
            .iter()
            .all(|part| !matches!(part, Part::Image(_)));
    if plain {
        return turn.text().into();
    }
    let thought = turn
        .reasoning
        .iter()
        .map(|text| json!({"type": "reasoning", "reasoning": text}));
    let parts = turn.content.iter().map(|part| match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image(url) => json!({"type": "image", "image": url}),
        Part::Other(value) => json!({"type": "text", "text": value.to_string()}),
    });
    thought.chain(parts).collect()
}

fn tool_info(tool: &Value) -> Option<Value> {
    let function = tool.get("function")?;
    let parameters = function.get("parameters").filter(|parameters| {
        // What is no object with properties, Inspect does not read.
        parameters["type"] == "object" && parameters["properties"].is_object()
    });
    let parameters = parameters.cloned();
    let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    Some(json!({"name": function["name"].as_str()?,
        "description": function["description"].as_str().unwrap_or_default(),
        "parameters": {"type": "object", "properties": parameters["properties"],
            "required": parameters.get("required").cloned().unwrap_or_else(|| json!([]))}}))
}
