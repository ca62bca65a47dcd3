//! What a model call sent and what came back, so that a person can read it.

use osmosis_core::JsonText;
use osmosis_data::conversation::Conversation;
use osmosis_store::{CallBody, CallRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Entry, Transcriber};
use crate::transcripts::recorded_call;

/// Fields of requests that hold messages and tools, in any dialect; the others are parameters.
const NO_PARAMETERS: &[&str] = &[
    "messages",
    "input",
    "instructions",
    "system",
    "prompt",
    "tools",
    "input_ids",
];

/// Request and reply of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallExchange {
    /// The request without messages and tools: `max_tokens`, `temperature`, …; `null` when it is no JSON object.
    pub parameters: Option<JsonText>,
    /// Names of the tools that it offered.
    pub tools: Vec<String>,
    /// Its messages.
    pub request: Vec<Entry>,
    /// What came back, one for each choice.
    pub replies: Vec<Vec<Entry>>,
}

/// What the bodies of a call say.
#[derive(Debug, Default)]
pub(super) struct ReadExchange {
    pub(super) finish_reasons: Vec<String>,
    pub(super) cut_off: bool,
    pub(super) exchange: Option<CallExchange>,
}

impl ReadExchange {
    /// `body` is missing where the bytes are lost.
    pub(super) fn of(call: &CallRecord, body: Option<&CallBody>, with_exchange: bool) -> Self {
        let Some(body) = body else {
            return Self::default();
        };
        // Alone, each choice is a conversation.
        let choices = Conversation::of_sample([recorded_call(call, body)], &[]);
        let facts = || choices.iter().flat_map(Conversation::calls);
        Self {
            finish_reasons: facts()
                .filter_map(|call| call.finish_reason.clone())
                .collect(),
            cut_off: facts().any(osmosis_data::conversation::CallFacts::reached_token_limit),
            exchange: with_exchange.then(|| CallExchange::of(&choices, &body.request)),
        }
    }
}

impl CallExchange {
    fn of(choices: &[Conversation], request: &[u8]) -> Self {
        let transcriber = Transcriber::default();
        let mut asked = vec![];
        let mut replies = vec![];
        for choice in choices {
            let answered = choice.turns.iter().position(|turn| turn.call.is_some());
            let (before, after) = choice
                .turns
                .split_at(answered.unwrap_or(choice.turns.len()));
            let part = |turns: &[_], error: Option<String>| Conversation {
                tools: vec![],
                turns: turns.to_vec(),
                error,
            };
            asked = transcriber.entries(&part(before, None));
            let reply = transcriber.entries(&part(after, choice.error.clone()));
            if !reply.is_empty() {
                replies.push(reply);
            }
        }
        let tools = choices.first().map_or(&[][..], |choice| &choice.tools);
        Self {
            parameters: parameters(request),
            tools: tools.iter().filter_map(tool_name).collect(),
            request: asked,
            replies,
        }
    }
}

fn parameters(request: &[u8]) -> Option<JsonText> {
    let mut request: Map<String, Value> = serde_json::from_slice(request).ok()?;
    request.retain(|name, _| !NO_PARAMETERS.contains(&name.as_str()));
    JsonText::of(&request).ok()
}

/// The name of a tool in the shape of Chat Completions.
pub(super) fn tool_name(tool: &Value) -> Option<String> {
    let name = tool["function"]["name"].as_str();
    let name = name.or_else(|| tool["name"].as_str());
    name.or_else(|| tool["type"].as_str()).map(str::to_owned)
}
